"""Low-level interface to Cloud AI 100 devices, with the names of the vendor's binding.

Calls answer with a :class:`QStatus`, or with a tuple that begins with one; constructors raise. What failed,
and why, is in the log of the :class:`Context`.
"""

from __future__ import annotations

from qaic._core import RtBufferDimensionsVecRef as BufferDimensionsVecRef
from qaic._core import RtContext as Context
from qaic._core import RtQBuffer as QBuffer
from qaicrt.enums import (
    BufferDataTypeEnum,
    BufferIoTypeEnum,
    LiveReportingLevelEnum,
    QAicBufferDataTypeEnum,
    QAicBufferIoTypeEnum,
    QAicDeviceType,
    QAicErrorType,
    QAicOpStatsFormatEnum,
    QAicProgramStatus,
    QBufferType,
    QDevStatus,
    QDirection,
    QLogLevel,
    QStatus,
)
from qaicrt.exceptions import ExceptionInit, ExceptionNullPtr, ExceptionRuntime

__all__ = [
    "BufferDataTypeEnum",
    "BufferDimensionsVecRef",
    "BufferIoTypeEnum",
    "Context",
    "ExceptionInit",
    "ExceptionNullPtr",
    "ExceptionRuntime",
    "LiveReportingLevelEnum",
    "QAicBufferDataTypeEnum",
    "QAicBufferIoTypeEnum",
    "QAicDeviceType",
    "QAicErrorType",
    "QAicOpStatsFormatEnum",
    "QAicProgramStatus",
    "QBuffer",
    "QBufferType",
    "QDevStatus",
    "QDirection",
    "QLogLevel",
    "QStatus",
]
