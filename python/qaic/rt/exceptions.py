"""Exceptions of constructors and of the few calls without a status."""

from qaic._core import QaicError
from qaic.rt.enums import of_qaicrt


@of_qaicrt
class ExceptionInit(QaicError, RuntimeError):
    """An object could not be created."""


@of_qaicrt
class ExceptionRuntime(QaicError, RuntimeError):
    """A call on a living object failed."""


@of_qaicrt
class ExceptionNullPtr(QaicError, RuntimeError):
    """Memory could not be allocated, or a required object is missing."""
