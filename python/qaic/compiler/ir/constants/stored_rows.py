"""Payloads of matrices in the layout that the kernels of the device read.

A matrix is stored as rows along which products are summed. Each row is padded with zeros to a multiple of 32
elements, a unit. Rows that are computed together form a tile. Their units are adjacent in memory, so that one
pass reads every weight once, in order.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from qaic.compiler.ir.constants.weights import ComputedSource, MemoryRange, TensorSource, whole_pieces

#: rows are padded to a multiple of this many elements
UNIT: Final = 32
#: rows of a tile
TILE_ROWS: Final = 4
#: name of the layout in plans
TILES: Final = "tiles"
#: most bytes of a payload in memory at the same time
_HELD: Final = 64 << 20


def strips(
    source: TensorSource, dims: tuple[int, int], dtype: np.dtype[np.generic], *, moved: bool
) -> Iterator[npt.NDArray[np.generic]]:
    """Read a matrix in strips of rows; columns become rows if `moved`.

    Memory is bounded: if columns become rows, one pass over the payload collects each strip. A strip is valid
    until the next one is requested.
    """
    height, width = dims
    row = width * dtype.itemsize
    if not height or not width:
        return
    if not moved:
        for piece in whole_pieces(source, max(1, (_HELD // 16) // row) * row):
            yield np.frombuffer(piece, dtype).reshape(-1, width)
        return
    step = min(width, max(UNIT, _HELD // (height * dtype.itemsize)))
    strip: npt.NDArray[np.generic] = np.empty((step, height), dtype)
    for start in range(0, width, step):
        stop = min(start + step, width)
        done = 0
        # A few rows at a time fit in the cache while they are transposed.
        for piece in whole_pieces(source, max(1, (1 << 20) // row) * row):
            rows = np.frombuffer(piece, dtype).reshape(-1, width)
            strip[: stop - start, done : done + len(rows)] = rows[:, start:stop].T
            done += len(rows)
        yield strip[: stop - start]


def as_rows(
    source: TensorSource, dims: tuple[int, int], dtype: str, *, moved: bool, count: int = 1
) -> TensorSource:
    """Convert a little-endian payload of matrices to padded rows; columns become rows if `moved`."""
    rows, length = dims[::-1] if moved else dims
    padding = -length % UNIT

    def chunks() -> Iterator[memoryview]:
        matrices = [source] if count == 1 else map(MemoryRange, whole_pieces(source, source.nbytes // count))
        for matrix in matrices:
            for strip in strips(matrix, dims, np.dtype(dtype), moved=moved):
                whole = np.pad(strip, ((0, 0), (0, padding))) if padding else np.ascontiguousarray(strip)
                yield whole.data.cast("B")

    return ComputedSource(count * rows * (length + padding) * np.dtype(dtype).itemsize, chunks)


def tiles(rows: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Interleave the units of rows, tile by tile; rows of zeros fill the last tile.

    ``[rows, units]`` become ``[tiles, units, TILE_ROWS]``.
    """
    missing = -len(rows) % TILE_ROWS
    if missing:
        rows = np.concatenate([rows, np.zeros((missing, rows.shape[1]), rows.dtype)])
    return np.ascontiguousarray(rows.reshape(-1, TILE_ROWS, rows.shape[1]).swapaxes(1, 2))


def as_tiles(source: TensorSource, rows: int, unit_bytes: int) -> TensorSource:
    """Convert a payload of rows to tiles."""
    row_bytes = source.nbytes // rows
    unit = np.dtype((np.void, unit_bytes))

    def chunks() -> Iterator[memoryview]:
        units = row_bytes // unit_bytes
        tile_bytes = TILE_ROWS * units * unit_bytes
        for piece in whole_pieces(source, max(1, (_HELD // 128) // tile_bytes) * tile_bytes):
            held = tiles(np.frombuffer(piece, unit).reshape(-1, units))
            yield held.view(np.uint8).data.cast("B")

    return ComputedSource(row_bytes * -(-rows // TILE_ROWS) * TILE_ROWS, chunks)
