"""What constructors and the few calls without a status raise."""

from qaic._core import QaicError


class ExceptionInit(QaicError, RuntimeError):
    """An object could not be made."""


class ExceptionRuntime(QaicError, RuntimeError):
    """A call on a living object failed."""


class ExceptionNullPtr(QaicError, RuntimeError):
    """Memory could not be had, or an object that is needed is missing."""
