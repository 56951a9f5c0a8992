"""The option for types and layouts of inputs and outputs.

The file is a YAML sequence of mappings; every error contains the line and the key.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from qaic.options.codecs.scalars import Codec, Enum, Float, Int, Json, Str, ValueMismatchError, remark
from qaic.options.files.parsed_file import ParsedFile, parse_yaml
from qaic.options.names import unknown_keys
from qaic.support.yaml import LinedDict, LinedList, shown

T = TypeVar("T")

_NAME, _LAYOUT, _PRECISION, _SCALE, _OFFSET = _KEYS = ("IOName", "Layout", "Precision", "Scale", "Offset")

#: precisions that change a tensor
CONVERSIONS: Final = ("float", "float16", "bfloat16", "int8", "mxint8")
#: accepted if the tensor already has that type
INTEGERS: Final = ("int16", "int32", "int64", "uint8", "bool")

_layout = Enum("NCHW", "NHWC")
_precision = Enum(*CONVERSIONS, *INTEGERS)
_scale = Float(ge=2.0**-149, le=3.4028234663852886e38)
_offset = Int(ge=-128, le=127)


@dataclass(frozen=True, slots=True)
class CustomIo:
    """The requested form of one input or output at the program's interface."""

    #: Input or output of the model.
    name: str
    #: ``NCHW`` or ``NHWC``; None keeps the layout of the model.
    layout: str | None = None
    #: One of `CONVERSIONS` or `INTEGERS`; None keeps the type of the model.
    precision: str | None = None
    #: Scale and offset of ``int8``, real = scale x (q - offset); None if not given.
    scale: float | None = None
    offset: int | None = None


class CustomIoList(ParsedFile[tuple[CustomIo, ...]]):
    """The content of a custom I/O file; in Python, also a list of mappings with the same keys."""

    #: Most bytes of a file; exporters write about 50 per entry.
    most_bytes = 1 << 20

    expected = "the path of a YAML file with entries of " + ", ".join(_KEYS)

    def content(self, value: object) -> tuple[CustomIo, ...]:
        items = self.items(value)
        if items is None:
            raise self.mismatch(value)
        lines = items.lines if isinstance(items, LinedList) else ()
        places = [f"line {at}" for at in lines] or [f"entry {number}" for number in range(1, len(items) + 1)]
        return _distinct(
            (_from_object(item, place), place) for item, place in zip(items, places, strict=True)
        )

    def decode(self, data: bytes) -> tuple[CustomIo, ...]:
        root = parse_yaml(data, _KEYS)
        if not isinstance(root, LinedList | None):
            raise ValueMismatchError("a list of entries that begin with '- IOName: '", shown(root))
        return self.content(root or ())

    def to_json(self, value: tuple[CustomIo, ...]) -> Json:
        return [fields_of(entry) for entry in value]


def fields_of(entry: CustomIo) -> dict[str, Json]:
    """Return the given fields of an entry by their keys in a file."""
    held = (entry.name, entry.layout, entry.precision, entry.scale, entry.offset)
    return {key: value for key, value in zip(_KEYS, held, strict=True) if value is not None}


def _from_object(item: object, place: str) -> CustomIo:
    if isinstance(item, CustomIo):
        item = fields_of(item)
    if not isinstance(item, Mapping):
        where = f"{'on' if place.startswith('line') else 'as'} {place}"
        raise ValueMismatchError(f"a mapping with the key {_NAME} {where}", shown(item))
    lines = item.lines if isinstance(item, LinedDict) else {}
    at = {key: f"line {lines[key]}" if key in lines else place for key in item}
    for key, value in item.items():
        remark(unknown_keys([key], _KEYS), at[key])
        if key in _KEYS and isinstance(value, LinedDict | LinedList):
            raise ValueMismatchError(f"one value as {key} on {at[key]}", shown(value))
    if _NAME not in item:
        raise ValueMismatchError(f"the key {_NAME} in the entry on {place}", "none")

    name = _typed(Str(), item, _NAME, at)
    if name is None:
        raise ValueMismatchError(f"the name of an input or output as {_NAME} on {at[_NAME]}", "nothing")
    precision = _typed(_precision, item, _PRECISION, at)
    scale, offset = _typed(_scale, item, _SCALE, at), _typed(_offset, item, _OFFSET, at)
    _check_numbers(place, at, precision, scale, offset)
    if scale is not None:
        # The program computes with the nearest float32; a message states that.
        scale = struct.unpack("<f", struct.pack("<f", scale))[0]
    return CustomIo(name, _typed(_layout, item, _LAYOUT, at), precision, scale, offset)


def _typed(codec: Codec[T], item: Mapping[str, object], key: str, at: Mapping[str, str]) -> T | None:
    return None if item.get(key) is None else codec.parse_part(item[key], f"as {key} on {at[key]}")


def _check_numbers(
    place: str, at: Mapping[str, str], precision: str | None, scale: float | None, offset: int | None
) -> None:
    """Refuse invalid numbers, and a scale or offset without the other."""
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
            raise ValueMismatchError(f"the keys {other} and {key} in the entry on {place}", "none")


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
