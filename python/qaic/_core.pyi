"""Stub of the compiled module. It mirrors ``rust/qaic-python/src/lib.rs``; stubtest compares the two."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final, Protocol, Self, SupportsIndex, final, overload

import numpy as np
from _typeshed import FileDescriptorLike
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Buffer

from qaic.rt.containers import BufferMapping, BufferMappingV2, QpcInfo
from qaic.rt.dispatch import Dispatcher
from qaic.rt.enums import QAicErrorType, QBufferType, QLogLevel, QStatus
from qaic.rt.programs import ProgramInfo
from qaic.rt.properties import InferenceSetProperties, QAicProgramProperties, QAicQueueProperties

__version__: Final[str]

class QaicError(Exception):
    message: str
    code: str
    context: dict[str, Any]
    hints: tuple[str, ...]
    def __init__(
        self,
        message: str = "",
        *,
        code: str = "",
        context: Mapping[str, Any] | None = None,
        hints: Iterable[str] = (),
    ) -> None: ...

class QpcError(QaicError, ValueError): ...
class QpcFormatError(QpcError): ...
class QpcVersionError(QpcError): ...
class QpcLimitError(QpcError): ...
class OptionError(QaicError, ValueError): ...
class UnknownOptionError(OptionError, TypeError): ...
class OptionConflictError(OptionError): ...
class CompileError(QaicError, RuntimeError): ...
class InputError(QaicError, ValueError): ...
class MissingInputError(InputError, KeyError): ...
class InputShapeError(InputError): ...
class InputTypeError(InputError, TypeError): ...
class StateError(QaicError, RuntimeError): ...
class DeviceError(QaicError, RuntimeError): ...
class DeviceNotFoundError(DeviceError): ...
class DeviceBusyError(DeviceError): ...
class DeviceLostError(DeviceError): ...
class DeviceMemoryError(DeviceError, MemoryError): ...
class DeviceTimeoutError(DeviceError, TimeoutError): ...
class InferenceError(QaicError, RuntimeError): ...
class StatsError(QaicError, ValueError): ...
class UnknownStatsLayoutError(StatsError): ...
class StatsFormatError(StatsError): ...
class StatsVersionError(StatsError): ...
class StatsMismatchError(StatsError): ...
class InternalError(QaicError, RuntimeError): ...

@final
class Tensor:
    """One input or output as an array of a host program."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def partial(self) -> bool: ...
    @property
    def visible(self) -> bool: ...

@final
class BytesView:
    """Read-only view of bytes of a container or stats buffer, by the buffer protocol. Keeps them mapped."""

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...

@final
class OutputBuffer:
    """Memory of an output, by the buffer protocol. Owned by the arrays over it."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Qpc:
    """An opened container. Opening reads headers and descriptors, never payloads.

    Parameters
    ----------
    source
        Path of a file, or the bytes of a container.
    mmap
        Map files of 1 MiB and more; ``False`` reads them.
    """

    def __new__(cls, source: str | PathLike[str] | Buffer, mmap: bool = True) -> Qpc: ...
    @property
    def path(self) -> str | None: ...
    @property
    def header(self) -> dict[str, int]:
        """``magic``, ``major_version``, ``minor_version``, ``compression_type``, ``size``, ``base``,
        ``num_images``, ``images``.
        """
    @property
    def segments(self) -> list[tuple[str, int, int, int]]:
        """(name, size, offset field, start relative to byte 0), in table order."""
    @property
    def warnings(self) -> list[str]: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def num_cores(self) -> int: ...
    @property
    def is_program(self) -> bool:
        """True if the container holds a program; otherwise it holds one container per device."""
    def inner(self, name: str) -> Qpc | None:
        """The container that a segment is, over the same bytes; ``None`` when it is not one."""
    def validate(self) -> list[tuple[str, str, str | None, str]]:
        """Findings (severity, code, segment, message), CRCs included. Blocking: reads every byte."""
    def content(self) -> BytesView:
        """View of the whole container."""
    def payload(self, name: str) -> BytesView:
        """View of a segment's payload; ``KeyError`` when there is none of this name."""
    def elf_section(self, name: str) -> BytesView | None:
        """View of a section of ``network.elf``."""
    def tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        """Inputs and outputs as arrays."""
    def network_desc_json(self) -> str: ...
    def program_info_json(self) -> str:
        """Program info, user and DMA buffer mappings, constants infos."""
    def constants_json(self) -> str:
        """``descriptor`` and ``static_size``, where ``constants.bin`` splits."""
    def metadata_json(self) -> str | None:
        """``section``, ``section_size``, ``encoding`` and ``fields`` of the metadata; ``None`` without it."""
    def io_desc(self) -> bytes:
        """``IoDesc`` as its protobuf bytes."""
    def io_desc_json(self) -> str: ...

