"""Value types with an inner structure: symbol maps, descriptions of model inputs, device ids.

Their text forms are small grammars, unlike those of the simple types in `scalars`.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain

from qaic.options.codecs.scalars import Codec, Int, Json, ListOf, ValueMismatchError, to_python
from qaic.options.names import normalize
from qaic.support.text import format_value

#: Largest dimension that both ONNX and the container can represent.
_LARGEST_DIM = 2**63 - 1

#: ``name,type,[d0,d1,...]``, ``name[d0,d1]``, ``name:d0xd1``, and ``d0,d1`` or ``d0xd1`` of the only input
_INPUT_TEXTS = (
    r"\s*(?P<name>.+?)\s*,\s*(?P<type>\w+)\s*,\s*\[(?P<shape>[^\[\]]*)\]\s*",
    r"\s*(?P<name>[^\[\]]*[^\[\],:\s])?\s*[:,]?\s*\[(?P<shape>[0-9x,\s]*)\]\s*",
    r"\s*(?P<name>.*[^:\s])\s*:\s*(?P<shape>[0-9]+(?:[x,][0-9]+)*)\s*",
    r"\s*(?P<shape>[0-9]+(?:\s*[x,]\s*[0-9]+)*)\s*",
)

#: separator of inputs in ``name:1x3,other:2``
_NEXT_INPUT = r",(?=[^,:\[\]]*[^,:\[\]0-9][^,:\[\]]*:[0-9])"

#: ``name,[d0,d1,...]``
_OUTPUT_TEXT = r"\s*(?P<name>.+?)\s*,\s*\[(?P<shape>[^\[\]]*)\]\s*"

#: Element types of graph inputs and the other names in use for them.
_ELEMENT_TYPES = {
    **dict.fromkeys(("float32", "float", "fp32"), "float32"),
    **dict.fromkeys(("float16", "half", "fp16"), "float16"),
    **{name: name for name in ("int8", "uint8", "int16", "int32", "int64", "bool")},
}


@dataclass(frozen=True, slots=True)
class ModelInput:
    """Name, element type and shape of one graph input.

    ``input_name`` is empty for the only input of a model. ``input_type`` is one of float32, float16, int8,
    uint8, int16, int32, int64, bool, or None for the type in the model. ``input_shape`` has one size per
    dimension and is empty for a scalar.
    """

    input_name: str
    input_type: str | None
    input_shape: tuple[int, ...]


class DeviceIds(Codec["int | tuple[int, ...]"]):
    """One device, or several that execute one program together.

    Accepted forms: an id; a sequence of ids; texts ``"3"``, ``"0:1:2"`` and ``"0,1,2"``. An empty list, which
    means "any" in stored configurations, is device 0.

    `le` is the largest id.
    """

    placeholder = "N[:N...]"

    def __init__(self, *, le: int) -> None:
        self._id = Int(ge=0, le=le)
        self.expected = f'{self._id.expected}, or several as [0, 1] or "0:1"'

    def parse(self, value: object) -> int | tuple[int, ...]:
        """See `Codec.parse`. A list of one id is that id; ids must not repeat."""
        given = to_python(value)
        parts = re.split(r"\s*[:,]\s*", given.strip()) if isinstance(given, str) else self.items(given)
        if parts is None:
            parts = [given]
        try:
            ids = tuple(map(self._id.parse, parts))
        except ValueMismatchError as error:
            found = error.found if len(parts) == 1 else f"{error.found} in {format_value(given)}"
            raise ValueMismatchError(self.expected, found) from None
        if len(set(ids)) < len(ids):
            raise ValueMismatchError(self.expected, f"the same id twice in {format_value(given)}")
        return ids if len(ids) > 1 else ids[0] if ids else 0

    def to_texts(self, value: int | tuple[int, ...]) -> tuple[str, ...]:
        return (str(value) if isinstance(value, int) else ":".join(map(str, value)),)


class SymbolMap(Codec[Mapping[str, int]]):
    """Values of symbolic dimensions by name, in the given order.

    Accepted forms: a mapping; a list of pairs; a list of ``"name,value"`` texts; one such text; ``"name
    value name value"``.
    """

    def __init__(self) -> None:
        self._size = Int(ge=1, le=_LARGEST_DIM)

    placeholder = "SYMBOL,N"
    expected = 'symbols with integers of at least 1, as "batch,4", {"batch": 4} or [("batch", 4)]'

    def parse(self, value: object) -> Mapping[str, int]:
        """See `Codec.parse`. A symbol may be given twice with the same value."""
        symbols: dict[str, int] = {}
        for name, raw in self._pairs(value):
            if not isinstance(name, str) or not name.strip():
                raise ValueMismatchError(self.expected, f"{format_value(name)} as the name of a symbol")
            size = self._size.parse_part(raw, f"for the symbol {format_value(name.strip())}")
            if symbols.setdefault(name.strip(), size) != size:
                found = f"{symbols[name.strip()]} and {size}"
                raise ValueMismatchError(f"one value for the symbol {format_value(name.strip())}", found)
        return symbols

    def to_texts(self, value: Mapping[str, int]) -> tuple[str, ...]:
        return tuple(f"{name},{size}" for name, size in value.items())

    def _pairs(self, value: object) -> Iterator[tuple[object, object]]:
        if isinstance(value, Mapping):
            yield from value.items()
        elif isinstance(value, str):
            yield from self._text_pairs(value)
        elif (items := self.items(value)) is not None:
            for item in items:
                if isinstance(item, str):
                    yield self._text_pair(item)
                elif isinstance(item, Sequence) and len(item) == 2:
                    yield item[0], item[1]
                else:
                    raise ValueMismatchError(self.expected, f"{format_value(item)} in the list")
        else:
            raise self.mismatch(value)

    def _text_pair(self, text: str) -> tuple[str, str]:
        # The text is split at the last comma, because a symbol may be an expression such as "max(a,b)".
        name, comma, size = text.rpartition(",")
        if not comma:
            raise self._mismatch_of_text(text)
        return name, size

    def _mismatch_of_text(self, text: str) -> ValueMismatchError:
        near = re.fullmatch(r"\s*(\w+)\s*[=:]\s*([0-9]+)\s*", text)
        meant = f"; did you mean {near[1]},{near[2]}?" if near else ""
        return ValueMismatchError(
            "symbols with integers of at least 1, as batch,4", f"{format_value(text)}{meant}"
        )

    def _text_pairs(self, text: str) -> Iterator[tuple[str, str]]:
        if "," in text:
            yield self._text_pair(text)
            return
        words = text.split()
        if not words or len(words) % 2:
            raise self._mismatch_of_text(text)
        yield from zip(words[::2], words[1::2], strict=True)


class OutputShapes(Codec[Mapping[str, tuple[int | str, ...]]]):
    """Shapes of outputs by name; a dimension is a size, or a symbol of the model or arithmetic of symbols.

    Accepted forms: a mapping; a list of ``"name,[d0,d1]"`` texts; one such text.
    """

    def __init__(self) -> None:
        self._size = Int(ge=0, le=_LARGEST_DIM)

    placeholder = "OUTPUT,[N,...]"
    expected = 'shapes of outputs by name, as {"logits": [1, "seq", 512]} or "logits,[1,seq,512]"'

    def parse(self, value: object) -> Mapping[str, tuple[int | str, ...]]:
        """See `Codec.parse`. An output may be given twice with the same shape."""
        shapes: dict[str, tuple[int | str, ...]] = {}
        for name, dims in self._pairs(value):
            if not isinstance(name, str) or not name.strip():
                raise ValueMismatchError(self.expected, f"{format_value(name)} as the name of an output")
            shape = tuple(self._dim(name, dim) for dim in dims)
            if shapes.setdefault(name.strip(), shape) != shape:
                raise ValueMismatchError(
                    f"one shape for the output {format_value(name.strip())}",
                    f"{list(shapes[name.strip()])} and {list(shape)}",
                )
        return shapes

    def to_texts(self, value: Mapping[str, tuple[int | str, ...]]) -> tuple[str, ...]:
        return tuple(f"{name},[{','.join(map(str, dims))}]" for name, dims in value.items())

    def _pairs(self, value: object) -> Iterator[tuple[object, Sequence[object]]]:
        if isinstance(value, Mapping):
            for name, dims in value.items():
                if isinstance(dims, str) or not isinstance(dims, Sequence):
                    raise ValueMismatchError(self.expected, f"{format_value(dims)} as a shape")
                yield name, dims
            return
        texts = [value] if isinstance(value, str) else value
        for text in texts if isinstance(texts, Sequence) else [None]:
            match = re.fullmatch(_OUTPUT_TEXT, text) if isinstance(text, str) else None
            if match is None:
                raise self.mismatch(value)
            dims = match["shape"].split(",")
            yield match["name"], [] if dims == [""] else dims

    def _dim(self, name: str, dim: object) -> int | str:
        text = dim.strip() if isinstance(dim, str) else dim
        if isinstance(text, str) and text and not text.lstrip("-").isdecimal():
            return text
        try:
            return self._size.parse(text)
        except ValueMismatchError as error:
            raise ValueMismatchError(
                f"sizes of at least 0 or symbols for the output {format_value(name)}", error.found
            ) from None


def _single(item: object) -> Sequence[object]:
    """Split a text that describes several inputs."""
    return re.split(_NEXT_INPUT, item) if isinstance(item, str) and "[" not in item else [item]


class ModelInputs(Codec[tuple[ModelInput, ...]]):
    """Descriptions of graph inputs.

    Accepted forms: a list of mappings with ``input_name``, ``input_type`` and ``input_shape``; one such
    mapping; texts ``"name,type,[d0,d1]"`` instead of mappings, or in the form of other runtimes:
    ``"name:1x3"``, several of these with commas, ``"name[1,3]"``, and ``"1,3"`` for the only input. An
    element type may also be a numpy type.
    """

    def __init__(self) -> None:
        self._shape = ListOf(Int(ge=0, le=_LARGEST_DIM))

    placeholder = "INPUT,TYPE,[N,...]"
    expected = 'a list of {"input_name": "data", "input_type": "float32", "input_shape": [1, 3]}'

    def parse(self, value: object) -> tuple[ModelInput, ...]:
        """See `Codec.parse`. Each input may be described once."""
        items = [value] if isinstance(value, Mapping | str) else self.items(value)
        if items is None:
            raise self.mismatch(value)
        inputs: dict[str, ModelInput] = {}
        for item in chain.from_iterable(map(_single, items)):
            described = self._input(item)
            name = described.input_name
            if name in inputs:
                which = f"the input {format_value(name)}" if name else "an input without a name"
                raise ValueMismatchError(
                    "one description for each input, with its name, as a:1x3", f"two of {which}"
                )
            inputs[name] = described
        return tuple(inputs.values())

    def to_json(self, value: tuple[ModelInput, ...]) -> Json:
        entries: list[Json] = []
        for item in value:
            typed: dict[str, Json] = {} if item.input_type is None else {"input_type": item.input_type}
            entries.append({"input_name": item.input_name, **typed, "input_shape": list(item.input_shape)})
        return entries

    def to_texts(self, value: tuple[ModelInput, ...]) -> tuple[str, ...]:
        return tuple(
            f"{item.input_name}{'' if item.input_type is None else f',{item.input_type},'}"
            f"[{','.join(map(str, item.input_shape))}]"
            for item in value
        )

    def to_shape_texts(self, value: object) -> tuple[str, ...]:
        """Write shapes without types as ``"name:1x3"``, which needs no quotes in a shell.

        Raises ValueMismatchError if no text can represent the shape of an input with this name.
        """
        return tuple(map(self._shape_text, self.parse(value)))

    def _shape_text(self, item: ModelInput) -> str:
        shape = ModelInput(item.input_name, None, item.input_shape)
        short = f"{shape.input_name}:{'x'.join(map(str, shape.input_shape))}".removeprefix(":")
        # Scalars and some names need the form with brackets, and some of these also need the type.
        for text in (short, *self.to_texts((shape,)), *self.to_texts((item,))):
            with contextlib.suppress(ValueMismatchError):
                if self.parse(text) in {(shape,), (item,)}:
                    return text
        raise ValueMismatchError("a name that texts of shapes can give", format_value(item.input_name))

    def _input(self, item: object) -> ModelInput:
        if isinstance(item, ModelInput):
            item = {part.name: getattr(item, part.name) for part in fields(item)}
        if isinstance(item, str):
            match = next(filter(None, (re.fullmatch(form, item) for form in _INPUT_TEXTS)), None)
            if match is None:
                raise ValueMismatchError(
                    'an input as "name,type,[d0,d1]", "name:1x3", "name[1,3]", or "1x3" for the only one',
                    format_value(item),
                )
            parts = match.groupdict()
            given: dict[str, object] = {
                "input_name": parts.get("name") or "",
                "input_type": parts.get("type"),
                "input_shape": parts["shape"].replace("x", ","),
            }
        elif isinstance(item, Mapping):
            given = {
                normalize(key) if isinstance(key, str) else repr(key): entry for key, entry in item.items()
            }
        else:
            raise ValueMismatchError(self.expected, f"{format_value(item)} in the list")
        if given.keys() == {"input_name", "input_shape"}:
            given["input_type"] = None
        wanted = {part.name for part in fields(ModelInput)}
        if given.keys() != wanted:
            raise ValueMismatchError(
                f"the keys {', '.join(sorted(wanted))} for each input", ", ".join(sorted(given)) or "no keys"
            )
        name = given["input_name"]
        # A text may omit the type and the name, which are then those of the model.
        is_shape = given["input_type"] is None
        if not isinstance(name, str) or not (name or is_shape):
            raise ValueMismatchError("the name of a graph input", format_value(name))
        kind = None if is_shape else self._element_type(name, given["input_type"])
        return ModelInput(name, kind, self._dims(name, given["input_shape"]))

    @staticmethod
    def _element_type(name: str, value: object) -> str:
        text = value
        if not isinstance(value, str):
            # numpy.dtype has `name`, numpy.float32 (a class) has `__name__`.
            text = getattr(value, "name", None) or getattr(value, "__name__", None)
        found = _ELEMENT_TYPES.get(text.strip().lower()) if isinstance(text, str) else None
        if found is None:
            known = ", ".join(dict.fromkeys(_ELEMENT_TYPES.values()))
            raise ValueMismatchError(
                f"one of {known} as the type of the input {format_value(name)}", format_value(value)
            )
        return found

    def _dims(self, name: str, value: object) -> tuple[int, ...]:
        given = to_python(value)
        if isinstance(given, str):
            given = given.strip().removeprefix("[").removesuffix("]")
        try:
            return self._shape.parse(given)
        except ValueMismatchError as error:
            raise ValueMismatchError(
                f"a list of sizes, as [1, 3, 224, 224], for the input {format_value(name)}", error.found
            ) from None
