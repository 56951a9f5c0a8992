"""The protobuf wire format, as far as a reader needs it that does not want to touch the payloads.

Parsing a model with the protobuf library copies every weight at least once. The compiler needs the
structure of the graph and the positions of the weights, so it walks the outer messages itself with these
functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        #: whether more bytes are wanted than there are
        self.is_cut_off = is_cut_off


def read_varint(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    """Read one varint of at most ten bytes; returns the value and the position behind it."""
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
    raise WireError("a number cut off by the end of its message", start)


def signed(value: int) -> int:
    """Read an unsigned 64-bit value as the two's complement number protobuf stores for int64."""
    return value - (1 << 64) if value >> 63 else value


def fields(buf: Buffer, pos: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Walk the fields of one message.

    Yields
    ------
    tuple of int
        Field number, wire type, position of the tag, and the range of the payload (of the number itself for
        varints).

    Raises
    ------
    WireError
        A field reaches past `end`, or the wire type does not exist in proto3.
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
    """Write the tag and the length in front of a payload of `size` bytes."""
    return encode_varint(number << 3 | LEN) + encode_varint(size)
