"""Quantization from other tools: a profile, or encodings as AIMET and QAIRT write them, as JSON or YAML.

Encodings count q from 0 and add a negative offset. Here q is signed and the offset is subtracted, so an 8-bit
offset ``o`` of an encoding becomes ``-o - 128``. All versions of a file are converted to the first one:

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

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx

from qaic.compiler.calibration.glow_profile import DECIMAL, fixed, legalize, read_profile
from qaic.compiler.ir.quantization import CalibrationProfile, TensorProfile
from qaic.errors import OptionError
from qaic.support.json import parse_json
from qaic.support.text import counted
from qaic.support.yaml import PlainValues, YamlMistakeError, compose

if TYPE_CHECKING:
    from yaml.nodes import ScalarNode

Wrong = Callable[[str, str, str], OptionError]

ACTIVATIONS: Final = "activation_encodings"
PARAMETERS: Final = "param_encodings"
_ONE_LIST: Final = "encodings"

#: limit of channels, above that of any constant
_MOST_CHANNELS: Final = 1 << 20

_VERSION: Final = r"([0-9]{1,4})\.[0-9.]*"
_INTEGER_TYPE: Final = r"(u?)int([0-9]{1,2})"
_FLOAT_TYPES: Final = {"float16": 16, "float32": 32}
_SCHEMES: Final = ("PER_TENSOR", "PER_CHANNEL")


@dataclass(frozen=True, slots=True)
class Entry:
    """Encodings of one tensor, each an object of the first form."""

    #: kind of the tensor, activation or constant; empty if the file does not state it
    section: str
    name: str
    #: its location, for messages
    where: str
    #: one encoding, or one per channel
    encodings: list[dict[str, Any]]
    #: axis of the channels, if the file states it
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
            yield from (_first(section, name, encodings, wrong) for name, encodings in entries.items())
        elif isinstance(entries, list) and "version" in held:
            _check_version(held, {1}, wrong)
            yield from _middle(section, _listed(entries, section, wrong), wrong)
        else:
            expected = "an object: name of a tensor -> list of encodings"
            raise wrong(section, _kind(entries), f"{expected}, or a list with version 1.0.0")


def _check_version(held: Mapping[str, Any], majors: set[int], wrong: Wrong) -> None:
    """Refuse a version that contradicts the form; a file without a version has the oldest version."""
    version = held.get("version")
    if version is None and 1 not in majors:
        return
    found = re.fullmatch(_VERSION, version) if isinstance(version, str) else None
    if found is None or int(found[1]) not in majors:
        text = f"{version!r}" if isinstance(version, str) else _kind(version)
        known = "0.4.0 to 0.6.1 with objects, 1.0.0 with two lists, or 2.0.0 with one"
        raise wrong("version", text, known)


def _listed(entries: object, section: str, wrong: Wrong) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the tensor, location and entry of each item in a list; each tensor may occur once."""
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
                f"{counted(len(scales), 'number')} in scale and {len(offsets)} in offset",
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
        found = re.fullmatch(_INTEGER_TYPE, kind) if isinstance(kind, str) else None
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
                where,
                f"{counted(len(scales), 'number')} in y_scale and {len(zeros)} in y_zero_point",
                "as many",
            )
        axis = entry.get("axis")
        if axis is not None and (isinstance(axis, bool) or not isinstance(axis, int) or abs(axis) > 64):
            raise wrong(where, f"axis {axis!r}", "an integer")
        if len(scales) > 1 and axis is None:
            raise wrong(
                where, f"{counted(len(scales), 'number')} in y_scale", "one, or the axis of the channels too"
            )
        bits = int(found[2])
        low = 0 if found[1] else -(1 << (bits - 1))
        # Encodings count from 0 and add the offset; a signed type starts below 0.
        encodings = [
            {"bitwidth": bits, "scale": scale, "offset": low - _zero(where, zero, low, bits, wrong)}
            for scale, zero in zip(scales, zeros, strict=True)
        ]
        yield Entry("", name, where, encodings, axis if len(scales) > 1 else None)


def _zero(where: str, zero: object, low: int, bits: int, wrong: Wrong) -> int:
    """Check that a zero point is in the range of its type."""
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
        raise wrong(where, f"{counted(len(numbers), 'number')} in {key}", "one or one per channel")
    if any(isinstance(number, list) for number in numbers):
        raise wrong(
            where, f"lists in {key}, scales of blocks", "one for the tensor or one per channel, no blocks"
        )
    return numbers


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "nothing"}
    kind = next((text for kind, text in names.items() if isinstance(value, kind)), "a number")
    return "an empty list" if value == [] else kind


