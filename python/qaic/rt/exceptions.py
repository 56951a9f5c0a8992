"""Failures: exceptions of constructors and of the few calls without a status, and statuses with a reason."""

from typing import Any, Self

from qaic._core import QaicError, RtContext, rt_log_error
from qaic.rt.enums import QStatus, of_qaicrt


@of_qaicrt
class ExceptionInit(QaicError, RuntimeError):
    """An object could not be created."""


@of_qaicrt
class ExceptionRuntime(QaicError, RuntimeError):
    """A call on a living object failed."""


@of_qaicrt
class ExceptionNullPtr(QaicError, RuntimeError):
    """Memory could not be allocated, or a required object is missing."""


class Refusing:
    """An object whose calls return a status; the log of its context contains the reason of a failure."""

    _context: RtContext | None

    @classmethod
    def Factory(cls, *args: Any, **kwargs: Any) -> Self:
        """Make an object of the class, with the arguments of its constructor."""
        return cls(*args, **kwargs)

    def _log_context(self) -> RtContext:
        if self._context is None:
            # Programs of any context may be added later.
            self._context = RtContext()
        return self._context

    def _refuse(self, why: str, status: QStatus) -> QStatus:
        rt_log_error(self._log_context(), f"{type(self).__name__}: {why}")
        return status
