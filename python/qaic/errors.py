"""The exception tree of openqaic.

Every class derives from :class:`QaicError` and from the corresponding built-in class (an input error is also
a ``ValueError``). Every exception has a stable ``code``, a ``context`` dictionary and ``hints``; see
:class:`QaicError`.
"""

from qaic import _core
from qaic._core import (
    CompileError,
    DeviceBusyError,
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    DeviceNotFoundError,
    DeviceTimeoutError,
    InferenceError,
    InputError,
    InputShapeError,
    InputTypeError,
    InternalError,
    MissingInputError,
    OptionConflictError,
    OptionError,
    QaicError,
    QpcError,
    QpcFormatError,
    QpcLimitError,
    QpcVersionError,
    StateError,
    StatsError,
    StatsFormatError,
    StatsMismatchError,
    StatsVersionError,
    UnknownOptionError,
    UnknownStatsLayoutError,
)

# The function that pickled exceptions name.
_rebuild = vars(_core)["_rebuild"]

__all__ = [
    "CompileError",
    "DeviceBusyError",
    "DeviceError",
    "DeviceLostError",
    "DeviceMemoryError",
    "DeviceNotFoundError",
    "DeviceTimeoutError",
    "InferenceError",
    "InputError",
    "InputShapeError",
    "InputTypeError",
    "InternalError",
    "MissingInputError",
    "OptionConflictError",
    "OptionError",
    "QaicError",
    "QpcError",
    "QpcFormatError",
    "QpcLimitError",
    "QpcVersionError",
    "StateError",
    "StatsError",
    "StatsFormatError",
    "StatsMismatchError",
    "StatsVersionError",
    "UnknownOptionError",
    "UnknownStatsLayoutError",
]
