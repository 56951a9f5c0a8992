"""Plain values in containers."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qaic import _core
from qaic.attribute_dict import AttributeDict

#: view of an empty payload; read-only, as all views
EMPTY: Final = np.frombuffer(b"\0", np.uint8)[:0]


class IoType(IntEnum):
    """Role of a buffer."""

    INPUT = 1
    OUTPUT = 2


class DataType(IntEnum):
    """Element type of a buffer."""

    FLOAT32 = 0
    FLOAT16 = 1
    INT8_Q = 2
    UINT8_Q = 3
    INT16_Q = 4
    INT32_Q = 5
    INT32 = 6
    INT64 = 7
    INT8 = 8
    NONE = 9
    """DMA buffers have no element type."""
    BFLOAT16 = 11


@dataclass(frozen=True, slots=True)
class BufferMapping:
    """A buffer of the caller, or a DMA buffer."""

    name: str
    index: int
    io_type: IoType
    size: int
    """Bytes."""
    is_partial_allowed: bool
    data_type: DataType


@dataclass(frozen=True, slots=True)
class ConstantsInfo:
    """A segment of constants."""

    name: str
    index: int
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class ProgramInfo:
    """Facts about the program."""

    name: str
    program_index: int
    num_cores: int
    size: int
    """Always 0; the sizes of the segments contain the rest."""
    batch_size: int
    num_semaphores: int
    num_mc_id: int
    """Multicast ids."""
    total_required_memory: int
    """Device memory of one activation in bytes; 0 when the metadata cannot be read."""
    stats_available: bool
    buffer_mappings: tuple[BufferMapping, ...]
    buffer_mappings_dma: tuple[BufferMapping, ...]
    constants: tuple[ConstantsInfo, ...]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output as an array on the host."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"


class Header(AttributeDict[int]):
    """Fields of the header."""

    magic: int
    major_version: int
    minor_version: int
    compression_type: int
    size: int
    """Bytes of the container."""
    base: int
    num_images: int
    images: int
    """Position of the segment table."""


class Metadata(AttributeDict[Any]):
    """The compiler's description of a program for the device."""

    section: str
    """Section of the ELF that contains the metadata."""
    section_size: int
    encoding: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A named payload."""

    name: str
    size: int
    """Bytes."""
    offset: int
    """The entry's offset field: where the dynamic part of ``constants.bin`` begins."""
    start: int
    """Position of the payload in the container."""
    _container: _core.Qpc = field(repr=False)

    @property
    def data(self) -> NDArray[np.uint8]:
        """Read-only view of the payload."""
        return bytes_array(self._container.payload(self.name))


@dataclass(frozen=True, slots=True, eq=False)
class Constants:
    """The constants and their static and dynamic parts."""

    descriptor: dict[str, int]
    """Contents of ``constantsdesc.bin``: the bytes that the device reserves, at least the payload."""
    static: NDArray[np.uint8] | None
    """Read-only view of the part that all activations share; ``None`` without ``constants.bin``."""
    dynamic: NDArray[np.uint8] | None
    """Read-only view of the part that each activation gets again."""


def bytes_array(view: _core.BytesView) -> NDArray[np.uint8]:
    """Return a read-only view of bytes of a container."""
    return np.frombuffer(memoryview(view), np.uint8) if len(view) else EMPTY


@dataclass(frozen=True, slots=True)
class Finding:
    """A defect of a container."""

    severity: str
    """``"error"``: damaged or unusable; ``"warning"``: legal, but some readers may fail."""
    code: str
    segment: str | None
    message: str
