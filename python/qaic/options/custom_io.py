"""The option that gives inputs and outputs of a program another layout or precision (compile-options §3.2).

The file is a YAML sequence of mappings. It is read as text with line numbers, because YAML guesses types and
keeps the last of two equal keys; every complaint names the line and the key.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar, cast

from qaic.options.codecs import Codec, Enum, FilePath, Float, Int, Json, Str, ValueMismatchError, shown

if TYPE_CHECKING:
    from yaml.nodes import Node

T = TypeVar("T")

#: exporters write some 50 bytes per entry; the parser takes seconds per megabyte
_MOST_BYTES: Final = 1 << 20

_NAME, _LAYOUT, _PRECISION, _SCALE, _OFFSET = _KEYS = ("IOName", "Layout", "Precision", "Scale", "Offset")

#: precisions that change a tensor
CONVERSIONS: Final = ("float", "float16", "bfloat16", "int8", "mxint8")
#: accepted where the tensor has that type already
INTEGERS: Final = ("int16", "int32", "int64", "uint8", "bool")

_layout = Enum("NCHW", "NHWC")
_precision = Enum(*CONVERSIONS, *INTEGERS)
_scale = Float(ge=2.0**-149, le=3.4028234663852886e38)
_offset = Int(ge=-128, le=127)


@dataclass(frozen=True, slots=True)
class CustomIo:
    """What one input or output is to be at the edge of the program.

    Parameters
    ----------
    name
        Input or output of the model.
    layout
        ``NCHW`` or ``NHWC``; None keeps the model's.
    precision
        One of `CONVERSIONS` or `INTEGERS`; None keeps the model's type.
    scale, offset
        Of ``int8``: real = scale x (q - offset); None where not given.
    """

    name: str
    layout: str | None = None
    precision: str | None = None
    scale: float | None = None
    offset: int | None = None


class CustomIoList(Codec[tuple[CustomIo, ...]]):
    """The content of a custom I/O file; from Python also a list of mappings with the same keys."""

    @property
    def expected(self) -> str:
        """See `Codec.expected`."""
        return "the path of a YAML file with entries of " + ", ".join(_KEYS)

    def parse(self, value: object) -> tuple[CustomIo, ...]:
        """See `Codec.parse`. Text is a path; between `parse` and `load` the value is one."""
        if isinstance(value, str | os.PathLike):
            try:
                return cast("tuple[CustomIo, ...]", FilePath().parse(value))
            except ValueMismatchError as error:
                raise ValueMismatchError(self.expected, error.found) from None
        if not isinstance(value, Sequence) or isinstance(value, bytes | bytearray):
            raise self.mismatch(value)
        return _distinct(
            (_from_object(item, f"entry {number}"), f"entry {number}")
            for number, item in enumerate(value, start=1)
        )

    def to_json(self, value: tuple[CustomIo, ...]) -> Json:
        """See `Codec.to_json`."""
        entries: list[Json] = []
        for entry in value:
            held = (entry.name, entry.layout, entry.precision, entry.scale, entry.offset)
            entries.append({key: item for key, item in zip(_KEYS, held, strict=True) if item is not None})
        return entries

    def rebase(self, value: tuple[CustomIo, ...], directory: Path) -> tuple[CustomIo, ...]:
        """See `Codec.rebase`."""
        return cast("tuple[CustomIo, ...]", directory / value) if isinstance(value, Path) else value

    def load(self, value: tuple[CustomIo, ...]) -> tuple[CustomIo, ...]:
        """See `Codec.load`."""
        return _read(value) if isinstance(value, Path) else value


def _read(path: Path) -> tuple[CustomIo, ...]:
    import yaml

    file = repr(str(path))
    try:
        with path.open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ValueMismatchError(f"a readable file {file}", f"the error {reason!r}") from error
    if len(data) > _MOST_BYTES:
        raise ValueMismatchError(f"a file {file} of at most {_MOST_BYTES >> 20} MiB", "one that is larger")
    try:
        root = yaml.compose(data, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = "" if mark is None else f" on line {mark.line + 1}"
        text = " ".join(part for part in (error.context, error.problem) if part)
        raise ValueMismatchError(f"YAML in the file {file}", f"a mistake{place} ({text})") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        text = " ".join(str(error).split())
        raise ValueMismatchError(f"YAML in the file {file}", f"a mistake ({text})") from error
    if root is None or (isinstance(root, yaml.ScalarNode) and not root.value and root.style is None):
        return ()
    try:
        return _distinct(
            (_from_object(_mapping(item), _line(item), _lines(item)), _line(item)) for item in _items(root)
        )
    except ValueMismatchError as error:
        raise ValueMismatchError(f"{error.expected} in the file {file}", error.found) from None


def _items(root: Node) -> list[Node]:
    import yaml

    if not isinstance(root, yaml.SequenceNode):
        raise ValueMismatchError("a list of entries that begin with '- IOName: '", _kind(root))
    return list(root.value)


def _line(node: Node) -> str:
    return f"line {node.start_mark.line + 1}"


def _kind(node: Node) -> str:
    import yaml

    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    return "a list" if isinstance(node, yaml.SequenceNode) else shown(node.value)


def _mapping(node: Node) -> Mapping[str, object]:
    """Read one entry of the file; values stay text."""
    import yaml

    if not isinstance(node, yaml.MappingNode):
        raise ValueMismatchError(f"a mapping with the key {_NAME} on {_line(node)}", _kind(node))
    entry: dict[str, object] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise ValueMismatchError(f"a word as key on {_line(key)}", _kind(key))
        if key.value in entry:
            raise ValueMismatchError(f"each key of an entry once, on {_line(key)}", f"{key.value} twice")
        if not isinstance(value, yaml.ScalarNode):
            raise ValueMismatchError(f"one value as {key.value} on {_line(value)}", _kind(value))
        entry[key.value] = value.value
    return entry


def _lines(node: Node) -> dict[str, str]:
    return {key.value: _line(key) for key, _ in node.value}


def _from_object(item: object, place: str, places: Mapping[str, str] | None = None) -> CustomIo:
    """Convert one entry; `places` says where each key stands, when that is known."""
    if isinstance(item, CustomIo):
        held = (item.name, item.layout, item.precision, item.scale, item.offset)
        item = {key: value for key, value in zip(_KEYS, held, strict=True) if value is not None}
    if not isinstance(item, Mapping):
        raise ValueMismatchError(f"a mapping with the key {_NAME} as {place}", shown(item))
    at = {key: (places or {}).get(key, place) for key in item}
    for key in item:
        if key not in _KEYS:
            near = get_close_matches(str(key), _KEYS, 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ValueMismatchError(
                f"the keys {', '.join(_KEYS)} on {at[key]}{hint}", f"the key {shown(key)}"
            )
    if _NAME not in item:
        raise ValueMismatchError(f"the key {_NAME} in the entry on {place}", "none")

    name = _typed(Str(), item, _NAME, at)
    if name is None:
        raise ValueMismatchError(f"the name of an input or output as {_NAME} on {at[_NAME]}", "nothing")
    precision = _typed(_precision, item, _PRECISION, at)
    scale, offset = _typed(_scale, item, _SCALE, at), _typed(_offset, item, _OFFSET, at)
    _check_numbers(place, at, precision, scale, offset)
    if scale is not None:
        # The program computes with the nearest float32, and says so.
        scale = struct.unpack("<f", struct.pack("<f", scale))[0]
    return CustomIo(name, _typed(_layout, item, _LAYOUT, at), precision, scale, offset)


def _typed(codec: Codec[T], item: Mapping[str, object], key: str, at: Mapping[str, str]) -> T | None:
    if item.get(key) is None:
        return None
    try:
        return codec.parse(item[key])
    except ValueMismatchError as error:
        raise ValueMismatchError(f"{error.expected} as {key} on {at[key]}", error.found) from None


def _check_numbers(
    place: str, at: Mapping[str, str], precision: str | None, scale: float | None, offset: int | None
) -> None:
    """Refuse numbers that have no meaning, and one of the two alone."""
    for key, value, other, other_value in (
        (_SCALE, scale, _OFFSET, offset),
        (_OFFSET, offset, _SCALE, scale),
    ):
        if value is None:
            continue
        if precision != "int8":
            raise ValueMismatchError(
                f"{key} only with 'Precision: int8', on {at[key]}",
                "no Precision" if precision is None else f"Precision {precision}",
            )
        if other_value is None:
            raise ValueMismatchError(f"the key {other} beside {key} in the entry on {place}", "none")


def _distinct(entries: Iterable[tuple[CustomIo, str]]) -> tuple[CustomIo, ...]:
    """Refuse two entries for one tensor."""
    seen: dict[str, str] = {}
    made: list[CustomIo] = []
    for entry, place in entries:
        if entry.name in seen:
            raise ValueMismatchError(
                f"one entry per {_NAME}", f"{entry.name} on {seen[entry.name]} and on {place}"
            )
        seen[entry.name] = place
        made.append(entry)
    return tuple(made)
