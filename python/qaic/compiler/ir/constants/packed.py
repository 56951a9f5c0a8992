"""Payloads that the core converts while they are written.

The core reads the numbers of a weight in blocks, converts and checks them in the cache of a processor, and
writes them. It uses all processors, without the interpreter lock.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from qaic import _core
from qaic.compiler.ir.constants.weights import FileRange, MemoryRange, Pieces, TensorSource, read_all
from qaic.compiler.ir.elem_types import TABLE

#: rows are padded with zeros to a multiple of this many elements
UNIT: Final = 32
#: rows of a tile
TILE_ROWS: Final = 4
#: layout of rows one after the other
ROWS: Final = "rows"
#: layout in which the units of a tile's rows are interleaved, so that products read weights once, in order
TILES: Final = "tiles"

#: stored forms of numbers: unchanged, unsigned bytes that become signed, blocks, blocks for float16 products
PLAIN: Final = "plain"
SIGNED: Final = "signed"
MXFP6: Final = "mxfp6_e2m3"
MXFP6_OF_FLOAT16: Final = "mxfp6_e2m3 of float16"

_BLOCK_BYTES: Final = 25
_SIZES: Final = {name: bits // 8 for name, bits in TABLE.values()}
#: conversions to wider types, which change no value
_EXACT: Final = {
    ("float16", "float32"),
    ("bfloat16", "float32"),
    ("float16", "float64"),
    ("bfloat16", "float64"),
    ("float32", "float64"),
}
#: bytes of a computed payload above which it is in a temporary file while the core converts it
_HELD: Final = 64 << 20
#: bytes that are written between two reports of progress; signals are handled then, too
_STEP: Final = 128 << 20


@dataclass(frozen=True, slots=True)
class Matrices:
    """Matrices of a payload, and their order in the container. `_core.Payload` reads the attributes."""

    count: int
    rows: int
    columns: int
    #: true if columns are stored as rows
    is_turned: bool
    layout: str
    #: elements to a multiple of which rows are padded
    unit: int = UNIT


class Facts(NamedTuple):
    """Values of a payload that a conversion changed more than by rounding."""

    #: number of finite values that float16 makes infinite
    beyond: int
    #: one of them with the largest magnitude
    farthest: float
    #: largest magnitude among values that float16 turned into zeros
    lost: float
    #: true if a value is not zero in float16
    has_survivors: bool
    #: values that a stored form cannot represent
    nan: int
    infinite: int


@dataclass(frozen=True, slots=True)
class PackedSource:
    """A payload of numbers in another type, form or order."""

    inner: TensorSource
    #: names of the types before and after the conversion
    numbers: tuple[str, str]
    #: true if finite values beyond float16 become its largest value instead of infinity
    clip: bool = False
    code: str = PLAIN
    #: order of the numbers; None for that of `inner`
    matrices: Matrices | None = None
    #: functions that receive facts after each read of the payload
    listeners: tuple[Callable[[Facts], None], ...] = ()

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        found, stored = map(_SIZES.__getitem__, self.numbers)
        if self.matrices is None:
            return self.inner.nbytes // found * stored
        order = self.matrices
        rows, length = (order.columns, order.rows) if order.is_turned else (order.rows, order.columns)
        rows *= order.count
        if order.layout == TILES:
            rows = -(-rows // TILE_ROWS) * TILE_ROWS
        unit_bytes = order.unit * stored if self.code in {PLAIN, SIGNED} else _BLOCK_BYTES
        return rows * -(-length // order.unit) * unit_bytes

    def chunks(self) -> Iterator[bytes]:
        """Convert one block at a time."""
        with self._payload() as payload:
            yield from map(payload.read, range(payload.blocks))

    def write(self, writer: _core.QpcWriter, segment: str) -> Iterator[int]:
        """Append the payload to a segment of a container; yields the number of bytes of each step."""
        with self._payload() as payload:
            step = max(1, payload.blocks * _STEP // max(1, payload.nbytes))
            for first in range(0, payload.blocks, step):
                yield writer.write_blocks(segment, payload, first, min(step, payload.blocks - first))

    @contextmanager
    def _payload(self) -> Iterator[_core.Payload]:
        """Describe the conversion to the core for a block, which reads all of it; then report facts."""
        with _opened(self.inner) as source:
            payload = _core.Payload(
                source, self.numbers, clip=self.clip, code=self.code, matrices=self.matrices
            )
        try:
            yield payload
        except EOFError as error:
            if not isinstance(self.inner, FileRange):
                raise
            raise self.inner.ended() from error
        facts = Facts(*payload.found())
        for listener in self.listeners:
            listener(facts)


@dataclass(frozen=True, slots=True)
class JoinedSource:
    """Several payloads, one after the other."""

    parts: tuple[TensorSource, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return sum(part.nbytes for part in self.parts)

    def chunks(self) -> Pieces:
        """Read all parts."""
        for part in self.parts:
            yield from part.chunks()


def converted(
    source: TensorSource,
    numbers: tuple[str, str],
    *,
    clip: bool = False,
    listener: Callable[[Facts], None] | None = None,
) -> PackedSource:
    """Convert a little-endian payload of floats to another type, rounded half to even."""
    listeners = () if listener is None else (listener,)
    if isinstance(source, PackedSource) and source.matrices is None and source.numbers in _EXACT:
        # The core converts from the type in the file to the last one without the type between them.
        numbers = (source.numbers[0], numbers[1])
        source = source.inner
    return PackedSource(source, numbers, clip, listeners=listeners)


def packed(
    source: TensorSource,
    number: str,
    matrices: Matrices,
    *,
    code: str = PLAIN,
    listener: Callable[[Facts], None] | None = None,
) -> PackedSource:
    """Store the matrices of a payload, whose type is `number`, in a form and order."""
    listeners = () if listener is None else (listener,)
    if not isinstance(source, PackedSource) or source.matrices is not None:
        source = PackedSource(source, (number, number))
    return replace(source, code=code, matrices=matrices, listeners=(*source.listeners, *listeners))


def as_packed(source: TensorSource) -> PackedSource | None:
    """Describe a payload to the core; None if Python computes it."""
    if isinstance(source, FileRange | MemoryRange):
        return PackedSource(source, ("uint8", "uint8"))
    return source if isinstance(source, PackedSource) else None


@contextmanager
def _opened(source: TensorSource) -> Iterator[tuple[int, int, int] | bytes | memoryview]:
    """Return a part of a file, or bytes in memory.

    A computed payload is read completely, into a temporary file if it is large.
    """
    if isinstance(source, FileRange):
        yield source.file.fd, source.offset, source.nbytes
    elif isinstance(source, MemoryRange):
        yield source.data
    elif source.nbytes <= _HELD:
        yield read_all(source)
    else:
        with tempfile.TemporaryFile() as file:
            for piece in source.chunks():
                file.write(piece)
            file.flush()
            # The core keeps the file open.
            yield file.fileno(), 0, source.nbytes
