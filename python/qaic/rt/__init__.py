"""Low-level interface to Cloud AI 100 devices, with the names of the vendor's binding.

Calls return a :class:`QStatus`, or a tuple that begins with one; constructors raise exceptions. The log of
the :class:`Context` contains the reason of a failure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qaic._core import RtBufferDimensionsVecRef as BufferDimensionsVecRef
from qaic._core import RtContext as Context
from qaic._core import RtExecObj as ExecObj
from qaic._core import RtInferenceHandle as InferenceHandle
from qaic._core import RtInferenceSet as InferenceSet
from qaic._core import RtInferenceVector as InferenceVector
from qaic._core import RtProgram as Program
from qaic._core import RtQBuffer as QBuffer
from qaic._core import RtQpc as Qpc
from qaic._core import RtQueue as Queue
from qaic.rt.enums import (
    BufferDataTypeEnum,
    BufferIoTypeEnum,
    LiveReportingLevelEnum,
    QAicBufferDataTypeEnum,
    QAicBufferIoTypeEnum,
    QAicDeviceType,
    QAicErrorType,
    QAicOpStatsFormatEnum,
    QAicProfilingTypeEnum,
    QAicProgramStatus,
    QBufferType,
    QDevStatus,
    QDirection,
    QLogLevel,
    QStatus,
)
from qaic.rt.exceptions import ExceptionInit, ExceptionNullPtr, ExceptionRuntime
from qaic.support.lazy_module import lazy_door

if TYPE_CHECKING:
    from qaic.rt.benchmark import InferenceBenchmarkSet
    from qaic.rt.containers import BufferMapping, QpcConstantsInfo, QpcFile, QpcInfo, QpcProgramInfo
    from qaic.rt.devices import QDevInfo, QPerformanceInfo, QResourceInfo
    from qaic.rt.profiling.handle import ProfilingHandle
    from qaic.rt.profiling.stream import StreamProfilingHandle
    from qaic.rt.programs import ExecObjInfo, ProgramInfo
    from qaic.rt.properties import (
        BenchmarkProperties,
        InferenceSetProperties,
        ProfilingProperties,
        QAicProgramProperties,
        QAicQueueProperties,
    )
    from qaic.rt.sequences import QIDList, vector_char
    from qaic.rt.util import Util

__all__ = [
    "BenchmarkProperties",
    "BufferDataTypeEnum",
    "BufferDimensionsVecRef",
    "BufferIoTypeEnum",
    "BufferMapping",
    "Context",
    "ExceptionInit",
    "ExceptionNullPtr",
    "ExceptionRuntime",
    "ExecObj",
    "ExecObjInfo",
    "InferenceBenchmarkSet",
    "InferenceHandle",
    "InferenceSet",
    "InferenceSetProperties",
    "InferenceVector",
    "LiveReportingLevelEnum",
    "ProfilingHandle",
    "ProfilingProperties",
    "Program",
    "ProgramInfo",
    "QAicBufferDataTypeEnum",
    "QAicBufferIoTypeEnum",
    "QAicDeviceType",
    "QAicErrorType",
    "QAicOpStatsFormatEnum",
    "QAicProfilingTypeEnum",
    "QAicProgramProperties",
    "QAicProgramStatus",
    "QAicQueueProperties",
    "QBuffer",
    "QBufferType",
    "QDevInfo",
    "QDevStatus",
    "QDirection",
    "QIDList",
    "QLogLevel",
    "QPerformanceInfo",
    "QResourceInfo",
    "QStatus",
    "Qpc",
    "QpcConstantsInfo",
    "QpcFile",
    "QpcInfo",
    "QpcProgramInfo",
    "Queue",
    "StreamProfilingHandle",
    "Util",
    "vector_char",
]

# These modules are loaded at first use, because they would double the time of `import qaicrt`.
__getattr__ = lazy_door(
    __name__,
    {
        ".properties": "BenchmarkProperties InferenceSetProperties ProfilingProperties QAicProgramProperties"
        " QAicQueueProperties",
        ".containers": "BufferMapping QpcConstantsInfo QpcFile QpcInfo QpcProgramInfo",
        ".programs": "ExecObjInfo ProgramInfo",
        ".benchmark": "InferenceBenchmarkSet",
        ".profiling.handle": "ProfilingHandle",
        ".devices": "QDevInfo QPerformanceInfo QResourceInfo",
        ".sequences": "QIDList vector_char",
        ".profiling.stream": "StreamProfilingHandle",
        ".util": "Util",
    },
)


def __dir__() -> list[str]:
    """List the public names, including those that are not loaded."""
    return sorted(__all__)