def quant_range(minimum: float, maximum: float, schema: str, precision: str) -> tuple[float, int]:
    """Scale and offset of a tensor whose values lie between ``minimum`` and ``maximum``.

    ``real = scale * (q - offset)``; the scale is a float32. ``schema`` is a value of the schema options,
    ``precision`` is ``"Int8"``, ``"Int16"``, or ``"Int32"`` for bias, of which 30 bits are used. Raises
    :class:`InputError` for a range that is not two finite numbers in order.
    """

def calibrate_range(
    histogram: NDArray[Any],
    minimum: float,
    maximum: float,
    method: str,
    schema: str,
    precision: str,
    percentile: float = 100.0,
) -> tuple[float, float]:
    """Give the part of a tensor's range that is worth its levels; :func:`quant_range` takes it.

    ``histogram`` counts the tensor's values, float32, in equal bins over ``minimum`` to ``maximum``.
    ``method`` is a value of the option ``quantization_calibration``; ``percentile`` is for ``"Percentile"``
    alone. Raises :class:`InputError` for counts below zero, ranges out of order and percentiles up to 50 or
    above 100. Blocking, about a millisecond for 512 bins, without the interpreter lock.
    """

def join_bytes(parts: list[bytes]) -> BytesView:
    """Join the parts of a body. Blocking, without the interpreter lock."""

def split_infer_json(body: bytes | BytesView, end: int, most: int) -> tuple[bytes, list[tuple[int, int]]]:
    """Take the numbers of tensors out of a request in JSON.

    Each list under ``data`` of a tensor is replaced by ``[n]``, where ``n`` is the index of its place in the
    body. The interpreter lock is released. Raises `InputError` if the rest has more than ``most`` bytes, or
    too many values.
    """

def read_json_numbers(
    body: bytes | BytesView, place: tuple[int, int], expected: int, is_single: bool
) -> tuple[BytesView, str]:
    """Decode the list of numbers in JSON at a place of a body into their bytes and the name of their dtype.

    Floats become float32 if ``is_single``, else float64. The interpreter lock is released. Raises
    `InputError`, with the number of elements as ``found`` in its context if that is not ``expected``.
    """

def split_infer_message(
    body: bytes | BytesView, most: int
) -> tuple[bytes, list[tuple[int, int]], list[tuple[int, int]]]:
    """Take the numbers of tensors out of a ``ModelInferRequest``.

    Returns the rest of the message, the places of the contents of inputs, and those of raw tensors. The
    interpreter lock is released. Raises `InputError` if the rest has more than ``most`` bytes or too many
    fields.
    """

def read_message_numbers(
    body: bytes | BytesView, place: tuple[int, int], number: int, dtype: str, expected: int
) -> BytesView:
    """Decode the field ``number`` of ``InferTensorContents`` at a place of a body, as `read_json_numbers`.

    ``dtype`` is ``"bool"``, ``"float32"`` or ``"float64"``; all others stand for whole numbers of 8 bytes.
    """

def quantize_tensor(
    array: NDArray[Any], scale: ArrayLike, offset: ArrayLike, precision: str, axis: int | None = None
) -> NDArray[Any]:
    """Quantize a C-contiguous float32 array of any shape to int8, int16 or int32, by ``precision``.

    ``clip(round_half_even(x / scale + offset))``, quotient and sum in float32. With ``axis`` there is one
    scale per index along it, and as many offsets, or one. What does not fit is clipped; NaN becomes the least
    value. Blocking, without the interpreter lock.
    """

def mx_encode(array: NDArray[Any], encoding: str, *, refuse_not_finite: bool = False) -> bytes:
    """Store a C-contiguous float32 array in blocks of 32 elements along its last axis.

    ``encoding`` is ``"mxfp6_e2m3"``, ``"mxfp6_e3m2"`` or ``"mxint8"``. A block is one byte, its exponent plus
    127 (255: every element is NaN), and then 32 bytes in units of 1/64, or 24 bytes of six-bit elements,
    element ``i`` in the bits from ``6 * i`` on of a little-endian number. Zeros fill the last block of a row.
    NaN or infinity makes its block NaN, or raises :class:`InputError` with ``refuse_not_finite``. Blocking,
    without the interpreter lock.
    """

