"""Examples of open sizes of inputs, which errors and command lines propose."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from qaic.compiler.frontend.size_expressions import evaluate, symbols_in

#: sizes, symbols and expressions of them; None for a dimension without a name
Shape = Sequence[int | str | None]

#: part of the name of a symbol -> size
_BY_NAME: Final = {"seq": 128, "len": 128, "token": 128, "height": 224, "width": 224}
#: numbers of channels that pictures have, and height and width of a picture
_CHANNELS: Final = frozenset({1, 3, 4})
_SIDE: Final = 224
#: dimension of the channels -> dimensions of height and width
_LAYOUTS: Final = {1: (2, 3), 3: (1, 2)}


def example_sizes(shapes: Iterable[Shape]) -> dict[str, int]:
    """Choose a size for each symbol: by its name, or else by its place in the shape of a picture."""
    sizes: dict[str, int] = {}
    for shape in shapes:
        sides = _sides(shape)
        for place, dim in enumerate(shape):
            for symbol in symbols_in(dim) if isinstance(dim, str) else ():
                of_place = sides.get(place, 1) if symbol == dim else 1
                size = next((size for part, size in _BY_NAME.items() if part in symbol.lower()), of_place)
                sizes[symbol] = max(size, sizes.get(symbol, 1))
    return sizes


def example_shape(shape: Shape, sizes: Mapping[str, int]) -> list[int]:
    """Return a shape with a number for each dimension; `sizes` are those of its symbols."""
    sides = _sides(shape)
    found: list[int] = []
    for place, dim in enumerate(shape):
        size = evaluate(dim, sizes) if isinstance(dim, str) else dim
        found.append(sides.get(place, 1) if size is None else max(size, 0))
    return found


def _sides(shape: Shape) -> dict[int, int]:
    """Map the dimensions of height and width of a picture to sizes; empty if the shape is no picture's.

    An open side is as long as the other.
    """
    for channels, places in _LAYOUTS.items():
        if len(shape) == 4 and shape[channels] in _CHANNELS:
            known = [size for place in places if isinstance(size := shape[place], int)]
            return dict.fromkeys(places, known[0] if known else _SIDE)
    return {}
