"""A serialized ``TensorProto``: its description, and the position of its payload."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from qaic.compiler.ir import elem_types

VARINT: Final = 0
FIXED64: Final = 1
LEN: Final = 2
FIXED32: Final = 5

Buffer = memoryview


class WireError(ValueError):
    """The bytes are not a protobuf message; `offset` states where reading stopped."""

    def __init__(self, problem: str, offset: int, *, is_cut_off: bool = False) -> None:
        super().__init__(f"{problem} at byte {offset}")
        self.offset = offset
        #: true if more bytes are needed than available
        self.is_cut_off = is_cut_off


def read_varint(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    """Read one varint of at most ten bytes; returns the value and the position after it."""
    value = shift = 0
    start = pos
    while pos < end:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, pos
        shift += 7
        if shift > 63:
            raise WireError("a number longer than ten bytes", start)
    raise WireError("a number truncated by the end of its message", start)


def signed(value: int) -> int:
    """Convert an unsigned 64-bit value to the two's complement number that protobuf stores for int64."""
    return value - (1 << 64) if value >> 63 else value


def fields(buf: Buffer, pos: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Iterate over the fields of one message.

    Yields field number, wire type, position of the tag, and the range of the payload (of the number itself
    for varints). Raises WireError if a field reaches past `end`, or the wire type does not exist in proto3.
    """
    while pos < end:
        begin = pos
        # Most tags and many lengths are one byte, which needs no call.
        tag = buf[pos]
        if tag < 0x80:
            pos += 1
        else:
            tag, pos = read_varint(buf, pos, end)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise WireError("field number 0", begin)
        lo = pos
        if wire == LEN:
            size, lo = (buf[pos], pos + 1) if pos < end and buf[pos] < 0x80 else read_varint(buf, pos, end)
            pos = lo + size
        elif wire == VARINT:
            _, pos = read_varint(buf, pos, end)
        elif wire == FIXED32:
            pos += 4
        elif wire == FIXED64:
            pos += 8
        else:
            raise WireError(f"wire type {wire}", begin)
        if pos > end:
            raise WireError(f"field {number} reaches past the end of its message", begin, is_cut_off=True)
        yield number, wire, begin, lo, pos


def encode_varint(value: int) -> bytes:
    """Write a non-negative number as a varint."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_len(number: int, size: int) -> bytes:
    """Write the tag and the length that precede a payload of `size` bytes."""
    return encode_varint(number << 3 | LEN) + encode_varint(size)


_DIMS: Final = 1
_DATA_TYPE: Final = 2
_FLOAT_DATA: Final = 4
_NAME: Final = 8
_RAW_DATA: Final = 9
_DOUBLE_DATA: Final = 10
_EXTERNAL_DATA: Final = 13
_DATA_LOCATION: Final = 14

#: bytes that mark external data in protobuf's usual encoding
EXTERNAL_FIELD: Final = bytes((_DATA_LOCATION << 3 | VARINT, 1))

#: fields with numbers: float, int32, string, int64, raw, double, uint64
_PAYLOADS: Final = frozenset({4, 5, 6, 7, 9, 10, 11})


@dataclass(slots=True)
class TensorRecord:
    """Contents of a ``TensorProto``, without reading its payload."""

    lo: int
    hi: int
    name: str = ""
    elem_type: int = 0
    dims: list[int] = field(default_factory=list)
    #: bytes of all payload fields together
    payload: int = 0
    #: range of the payload if it is a little-endian dense array
    plain: tuple[int, int] | None = None
    #: key -> value of the external location; empty when the data is in the model
    external: dict[str, str] = field(default_factory=dict)

    def decode(self, view: memoryview) -> bytes:
        """Turn a payload in number fields (varints, or one tag per number) into the dense array."""
        import onnx
        from onnx import numpy_helper

        tensor = onnx.TensorProto.FromString(bytes(view[self.lo : self.hi]))
        if elem_types.TABLE[self.elem_type][1] < 8:
            # Sub-byte values are packed in the low byte of int32_data.
            return bytes(value & 0xFF for value in tensor.int32_data)
        if self.elem_type in elem_types.NARROW_FLOATS:
            return elem_types.narrow_float_bytes(tensor)
        dense: bytes = numpy_helper.to_array(tensor).tobytes()
        return dense

    def inline(self, name: str, data: bytes) -> bytes:
        """Write the record as an initializer that contains its data, for use as a field of the graph."""
        import onnx

        tensor = onnx.TensorProto(name=name, data_type=self.elem_type, dims=self.dims, raw_data=data)
        body = tensor.SerializeToString(deterministic=True)
        return encode_len(5, len(body)) + body


def read_record(view: memoryview, lo: int, hi: int) -> TensorRecord:
    """Read the description of the tensor in ``view[lo:hi]``.

    Raises WireError if the bytes are not a ``TensorProto``.
    """
    record = TensorRecord(lo, hi)
    payloads: list[tuple[int, int, int]] = []
    location = 0
    external: dict[str, str] = {}
    for number, kind, _, start, end in fields(view, lo, hi):
        if number in _PAYLOADS:
            record.payload += end - start
            payloads.append((number if kind == LEN else -1, start, end))
        elif number == _NAME and kind == LEN:
            record.name = str(view[start:end], "utf-8", "replace")
        elif number == _DIMS:
            while start < end:
                value, start = read_varint(view, start, end)  # noqa: PLW2901 - packed or single, same loop
                record.dims.append(signed(value))
        elif number == _DATA_TYPE and kind == VARINT:
            record.elem_type = read_varint(view, start, end)[0]
        elif number == _DATA_LOCATION and kind == VARINT:
            location = read_varint(view, start, end)[0]
        elif number == _EXTERNAL_DATA and kind == LEN:
            key, value_bytes = read_entry(view, start, end)
            external[key.decode("utf-8", "replace")] = value_bytes.decode("utf-8", "replace")
    if location == 1:
        record.external = external or {"location": ""}
    elif len(payloads) == 1:
        number, start, end = payloads[0]
        dense = {_FLOAT_DATA: elem_types.FLOAT, _DOUBLE_DATA: elem_types.DOUBLE}
        if number == _RAW_DATA or (number in dense and dense[number] == record.elem_type):
            record.plain = (start, end)
    return record


def read_entry(view: memoryview, lo: int, hi: int) -> tuple[bytes, bytes]:
    """Read one ``StringStringEntryProto``: its key and its value.

    Raises WireError if the bytes are not an entry.
    """
    texts = {1: b"", 2: b""}
    for number, kind, _, start, end in fields(view, lo, hi):
        if number in texts and kind == LEN:
            texts[number] = bytes(view[start:end])
    return texts[1], texts[2]