def mx_decode(data: Buffer, shape: Sequence[int], encoding: str) -> NDArray[Any]:
    """Give an array of ``shape`` back, as float32, from the bytes that :func:`mx_encode` made.

    Any bytes of the right length decode. Blocking, without the interpreter lock.
    """

@final
class TensorHistogram:
    """Distribution of the values of a tensor, independent of the order and the number of threads.

    Values are counted in fine bins between powers of two, so that histograms of the same values are equal
    however they were added and merged. Any thread may call any method.
    """

    def __init__(self) -> None: ...
    def add(self, array: NDArray[Any]) -> None:
        """Count the values of a C-contiguous float32 array of any shape.

        Raises :class:`InputError`, with nothing counted, when there is NaN or infinity among them. Blocking,
        without the interpreter lock.
        """

    def merge(self, other: TensorHistogram) -> None:
        """Add the counts of another histogram."""

    @property
    def minimum(self) -> float:
        """The least value; 0 when there are no values."""

    @property
    def maximum(self) -> float:
        """The greatest value; 0 when there are no values."""

    @property
    def count(self) -> int: ...
    def counts(self, bins: int) -> NDArray[Any]:
        """Count in ``bins`` (1 to 65536) equal bins over the range: whole numbers, as float32.

        A fine bin that is in several bins is shared among them in proportion. When all values are equal,
        they are in the first bin.
        """

def validate_container(source: str | PathLike[str] | Buffer) -> list[tuple[str, str, str | None, str]]:
    """Findings (severity, code, segment, message) of a complete check, CRCs included.

    Blocking: reads every byte.
    """

@final
class Context:
    """The devices of this process. Reads QAIC_DEVICE, QAIC_CPU_DEVICES and QAIC_ONNXRUNTIME_LIB."""

    def __new__(cls) -> Context: ...
    @staticmethod
    def own_cpu() -> Context:
        """One ``cpu`` device of its own, independent of the environment."""
    def devices(self) -> list[dict[str, Any]]:
        """One dictionary per device, as ``resources``."""
    def ids(self) -> list[int]:
        """Ids of the devices, cards first; asks them nothing."""
    def kind(self, dev_id: int) -> str:
        """``cpu``, ``kmd`` or ``noop``; asks the device nothing."""
    def card(self, dev_id: int) -> dict[str, Any] | None:
        """Return the facts that a card reports; ``None`` for a device that is no card.

        Keys: ``node``, ``address``, ``pci``, the sensors, ``firmware`` and ``reason``: why ``firmware`` is
        ``None``. Blocking: a minute at most.
        """
    def reset(self, dev_id: int) -> None:
        """Reset a card with everything that is on it."""
    def resources(self, dev_id: int) -> dict[str, Any]:
        """Return what a device has and what of it is free.

        Keys: ``id``, ``kind``, ``name``, ``status`` (``ready`` or ``error``); total and free of
        ``dram_*_mb``, ``nsp_*``, ``vc_*``, ``mcid_*``, ``semaphore_*``; ``programs_loaded``,
        ``programs_active``, ``constants_loaded``, ``constants_in_use``.

        Blocking: with ``QAIC_CPU_SHARED`` cores are counted across processes.
        """

@final
class EmuControl:
    """Controls an emulated card, for tests, and shows what a card goes through."""

    def __new__(cls, device: int = 0) -> EmuControl: ...
    @staticmethod
    def every() -> list[EmuControl]:
        """Return the hands on all emulated cards that this process has had."""
    def reset(self) -> None:
        """Reset the card; it is online again some time later, or after ``hurry``."""
    def hurry(self) -> None:
        """Let everything happen at once that would happen later."""
    def set_faults(self, text: str) -> None:
        """Replace the plan of what goes wrong."""
    def waiters(self) -> int:
        """System calls that are blocked."""
    def wait_waiters(self, count: int = 1, timeout: float = 10.0) -> bool:
        """Wait until so many system calls are blocked."""
    @overload
    def calls(self, name: None = None) -> dict[str, int]: ...
    @overload
    def calls(self, name: str) -> int:
        """System calls made so far, by name."""
    def dma_errors(self) -> int:
        """Transfers that ended with another status than 0."""
    def ledger(self) -> dict[str, Any]:
        """Return the resources that the firmware has given out."""
    def invariants(self) -> list[str]:
        """Return the differences from an unused card."""

