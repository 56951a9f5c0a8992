"""Converts all versions of AIMET encodings to the first one.

==========  =====================================================================================
version     form
==========  =====================================================================================
0.4 - 0.6   ``activation_encodings`` and ``param_encodings``: objects, tensor -> list of encodings
            with bitwidth, scale and offset, one or one per channel
1.0         the same two as lists of ``{name, enc_type, dtype, bw, is_sym, scale: [], offset: []}``
2.x         one list ``encodings`` of ``{name, output_dtype, y_scale, y_zero_point, axis}``, whose
            numbers are those of QuantizeLinear
==========  =====================================================================================
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from qaic.errors import OptionError

Wrong = Callable[[str, str, str], OptionError]

ACTIVATIONS: Final = "activation_encodings"
PARAMETERS: Final = "param_encodings"
_ONE_LIST: Final = "encodings"

#: limit of channels, above that of any constant
_MOST_CHANNELS: Final = 1 << 20

_VERSION: Final = re.compile(r"([0-9]{1,4})\.[0-9.]*", re.ASCII)
_INTEGER_TYPE: Final = re.compile(r"(u?)int([0-9]{1,2})", re.ASCII)
_FLOAT_TYPES: Final = {"float16": 16, "float32": 32}
_SCHEMES: Final = ("PER_TENSOR", "PER_CHANNEL")


@dataclass(frozen=True, slots=True)
class Entry:
    """Encodings of one tensor, each an object of the first form."""

    #: kind of the tensor, activation or constant; empty if the file does not state it
    section: str
    name: str
    #: its name in messages
    where: str
    #: one, or one per channel
    encodings: list[dict[str, Any]]
    #: of the channels, where the file states it
    axis: int | None = None


def entries_of(held: Mapping[str, Any], wrong: Wrong) -> Iterator[Entry]:
    """Read the entries of a file of any version.

    `wrong` creates an exception from subject, found and expected. Raises OptionError if the file has no
    encodings, or its version does not match its form.
    """
    sections = [key for key in (ACTIVATIONS, PARAMETERS) if key in held]
    is_new = _ONE_LIST in held
    if not sections and not is_new:
        raise wrong("the file", f"neither {ACTIVATIONS} nor {PARAMETERS}", f"both, or {_ONE_LIST}")
    if sections and is_new:
        raise wrong("the file", f"{sections[0]} beside {_ONE_LIST}", "the keys of one version")
    if is_new:
        _check_version(held, {2}, wrong)
        yield from _second(_listed(held[_ONE_LIST], _ONE_LIST, wrong), wrong)
        return
    for section in sections:
        entries = held[section]
        if isinstance(entries, dict):
            _check_version(held, {0}, wrong)
            for name, encodings in entries.items():
                yield _first(section, name, encodings, wrong)
        elif isinstance(entries, list) and "version" in held:
            _check_version(held, {1}, wrong)
            yield from _middle(section, _listed(entries, section, wrong), wrong)
        else:
            expected = "an object: name of a tensor -> list of encodings"
            raise wrong(section, _kind(entries), f"{expected}, or a list with version 1.0.0")


def _check_version(held: Mapping[str, Any], majors: set[int], wrong: Wrong) -> None:
    """Refuse a version that does not fit the form; a file without a version has the oldest."""
    version = held.get("version")
    if version is None and 1 not in majors:
        return
    found = _VERSION.fullmatch(version) if isinstance(version, str) else None
    if found is None or int(found[1]) not in majors:
        text = f"{version!r}" if isinstance(version, str) else _kind(version)
        known = "0.4.0 to 0.6.1 with objects, 1.0.0 with two lists, or 2.0.0 with one"
        raise wrong("version", text, known)


def _listed(entries: object, section: str, wrong: Wrong) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield tensor, place and entry of a list; each tensor may occur once."""
    if not isinstance(entries, list):
        raise wrong(section, _kind(entries), "a list of encodings with names")
    seen: set[str] = set()
    for number, entry in enumerate(entries):
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or not isinstance(name, str) or not name:
            raise wrong(f"{section}, entry {number}", _kind(entry), "an object with the name of a tensor")
        if name in seen:
            raise wrong(f"{section}, tensor {name!r}", "the tensor a second time", "it once")
        seen.add(name)
        yield name, f"{section}, tensor {name!r}", entry


def _first(section: str, name: str, encodings: object, wrong: Wrong) -> Entry:
    where = f"{section}, tensor {name!r}"
    listed: list[Any] = encodings if isinstance(encodings, list) else [encodings]
    if not listed or len(listed) > _MOST_CHANNELS or not all(isinstance(item, dict) for item in listed):
        raise wrong(where, _kind(encodings), "a list of encodings, one or one per channel")
    return Entry(section, name, where, listed)