#: most bytes of a file; the parser takes seconds per megabyte
_MOST_YAML_BYTES: Final = 64 << 20
#: most nodes of a file; a tensor of a thousand channels has about ten thousand
_MOST_VALUES: Final = 1 << 23

_BEGIN: Final = rb"(?m)^(activation_encodings|param_encodings|encodings)[ \t]*:"
_INTEGER: Final = r"[+-]?[0-9]{1,30}"
_WORDS: Final[dict[str, bool | None]] = {"true": True, "false": False, "null": None, "~": None, "": None}


def is_yaml_of_encodings(data: bytes) -> bool:
    """Return True if a file has the first keys of encodings in YAML notation."""
    return re.search(_BEGIN, data) is not None


def read_yaml(data: bytes) -> dict[str, Any]:
    """Read a file as if it were JSON. Raises ValueError if it is not YAML, not a mapping, or too large."""
    import yaml

    if len(data) > _MOST_YAML_BYTES:
        message = (
            f"{len(data)} bytes in YAML, which is slow to read; at most {_MOST_YAML_BYTES >> 20} MiB, or JSON"
        )
        raise YamlMistakeError(message)
    root = compose(data)
    if not isinstance(root, yaml.MappingNode):
        raise YamlMistakeError("no mapping at the top")
    held: dict[str, Any] = _TypedValues(min(len(data), _MOST_VALUES)).of(root)
    return held


class _TypedValues(PlainValues):
    """Values of a document, of the type that JSON gives them."""

    def scalar(self, node: "ScalarNode") -> object:
        """See `PlainValues.scalar`. Unquoted words become numbers, booleans or null."""
        text = str(node.value)
        # An unquoted scalar has no style; the two parsers represent that differently.
        if node.style:
            return text
        if text.lower() in _WORDS:
            return _WORDS[text.lower()]
        if re.fullmatch(_INTEGER, text):
            return int(text)
        return float(text) if re.fullmatch(DECIMAL, text) else text


#: most bytes of an encodings file
_MOST_BYTES: Final = 256 << 20
_FLOATS: Final = {16: "fp16", 32: "fp32"}
_INTEGERS: Final = (8, 16)
#: bits of a bias, whose parameters follow from the operands of the sum
_BIAS_BITS: Final = 32


def read_external(
    data: bytes, file: str, graph: onnx.GraphProto, constants: Collection[str]
) -> CalibrationProfile:
    """Read an external quantization file of either form.

    `file` is its name in messages. Raises OptionError with the tensor or the line if the file has neither
    form, or contradicts itself.
    """
    if data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") or is_yaml_of_encodings(data):
        return _Encodings(file, graph, constants).read(data)
    return read_profile(data, file).bind(graph)