@final
class NoopControl:
    """Faults and a gate of a ``noop`` device, for tests (``QAIC_DEVICE=noop``).

    A plan is a list of rules ``CALL@WHICH=FAULT`` separated by ``;``. Calls are ``load`` (slow, stuck,
    no_memory, lost), ``activate`` (no_cores, no_memory, lost), ``exec`` (no_memory, lost) and ``execute``
    (slow, stuck, fail, lost); ``WHICH`` is a number from 1, a range ``2..4`` or ``*``; a slow call states how
    long: ``execute@3=slow:20ms``. After ``lost`` what was loaded is lost, what is loaded afterwards works.
    """

    def __new__(cls, device: int = 0) -> NoopControl: ...
    def plan(self, text: str) -> None:
        """Replace the faults (at first those of ``QAIC_NOOP_FAULTS``) and count calls again."""
    def calls(self) -> dict[str, int]:
        """Return the calls of each kind since the last plan."""
    def hold(self) -> None:
        """Hold executions that start from now on inside the device."""
    def release(self) -> None:
        """Let held executions continue."""
    def executing(self) -> int:
        """Return the number of held, slow or stuck executions inside the device."""
    def wait_executing(self, count: int = 1, timeout: float = 10.0) -> bool:
        """Wait until ``count`` or more are inside; return True if they are."""
    def lose(self) -> None:
        """Lose the device: executions inside end, programs are lost, loads fail until ``recover``."""
    def recover(self) -> None:
        """Restore the device, without the programs that were loaded."""

@final
class RtContext:
    """``qaicrt.Context``."""

    def __new__(
        cls,
        devList: Iterable[int] | int | None = None,
        properties: Any = None,
        logCallback: Callable[[QLogLevel, str], object] | None = None,
        errorHandler: Callable[[int, str, QAicErrorType, bytes], object] | None = None,
    ) -> RtContext: ...
    @classmethod
    def Factory(cls, *args: Any, **kwargs: Any) -> Self: ...
    def setLogLevel(self, level: QLogLevel) -> QStatus: ...
    def getLogLevel(self) -> tuple[QStatus, QLogLevel]: ...
    def getId(self) -> int: ...
    def findDevice(self, qpcObj: RtQpc) -> tuple[QStatus, int]: ...
    def objName(self) -> str: ...
    def objNameCstr(self) -> str: ...
    def _dispatcher(self) -> Dispatcher: ...

@final
class RtChannel:
    """The channel into which callbacks of a context are put."""

    def post(self, callback: Callable[..., object], arguments: tuple[object, ...]) -> bool: ...
    def claim(self) -> RtReceiver | None: ...

@final
class RtReceiver:
    """The end of a channel from which callbacks of a context are taken, in order."""

    def take(self) -> tuple[Callable[..., object], tuple[object, ...], bool] | None:
        """(callback, arguments, whether it is a log line); ``None`` at the end. Blocking."""
    def complain(self, text: str, console: bool) -> None: ...
    def close(self) -> None: ...

@final
class RtQpc:
    """``qaicrt.Qpc``."""

    @overload
    def __new__(
        cls, basePath: str | PathLike[str], qpcFilename: str | PathLike[str] | None = None
    ) -> RtQpc: ...
    @overload
    def __new__(cls, basePath: Buffer, qpcFilename: int | None = None, makeCopy: bool = True) -> RtQpc: ...
    @classmethod
    def Factory(cls, *args: Any, **kwargs: Any) -> Self: ...
    def getIoDescriptor(self) -> tuple[QStatus, bytes]: ...
    def getBufferMappings(self, programIndex: int = 0) -> list[BufferMapping]: ...
    def getBufferMappingsDma(self, programIndex: int = 0) -> list[BufferMapping]: ...
    def getBufferMappingsV2(self) -> list[BufferMappingV2]: ...
    def getInfo(self) -> QpcInfo: ...
    def size(self) -> int: ...
    def buffer(self) -> memoryview: ...