def _middle(
    section: str, entries: Iterator[tuple[str, str, dict[str, Any]]], wrong: Wrong
) -> Iterator[Entry]:
    """Convert entries of version 1.0.0 to the first form."""
    for name, where, entry in entries:
        dtype = str(entry.get("dtype", "")).upper()
        if dtype not in {"INT", "FLOAT"}:
            raise wrong(where, f"dtype {entry.get('dtype')!r}", "'INT' or 'FLOAT'")
        scheme = entry.get("enc_type")
        if scheme not in _SCHEMES:
            raise wrong(where, f"enc_type {scheme!r}", f"{' or '.join(_SCHEMES)}; blocks are not supported")
        common = {"dtype": dtype.lower(), "bitwidth": entry.get("bw")}
        if dtype == "FLOAT":
            yield Entry(section, name, where, [common])
            continue
        if "scale" not in entry or "offset" not in entry:
            raise wrong(where, f"the keys {', '.join(sorted(entry))}", "scale and offset")
        scales = _flat(where, "scale", entry["scale"], wrong)
        offsets = _flat(where, "offset", entry["offset"], wrong)
        if len(offsets) != len(scales) or (scheme == "PER_TENSOR" and len(scales) != 1):
            raise wrong(
                where,
                f"{len(scales)} numbers in scale and {len(offsets)} in offset",
                "one of each" if scheme == "PER_TENSOR" else "as many of each as channels",
            )
        pairs = zip(scales, offsets, strict=True)
        yield Entry(section, name, where, [common | {"scale": s, "offset": o} for s, o in pairs])


def _second(entries: Iterator[tuple[str, str, dict[str, Any]]], wrong: Wrong) -> Iterator[Entry]:
    """Convert entries of version 2 to the first form."""
    for name, where, entry in entries:
        kind = entry.get("output_dtype")
        if kind in _FLOAT_TYPES:
            yield Entry("", name, where, [{"dtype": "float", "bitwidth": _FLOAT_TYPES[kind]}])
            continue
        found = _INTEGER_TYPE.fullmatch(kind) if isinstance(kind, str) else None
        if found is None:
            raise wrong(where, f"output_dtype {kind!r}", "int8, uint8, int16, uint16, int32 or a float type")
        if "block_size" in entry or "per_block_int_scale" in entry:
            raise wrong(where, "scales of blocks", "one for the tensor or one per channel, without blocks")
        if "y_scale" not in entry:
            raise wrong(where, f"the keys {', '.join(sorted(entry))}", "y_scale")
        scales = _flat(where, "y_scale", entry["y_scale"], wrong)
        points = entry.get("y_zero_point")
        zeros = [0] * len(scales) if points is None else _flat(where, "y_zero_point", points, wrong)
        if len(zeros) != len(scales):
            raise wrong(
                where, f"{len(scales)} numbers in y_scale and {len(zeros)} in y_zero_point", "as many"
            )
        axis = entry.get("axis")
        if axis is not None and (isinstance(axis, bool) or not isinstance(axis, int) or abs(axis) > 64):
            raise wrong(where, f"axis {axis!r}", "an integer")
        if len(scales) > 1 and axis is None:
            raise wrong(where, f"{len(scales)} numbers in y_scale", "one, or the axis of the channels too")
        bits = int(found[2])
        low = 0 if found[1] else -(1 << (bits - 1))
        # Encodings count from 0 and add the offset; a signed type starts below 0.
        encodings = [
            {"bitwidth": bits, "scale": scale, "offset": low - _zero(where, zero, low, bits, wrong)}
            for scale, zero in zip(scales, zeros, strict=True)
        ]
        yield Entry("", name, where, encodings, axis if len(scales) > 1 else None)


def _zero(where: str, zero: object, low: int, bits: int, wrong: Wrong) -> int:
    """Check that a zero point is a number of its type."""
    high = low + (1 << bits) - 1
    if (
        isinstance(zero, bool)
        or not isinstance(zero, int | float)
        or not low <= zero <= high
        or zero != int(zero)
    ):
        raise wrong(where, f"y_zero_point {zero!r}", f"an integer from {low} to {high}")
    return int(zero)


def _flat(where: str, key: str, value: object, wrong: Wrong) -> list[Any]:
    numbers = value if isinstance(value, list) else [value]
    if not numbers or len(numbers) > _MOST_CHANNELS:
        raise wrong(where, f"{len(numbers)} numbers in {key}", "one or one per channel")
    if any(isinstance(number, list) for number in numbers):
        raise wrong(
            where, f"lists in {key}, scales of blocks", "one for the tensor or one per channel, no blocks"
        )
    return numbers


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "nothing"}
    return "an empty list" if value == [] else names.get(type(value), "a number")
