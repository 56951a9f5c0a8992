"""Sources of an initializer's bytes, which are copied to the container in parts.

A weight has a type, dims and a source. The source is read in pieces when the container is written, so the
compiler never keeps a large payload. Files are read with positional reads instead of a mapping: if a file
shrinks, the result is an error and not a bus error.
"""

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from qaic.compiler.diagnostics.messages import changed, refuse
from qaic.errors import CompileError

if TYPE_CHECKING:
    import onnx

#: bytes per piece; a multiple of every element size, small enough to stay in a core's second-level cache
CHUNK: Final = 1 << 17

#: payloads below this size stay in the graph, because shape inference must read constants with shapes
INLINE_LIMIT: Final = 1024


Pieces: TypeAlias = "Iterator[bytes | bytearray | memoryview]"


class TensorSource(Protocol):
    """A payload that can be read from its start, as often as needed."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""

    def chunks(self) -> Pieces:
        """Read the payload in order; a piece is valid until the next one is requested."""


@dataclass(frozen=True, slots=True)
class ComputedSource:
    """A payload that is computed at each read."""

    nbytes: int
    #: computes the pieces in order
    chunks: Callable[[], Pieces]


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """Format of a stored payload that the device decodes."""

    #: name of the format, as ``mxfp6_e2m3``
    encoding: str
    #: dimension of the blocks, stored as if it were the last
    axis: int


@dataclass(frozen=True, slots=True)
class StoredLayout:
    """Layout of the elements of a matrix for the kernels of the device."""

    #: name of the layout, as ``rows``
    name: str
    #: number of elements that share a scale if quantized; 0 if all elements of a row do
    group: int = 0


@dataclass(frozen=True, slots=True)
class Weight:
    """An initializer whose payload is not part of the graph's protobuf."""

    name: str
    elem_type: int
    dims: tuple[int, ...]
    source: TensorSource
    #: decoding of `source` to elements of the type; None if it holds the elements
    blocks: BlockFormat | None = None
    #: layout for kernels of the device, which read it by name; None for an initializer of the graph
    layout: StoredLayout | None = None


class InputFile:
    """A regular file open for positional reads, and its identity when it was opened."""

    def __init__(self, path: Path) -> None:
        # O_NONBLOCK: opening a FIFO must not wait for a writer before its kind can be refused.
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self.path = path
        self.stat = os.fstat(self.fd)
        if not stat.S_ISREG(self.stat.st_mode):
            os.close(self.fd)
            self.fd = -1
            if stat.S_ISDIR(self.stat.st_mode):
                raise IsADirectoryError(21, "Is a directory", str(path))
            raise refuse(
                f"model file {str(path)!r}",
                code="not_onnx",
                found="something that is not a regular file",
                expected="a regular file",
            )
        self.size = self.stat.st_size

    def close(self) -> None:
        """Close the file; closing twice is allowed."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def changed(self) -> bool:
        """Return True if the file was modified after it was opened."""
        now = os.fstat(self.fd)
        return (now.st_size, now.st_mtime_ns) != (self.stat.st_size, self.stat.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class FileRange:
    """A payload in a file."""

    file: InputFile
    offset: int
    nbytes: int

    def chunks(self) -> Iterator[memoryview]:
        """Read with positional reads into one buffer that is reused."""
        buffer = memoryview(bytearray(min(CHUNK, self.nbytes)))
        done = 0
        while done < self.nbytes:
            want = min(CHUNK, self.nbytes - done)
            got = os.preadv(self.file.fd, [buffer[:want]], self.offset + done)
            if got == 0:
                raise self.ended()
            yield buffer[:got]
            done += got

    def ended(self) -> "CompileError":
        """Build the exception for a file that has become shorter than the payload."""
        size = os.fstat(self.file.fd).st_size
        return changed(
            f"model file {str(self.file.path)!r}",
            f"{size} bytes",
            f"{self.file.size} bytes as when it was opened",
        )


@dataclass(frozen=True, slots=True)
class MemoryRange:
    """A payload that is already in memory."""

    data: bytes | memoryview

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return len(self.data)

    def chunks(self) -> Iterator[bytes | memoryview]:
        """Yield views of the bytes."""
        view = memoryview(self.data)
        yield from (view[start : start + CHUNK] for start in range(0, len(view), CHUNK))


def read_all(source: TensorSource) -> bytes:
    """Read a whole small payload."""
    return b"".join(bytes(piece) for piece in source.chunks())


def initializers_of(weights: Mapping[str, Weight]) -> list[Weight]:
    """List the weights that are initializers of the graph."""
    return [weight for weight in weights.values() if weight.layout is None]


def with_weights_as_inputs(model: "onnx.ModelProto", weights: Mapping[str, Weight]) -> "onnx.ModelProto":
    """Copy the model with each weight as an input, so that tools get only its type and shape."""
    from onnx import helper

    from qaic.compiler.ir.graph_edits import add_input, clone

    copy = clone(model)
    for weight in initializers_of(weights):
        add_input(copy.graph, helper.make_tensor_value_info(weight.name, weight.elem_type, weight.dims))
    return copy