class _Encodings:
    def __init__(self, file: str, graph: onnx.GraphProto, constants: Collection[str]) -> None:
        self._file = file
        activations = [value.name for value in graph.input]
        activations += [name for node in graph.node for name in node.output if name]
        self._constants = _by_spelling(constants)
        self._known = {
            ACTIVATIONS: _by_spelling(activations),
            PARAMETERS: _by_spelling([*constants, *activations]),
        }
        self._profile = CalibrationProfile()

    def read(self, data: bytes) -> CalibrationProfile:
        if len(data) > _MOST_BYTES:
            raise self._wrong("the file", f"{len(data)} bytes", f"at most {_MOST_BYTES >> 20} MiB")
        is_yaml = is_yaml_of_encodings(data)
        try:
            held = read_yaml(data) if is_yaml else parse_json(data)
        except ValueError as error:
            raise self._wrong("the file", f"a mistake ({error})", "YAML" if is_yaml else "JSON") from None
        for entry in entries_of(held, self._wrong):
            self._tensor(self._section(entry), entry)
        return self._profile

    def _section(self, entry: Entry) -> str:
        """Return the section whose rules apply to a tensor; the newest form does not mark constants."""
        if entry.section:
            return entry.section
        is_constant = any(name in self._constants for name in (entry.name, legalize(entry.name)))
        is_activation = any(name in self._known[ACTIVATIONS] for name in (entry.name, legalize(entry.name)))
        return ACTIVATIONS if is_activation and not is_constant else PARAMETERS

    def _wrong(self, what: str, found: str, expected: str) -> OptionError:
        return OptionError(
            f"external quantization file {self._file}: {what}: found {found}, expected {expected}",
            code="option.external_quantization_file",
            context={"file": self._file, "tensor": what},
        )

    def _tensor(self, section: str, entry: Entry) -> None:
        where, name, listed = entry.where, entry.name, entry.encodings
        kinds = {self._type(where, item) for item in listed}
        if len(kinds) > 1:
            raise self._wrong(
                where, "encodings of different types", "one dtype and bitwidth for all channels"
            )
        dtype, bits = kinds.pop()
        tensor = self._known[section].get(name) or self._known[section].get(legalize(name))
        if dtype == "float":
            if tensor is not None and section == ACTIVATIONS:
                self._profile.precisions[tensor] = _FLOATS[bits]
            return
        if bits == _BIAS_BITS:
            if section == ACTIVATIONS:
                raise self._wrong(where, "bitwidth 32", "8 or 16")
            return
        if len(listed) > 1 and section == ACTIVATIONS:
            raise self._wrong(where, f"{len(listed)} encodings", "one for the whole tensor")
        made = [self._encoding(where, item, bits) for item in listed]
        if tensor is not None:
            self._profile.tensors[tensor] = (
                made[0] if len(made) == 1 else _per_channel(made, bits, entry.axis)
            )

    def _type(self, where: str, item: Mapping[str, Any]) -> tuple[str, int]:
        dtype, bits = item.get("dtype", "int"), item.get("bitwidth")
        if not isinstance(dtype, str) or dtype.lower() not in {"int", "float"}:
            raise self._wrong(where, f"dtype {dtype!r}", "'int' or 'float'")
        widths = tuple(_FLOATS) if dtype.lower() == "float" else (*_INTEGERS, _BIAS_BITS)
        if isinstance(bits, bool) or bits not in widths:
            raise self._wrong(where, f"bitwidth {bits!r}", f"one of {', '.join(map(str, widths))}")
        assert isinstance(bits, int)  # noqa: S101  # one of the widths
        return dtype.lower(), bits

    def _number(self, where: str, item: Mapping[str, Any], key: str) -> float | None:
        value = item.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._wrong(where, f"{key} {value!r}", "a finite number")
        return float(value)

    def _encoding(self, where: str, item: Mapping[str, Any], bits: int) -> TensorProfile:
        """Convert one encoding to the convention of this package; refuse inconsistent numbers."""
        scale, offset = self._number(where, item, "scale"), self._number(where, item, "offset")
        low, high = self._number(where, item, "min"), self._number(where, item, "max")
        if (low is None) != (high is None) or (scale is None) != (offset is None) or (low is scale is None):
            raise self._wrong(where, f"the keys {', '.join(sorted(item))}", "scale and offset, min and max")
        if low is not None and high is not None and low > high:
            raise self._wrong(where, f"min {low} above max {high}", "min <= max")
        if scale is None or offset is None:
            assert low is not None  # noqa: S101  # checked above
            assert high is not None  # noqa: S101
            return TensorProfile(float(np.float32(low)), float(np.float32(high)))
        single = float(np.float32(scale))
        if not 0 < single < math.inf:
            raise self._wrong(where, f"scale {scale}", "a positive float32")
        if offset != int(offset):
            raise self._wrong(where, f"offset {offset}", "an integer")
        signed = self._signed_offset(where, scale, int(offset), (low, high), bits)
        return fixed(single, signed, bits, lambda found, expected: self._wrong(where, found, expected))

    def _signed_offset(
        self, where: str, scale: float, offset: int, limits: tuple[float | None, float | None], bits: int
    ) -> int:
        half = 1 << (bits - 1)
        low, high = limits
        unsigned = offset <= 0
        if low is None or high is None:
            return -offset - half if unsigned else offset

        def fits(ends: tuple[float, float]) -> bool:
            return all(
                abs(end - given) <= scale * 1.001 for end, given in zip(ends, (low, high), strict=True)
            )

        if unsigned and fits((scale * offset, scale * (offset + 2 * half - 1))):
            return -offset - half
        # Symmetric encodings may count q from -128.
        if offset == 0 and fits((-scale * half, scale * (half - 1))):
            return 0
        raise self._wrong(
            where,
            f"min {low} and max {high} with scale {scale} and offset {offset}",
            f"min = scale * offset and max = scale * (offset + {2 * half - 1}), within one step",
        )


def _by_spelling(names: Collection[str]) -> dict[str, str]:
    """Map names, and their legalized forms unless these are other names, to the names."""
    found = {legalize(name): name for name in reversed(list(names))}
    return found | {name: name for name in names}


def _per_channel(made: list[TensorProfile], bits: int, axis: int | None) -> TensorProfile:
    if any(item.scale is None for item in made):
        # Only the range is kept: the parameters of a constant follow from its values.
        return TensorProfile(min(item.minimum for item in made), max(item.maximum for item in made))
    return TensorProfile(
        min(item.minimum for item in made),
        max(item.maximum for item in made),
        channel_scales=np.array([item.scale for item in made], np.float32),
        channel_offsets=np.array([item.offset for item in made], np.int32),
        channel_axis=axis,
        bits=bits,
    )
