"""Enumerations of the low-level interface.

Members behave as clients of the vendor binding expect: ``value``, ``name``, ``int(member)``, use as an index,
and the ``repr`` ``<QStatus.QS_SUCCESS: 0>``. They are not integers: ``QStatus.QS_SUCCESS == 0`` is false.
"""

import enum
from operator import attrgetter
from typing import TypeVar

T = TypeVar("T")


def of_qaicrt(cls: type[T]) -> type[T]:
    """Set the module of a class to the one that users import, for tracebacks, ``repr`` and pickles."""
    cls.__module__ = "qaicrt"
    return cls


class _Coded:
    """Returns the code of a member without Python code, because loops convert every status."""

    value = property(attrgetter("_value_"))


class CodedEnum(_Coded, enum.Enum):
    """An enumeration whose members convert to their code."""

    def __int__(self) -> int:
        code: int = self.value
        return code

    def __index__(self) -> int:
        return int(self)


@of_qaicrt
class QStatus(CodedEnum):
    """Outcome of a call."""

    QS_SUCCESS = 0
    QS_PERM = 1
    QS_AGAIN = 2
    QS_NOMEM = 3
    QS_BUSY = 4
    QS_NODEV = 5
    QS_INVAL = 6
    QS_NOSPC = 7
    QS_BADFD = 8
    QS_TIMEDOUT = 9
    QS_PROTOCOL = 10
    QS_UNSUPPORTED = 11
    QS_DATA_CRC_ERROR = 12
    QS_DEV_ERROR = 300
    QS_ERROR = 500


@of_qaicrt
class QDevStatus(CodedEnum):
    """State of a device."""

    QDS_INITIALIZING = 0
    QDS_READY = 1
    QDS_ERROR = 2


@of_qaicrt
class QLogLevel(CodedEnum):
    """Level of a log line; a context writes lines of its own level and above."""

    QL_DEBUG = 0
    QL_INFO = 1
    QL_WARN = 2
    QL_ERROR = 3


@of_qaicrt
class BufferIoTypeEnum(CodedEnum):
    """Role of a buffer. The codes are not those of ``QAicApi_pb2``, where an input is 0."""

    BUFFER_IO_TYPE_INVALID = 0
    BUFFER_IO_TYPE_INPUT = 1
    BUFFER_IO_TYPE_OUTPUT = 2
    BUFFER_IO_TYPE_INVAL = 3


@of_qaicrt
class BufferDataTypeEnum(CodedEnum):
    """Element type of a buffer."""

    BUFFER_DATA_TYPE_FLOAT = 0
    BUFFER_DATA_TYPE_FLOAT16 = 1
    BUFFER_DATA_TYPE_INT8Q = 2
    BUFFER_DATA_TYPE_UINT8Q = 3
    BUFFER_DATA_TYPE_INT16Q = 4
    BUFFER_DATA_TYPE_INT32Q = 5
    BUFFER_DATA_TYPE_INT32I = 6
    BUFFER_DATA_TYPE_INT64I = 7
    BUFFER_DATA_TYPE_INT8 = 8
    BUFFER_DATA_TYPE_INVAL = 9
    # The documented list omits it; containers may contain it, with the code of IoDesc.
    BUFFER_DATA_TYPE_BFLOAT16 = 11


@of_qaicrt
class QBufferType(CodedEnum):
    """Source of a buffer's memory; only the heap works."""

    QBUFFER_TYPE_HEAP = 0
    QBUFFER_TYPE_DMABUF = 1
    QBUFFER_TYPE_PMEM = 2
    QBUFFER_TYPE_INVAL = 0xFFFFFFFF


@of_qaicrt
class QAicDeviceType(CodedEnum):
    """Requested kind of device."""

    QAIC_DEVICE_TYPE_DEFAULT = 1


@of_qaicrt
class LiveReportingLevelEnum(CodedEnum):
    """Amount of output during a benchmark."""

    LIVE_REPORTING_SUMMARY = 1
    LIVE_REPORTING_DETAILED = 2


@of_qaicrt
class QAicOpStatsFormatEnum(CodedEnum):
    """Form of an operator statistics report."""

    QAIC_OPSTATS_FORMAT_ASCII = 0
    QAIC_OPSTATS_FORMAT_JSON = 1


@of_qaicrt
class QAicProfilingTypeEnum(CodedEnum):
    """Kind of a profile report; the codes are those of this package."""

    QAIC_PROFILING_INFERENCE_LATENCY_TYPE = 0
    QAIC_PROFILING_INFERENCE_TRACE_TYPE = 1
    QAIC_PROFILING_INFERENCE_RAW_DEVICE_STATS_TYPE = 2
    QAIC_PROFILING_INFERENCE_DEV_KPI_TYPE = 3


@of_qaicrt
class QDirection(CodedEnum):
    """Direction of a transfer."""

    QDIR_BI = 0
    QDIR_TO_DEV = 1
    QDIR_FROM_DEV = 2
    QDIR_NONE = 3


@of_qaicrt
class QAicProgramStatus(CodedEnum):
    """State of a program."""

    QAIC_PROGRAM_INIT = 0
    QAIC_PROGRAM_LOADED = 1
    QAIC_PROGRAM_FULLY_ACTIVATED = 2
    QAIC_PROGRAM_ERROR = 100
    QAIC_PROGRAM_LOAD_ERROR = 101
    QAIC_PROGRAM_ACTIVATE_ERROR = 102


@of_qaicrt
class QAicErrorType(CodedEnum):
    """Kind of a failure, passed to error handlers."""

    QAIC_ERROR_CONTEXT_CREATION = 0x100
    QAIC_ERROR_CONTEXT_RUNTIME = 0x101
    QAIC_ERROR_PROGRAM_CREATION = 0x200
    QAIC_ERROR_PROGRAM_LOAD = 0x201
    QAIC_ERROR_PROGRAM_ACTIVATION = 0x202
    QAIC_ERROR_CONSTANTS_CREATION = 0x300
    QAIC_ERROR_CONSTANTS_RUNTIME = 0x301
    QAIC_ERROR_QUEUE_CREATION = 0x400
    QAIC_ERROR_QUEUE_RUNTIME = 0x401
    QAIC_ERROR_EXECOBJ_CREATION = 0x500
    QAIC_ERROR_EXECOBJ_RUNTIME = 0x501
    QAIC_ERROR_EVENT_CREATION = 0x600
    QAIC_ERROR_EVENT_RUNTIME = 0x601


# The names of the C++ interface.
QAicBufferIoTypeEnum = BufferIoTypeEnum
QAicBufferDataTypeEnum = BufferDataTypeEnum
