"""Low-level interface to Cloud AI 100 devices, with the names of the vendor's binding.

Calls answer with a :class:`QStatus`, or with a tuple that begins with one; constructors raise. What failed,
and why, is in the log of the :class:`Context`.
"""

from __future__ import annotations

import importlib
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

# Loaded on first use: what reads files and dataclasses would double the time of `import qaicrt`.
_HOMES = {
    "BenchmarkProperties": "properties",
    "BufferMapping": "containers",
    "ExecObjInfo": "programs",
    "InferenceBenchmarkSet": "benchmark",
    "InferenceSetProperties": "properties",
    "ProfilingHandle": "profiling.handle",
    "ProfilingProperties": "properties",
    "ProgramInfo": "programs",
    "QAicProgramProperties": "properties",
    "QAicQueueProperties": "properties",
    "QDevInfo": "devices",
    "QIDList": "sequences",
    "QPerformanceInfo": "devices",
    "QResourceInfo": "devices",
    "QpcConstantsInfo": "containers",
    "QpcFile": "containers",
    "QpcInfo": "containers",
    "QpcProgramInfo": "containers",
    "StreamProfilingHandle": "profiling.stream",
    "Util": "util",
    "vector_char": "sequences",
}


def __getattr__(name: str) -> object:
    """Load a public name from its home on first use."""
    if name not in _HOMES:
        message = f"module 'qaic.rt' has no attribute {name!r}"
        raise AttributeError(message)
    value: object = getattr(importlib.import_module(f"qaic.rt.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Public names, loaded or not."""
    return sorted(__all__)