@final
class RtQBuffer:
    """``qaicrt.QBuffer``."""

    def __new__(cls, data: Buffer | None = None) -> RtQBuffer: ...
    @classmethod
    def from_dma_buf(cls, fd: FileDescriptorLike, size: int, offset: int = 0) -> RtQBuffer: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def size(self) -> int: ...
    @property
    def buf(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def handle(self) -> int: ...
    type: QBufferType

@final
class RtBufferDimensionsVecRef:
    """``qaicrt.BufferDimensionsVecRef``."""

    def __new__(
        cls, dims: Iterable[tuple[int, Iterable[int]]] | RtBufferDimensionsVecRef | None = None
    ) -> RtBufferDimensionsVecRef: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> tuple[int, list[int]]: ...
    def __setitem__(self, index: int, value: tuple[int, Iterable[int]], /) -> None: ...
    def __iter__(self) -> Iterator[tuple[int, list[int]]]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def append(self, value: tuple[int, Iterable[int]]) -> None: ...

@final
class RtProgram:
    """``qaicrt.Program``."""

    def __new__(
        cls,
        context: RtContext | None,
        dev: int | None = None,
        qpcObj: RtQpc | None = None,
        properties: QAicProgramProperties | None = None,
    ) -> RtProgram: ...
    @classmethod
    def Factory(cls, *args: Any, **kwargs: Any) -> Self: ...
    def load(self) -> QStatus: ...
    def unload(self) -> QStatus: ...
    def activate(self) -> QStatus: ...
    def deactivate(self) -> QStatus: ...
    def isLoaded(self) -> bool: ...
    def isActivated(self) -> bool: ...
    @staticmethod
    def initProperties(props: object = None) -> None: ...
    def getIoDescriptor(self) -> tuple[QStatus, bytes]: ...
    def getBufferMappings(self) -> list[BufferMapping]: ...
    def getProgramInfo(self) -> ProgramInfo: ...
    def getInferenceCompleteCount(self) -> int: ...
    def setId(self, number: int, /) -> None: ...
    def getId(self) -> int: ...
    def createSlicingSpecHandle(self, json: str) -> tuple[QStatus, RtSlicingSpecHandle | None]: ...
    def _context(self) -> RtContext: ...

@final
class RtQueue:
    """``qaicrt.Queue``."""

    def __new__(
        cls, context: RtContext | None, dev: int | None = None, properties: QAicQueueProperties | None = None
    ) -> RtQueue: ...
    @classmethod
    def Factory(cls, *args: Any, **kwargs: Any) -> Self: ...
    def enqueue(self, execObj: RtExecObj | None) -> QStatus: ...
    @staticmethod
    def initProperties(props: object = None) -> None: ...

@final
class RtSlicingSpecHandle:
    """Slices of the bindings of a program; made by ``Program.createSlicingSpecHandle``."""

@final
class RtSlicingHandle:
    """The slices that ``ExecObj.setDataWithSlices`` added to the next inference."""

@final
class RtExecObj:
    """``qaicrt.ExecObj``."""

    def __new__(
        cls, context: RtContext | None, program: RtProgram | None, properties: object = None
    ) -> RtExecObj: ...
    @classmethod
    def Factory(cls, *args: Any, **kwargs: Any) -> Self: ...
    def setData(
        self,
        # An ``InferenceVector`` too: whatever has ``getVector``.
        data: Iterable[RtQBuffer] | Iterable[tuple[int, Buffer]] | Any,
        bufDims: RtBufferDimensionsVecRef | Iterable[tuple[int, Iterable[int]]] | None = None,
    ) -> QStatus: ...
    def setDataWithSlices(
        self,
        data: Iterable[tuple[int, Buffer]],
        spec: RtSlicingSpecHandle | None,
        params: Iterable[tuple[str, int]],
    ) -> tuple[QStatus, RtSlicingHandle | None]: ...
    def run(
        self, qbuffers: Iterable[RtQBuffer] | Iterable[tuple[int, Buffer]] | Any | None = None
    ) -> QStatus: ...
    def waitForCompletion(self) -> QStatus: ...
    def getData(self) -> tuple[QStatus, list[RtQBuffer]]: ...
    def setId(self, number: int, /) -> None: ...
    def getId(self) -> int: ...

@final
class RtInferenceVector:
    """``qaicrt.InferenceVector``."""

    ZERO_FILL: Final[int]
    RANDOM: Final[int]
    FILESET: Final[int]
    def __new__(
        cls,
        # ``BufferMapping``s, or a ``Qpc``: whatever has ``getBufferMappings``.
        bufferMappings: Iterable[Any] | RtQpc,
        source: int | Sequence[str | PathLike[str]] | None = None,
        files: Sequence[str | PathLike[str]] | None = None,
    ) -> RtInferenceVector: ...
    @classmethod
    def Factory(cls, *args: Any, **kwargs: Any) -> Self: ...
    def getVector(self) -> list[RtQBuffer]: ...
    def setBuffers(self, buffers: Iterable[RtQBuffer]) -> QStatus: ...
    def setInputBuffers(self, buffers: Iterable[RtQBuffer]) -> QStatus: ...
    def setOutputBuffers(self, buffers: Iterable[RtQBuffer]) -> QStatus: ...
    def loadFromFileSet(self, files: Sequence[str | PathLike[str]]) -> QStatus: ...
    def __len__(self) -> int: ...

@final
class RtInferenceHandle:
    """``qaicrt.InferenceHandle``."""

    def setBuffers(self, buffers: Iterable[RtQBuffer]) -> QStatus: ...
    def setInputBuffers(self, buffers: Iterable[RtQBuffer]) -> QStatus: ...
    def setOutputBuffers(self, buffers: Iterable[RtQBuffer]) -> QStatus: ...
    def setBufferDimensions(
        self, dims: RtBufferDimensionsVecRef | Iterable[tuple[int, Iterable[int]]]
    ) -> QStatus: ...
    def getBuffers(self) -> tuple[QStatus, list[RtQBuffer] | None]: ...
    def execObj(self) -> RtExecObj: ...
    def getId(self) -> int: ...

@final
class RtInferenceSet:
    """``qaicrt.InferenceSet``."""

    @overload
    def __new__(
        cls,
        context: RtContext | None,
        qpc: RtQpc | None,
        devId: int | None = None,
        setSize: int = 1,
        numActivations: int = 1,
        properties: InferenceSetProperties | None = None,
        enableProfiling: bool | None = None,
    ) -> RtInferenceSet: ...
    @overload
    def __new__(
        cls,
        context: RtContext | None,
        qpc: RtQpc | None,
        devId: int | None,
        setSize: int,
        numActivations: int,
        infDataVectorDmaBuf: list[list[RtQBuffer]] | None,
        properties: InferenceSetProperties | None = None,
        enableProfiling: bool | None = None,
    ) -> RtInferenceSet: ...
    @classmethod
    def Factory(cls, *args: Any, **kwargs: Any) -> Self: ...
    def getAvailable(self, timeoutUs: int = 0) -> tuple[QStatus, RtInferenceHandle | None]: ...
    def submit(self, what: RtInferenceHandle | RtInferenceVector, infId: SupportsIndex = 0) -> QStatus: ...
    def getName(self) -> str: ...
    def getId(self) -> int: ...
    def getCompleted(self) -> tuple[QStatus, RtInferenceHandle | None]: ...
    def getCompletedId(self, infId: SupportsIndex) -> tuple[QStatus, RtInferenceHandle | None]: ...
    def putCompleted(self, handle: RtInferenceHandle | None) -> QStatus: ...
    def waitForCompletion(self) -> QStatus: ...
    def _context(self) -> RtContext: ...

@final
class RtBenchmark:
    """Keeps all handles of an inference set busy, for ``qaicrt.InferenceBenchmarkSet``."""

    def __new__(cls, handles: RtInferenceSet, buffers: list[RtQBuffer]) -> RtBenchmark: ...
    def run(
        self, count: int | None, seconds: float | None, ended: Callable[[int], object] | None = None
    ) -> tuple[QStatus, int, int]: ...
    def completed(self) -> list[int]: ...
    def exec_obj(self, handle: int) -> RtExecObj: ...
    def program_id(self, handle: int) -> int: ...

def io_crcs(exec_obj: RtExecObj) -> tuple[list[list[int]], list[list[int]]] | None: ...
def choose_devices(context: RtContext, qpc: RtQpc) -> list[int]: ...
def rt_log_error(context: RtContext, text: str) -> None: ...

@final
class InferenceSet:
    """A loaded and activated container with its exec objects; what ``Session`` runs on."""

    def __new__(
        cls,
        context: Context,
        qpc: Qpc,
        dev_ids: Sequence[int] | None,
        set_size: int,
        num_activations: int,
        coerce: Callable[[str, object, str, Sequence[int], bool], NDArray[Any]],
        *,
        submit_timeout: int = 0,
        submit_num_retries: int = 5,
        threads_per_queue: int = 4,
        share_group: str | None = None,
        allow_hw_mismatch: bool = False,
        timeout: float | None = None,
    ) -> InferenceSet: ...
    def teardown(self) -> Teardown:
        """Return its teardown, which begins after its last use."""

    def run(
        self,
        inputs: Mapping[str, ArrayLike] | ArrayLike,
        out: dict[str, NDArray[Any]] | None = None,
        output_names: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> dict[str, NDArray[Any]]: ...
    def prepare(self, inputs: Mapping[str, ArrayLike], timeout: float | None = None) -> Inference:
        """Copy the inputs of an inference that is started later, and has ``timeout`` seconds from now."""
    def read_state(self, name: str, sequence: int | None = None) -> NDArray[Any]:
        """Return the present value of a state, or of one sequence of it. May block."""

    def write_state(self, name: str, value: ArrayLike, sequence: int | None = None) -> None:
        """Replace the present value of a state, or of one sequence of it. May block."""

    def run_benchmark(
        self, inputs: Mapping[str, ArrayLike], count: int | None, seconds: float | None
    ) -> tuple[int, int]: ...

@final
class Teardown:
    """The teardown of a loaded program, which it does not keep."""

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the program is torn down, if its last reference is gone; by default a minute."""

def await_teardown(seconds: float) -> bool:
    """Wait until everything is torn down that was let go of; whether it was. Blocking."""

@final
class Inference:
    """An inference with copies of its inputs."""

    def report_to(self, completions: Completions, token: int) -> None:
        """Let ``completions`` report its end. Once."""
    def start(self, wait: bool = True, completions: Completions | None = None, token: int = 0) -> bool:
        """Start it; False when no exec object is free and ``wait`` is false. Blocking with ``wait``.

        ``completions`` then reports ``token`` when it ends, unless it has ``ended_in_start``.
        """
    @property
    def ended_in_start(self) -> bool:
        """True if the inference ended in the call that started it, on the same thread; such an end is not
        reported.
        """
    def result(self) -> dict[str, NDArray[Any]]:
        """Outputs, once. Blocking until it ends."""
    def done(self) -> bool: ...
    def running(self) -> bool: ...
    def revoke(self) -> bool:
        """Take it back if the device does not have it yet. Its end is then not reported."""
    def cancel(self) -> None:
        """Ask it to end, also while it runs."""

@final
class Completions:
    """Ends of inferences that futures wait for."""

    def __new__(cls) -> Completions: ...
    @property
    def awaited(self) -> int:
        """Inferences that the device has not let go of."""
    def wait(self, seconds: float) -> list[int]:
        """Tokens of inferences that ended, in order. Blocking, for one thread at a time."""
    def wake(self) -> None:
        """End a ``wait``."""

class _Matrices(Protocol):
    @property
    def count(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def is_turned(self) -> bool: ...
    @property
    def layout(self) -> str: ...
    @property
    def unit(self) -> int: ...

@final
class Payload:
    """The bytes of a weight in its stored form, in blocks that are computed when they are read."""

    def __new__(
        cls,
        source: Buffer | tuple[int, int, int],
        numbers: tuple[str, str],
        *,
        clip: bool = False,
        code: str = "plain",
        matrices: _Matrices | None = None,
    ) -> Payload:
        """`source` is bytes, or the descriptor of a file, an offset and a size."""

    @property
    def nbytes(self) -> int: ...
    @property
    def blocks(self) -> int: ...
    def read(self, index: int) -> bytes: ...
    def found(self) -> tuple[int, float, float, bool, int, int]:
        """Return the fields of `qaic.compiler.ir.constants.packed.Facts`."""

@final
class QpcWriter:
    """Writes a container piece by piece. Dropped before ``finish``, it removes its file."""

    def __new__(
        cls, path: str | PathLike[str], segments: Sequence[tuple[str, int, int]], alignment: int
    ) -> QpcWriter: ...
    def write(self, name: str, data: Buffer) -> None: ...
    def write_blocks(self, name: str, payload: Payload, first: int, count: int) -> int:
        """Append blocks on all processors, without the interpreter lock; returns the number of bytes."""

    def crc32(self, name: str) -> int: ...
    def finish(self) -> None: ...

def encode_network_desc(json: str) -> bytes: ...
def encode_metadata(json: str) -> bytes: ...
def encode_elf(sections: Sequence[tuple[str, bytes]]) -> bytes: ...
def check_program(path: str | PathLike[str]) -> None: ...
def try_model(
    model: bytes, inputs: Sequence[tuple[str, str, Sequence[int], bytes]] | None, outputs: Sequence[str]
) -> tuple[int, str] | None:
    """Why the engine refuses a model: code and message. An input has a name, dtype, dims and an element."""

def allow_custom_op_library(path: str | PathLike[str]) -> None: ...
def engine_info() -> tuple[str, str]: ...
def save_optimized_graph(path: str | PathLike[str], folder: str | PathLike[str]) -> Path:
    """The graph that the cpu device's engine runs, without the values of larger initializers."""

def open_user_directory(path: str | PathLike[str] | None = None) -> Path: ...
def error_catalogue() -> list[tuple[str, str, str, str]]:
    """(code, exception, status, message of an example) of every error, for the reference page."""

@final
class StatsDescriptor:
    """The operations of a program."""

    @staticmethod
    def of_qpc(qpc: Qpc) -> StatsDescriptor | None: ...
    @staticmethod
    def from_json(json: Buffer) -> StatsDescriptor: ...
    def to_json(self) -> str: ...
    @property
    def fingerprint(self) -> bytes: ...
    @property
    def network(self) -> str: ...
    @property
    def stats_level(self) -> int: ...

@final
class Profiler:
    """Takes samples of the inferences of some programs. It does not keep the programs."""

    def __new__(
        cls,
        programs: Iterable[RtProgram | RtInferenceSet | InferenceSet] | None = None,
        *,
        first: int = 0,
        count: int | None = None,
        sampling: int = 1,
        device_stats: bool | None = ...,
        max_samples: int | None = None,
        max_stats_bytes: int | None = None,
        pattern: re.Pattern[str] | None = None,
    ) -> Profiler: ...
    def add(self, program: RtProgram | RtInferenceSet | InferenceSet) -> int: ...
    def remove(self, program: RtProgram | RtInferenceSet | InferenceSet) -> bool: ...
    def start(self) -> bool: ...
    def stop(self) -> bool: ...
    @property
    def programs(self) -> list[dict[str, Any]]: ...
    def wait(self, timeout: float | None = None) -> bool: ...
    def drain(self) -> Samples: ...

@final
class Samples:
    """Samples in the order in which their inferences ended."""

    def __len__(self) -> int: ...
    @property
    def dropped(self) -> int: ...
    @property
    def programs(self) -> list[dict[str, Any]]: ...
    def times(self) -> NDArray[np.void]: ...
    def stats(self, index: int) -> bytes | None: ...
    def device_kpis(self, program: int) -> list[tuple[int, int, dict[str, float | None]]]: ...
    def of_program(self, program: int) -> Samples: ...
    def descriptor(self, program: int) -> StatsDescriptor | None: ...
    def host_trace(self) -> bytes: ...
    def latency_report(self, program: int = 0, *, always: bool = False) -> str | None: ...

def profiling_clock() -> tuple[int, int]: ...

@final
class StatsBuffer:
    """The stats buffer of one inference. Cores and threads are checked at once, operations by `check`."""

    def __new__(
        cls,
        source: str | PathLike[str] | Buffer,
        descriptor: StatsDescriptor | None = None,
        *,
        layout: str | None = None,
        any_program: bool = False,
    ) -> StatsBuffer: ...
    @staticmethod
    def of_sections(
        run: dict[str, Any],
        sections: dict[str, Any],
        descriptor: StatsDescriptor | None = None,
        *,
        any_program: bool = False,
    ) -> StatsBuffer: ...
    @property
    def run(self) -> dict[str, Any]: ...
    def section(self, name: str) -> tuple[BytesView, int, int] | None: ...
    def columns(self, name: str, names: list[str], start: int, stop: int) -> list[BytesView]: ...
    @property
    def meta(self) -> str | None: ...
    @property
    def warnings(self) -> list[str]: ...
    @property
    def descriptor(self) -> StatsDescriptor | None: ...
    @property
    def path(self) -> str | None: ...
    def check(self) -> None: ...
    def advise_unneeded(self, name: str, start: int, stop: int) -> None: ...

def encode_stats(
    run: dict[str, Any],
    sections: dict[str, Any],
    fingerprint: bytes | None = None,
    size: int | None = None,
) -> bytes: ...
def stats_summary(
    buffer: StatsBuffer, descriptor: StatsDescriptor | None = None, *, cores: Sequence[int] | None = None
) -> str: ...
def stats_trace(
    parts: Sequence[tuple[StatsBuffer, StatsDescriptor | None, str, int | None]],
    *,
    path: str | PathLike[str] | None = None,
    format: str = "json",  # noqa: A002
    merge_thread_groups: bool = True,
    flow_events: bool = False,
    barrier_events: bool = False,
    cores: Sequence[int] | None = None,
    host_trace: Buffer | None = None,
    host_samples: Samples | None = None,
) -> BytesView: ...
def stats_capacity(counts: dict[str, int]) -> int: ...
def stats_record_fields(name: str) -> list[tuple[str, str, int]]: ...
