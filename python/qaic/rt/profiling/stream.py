"""Continuous profiles, with a report in every period."""

import contextlib
import re
import threading
import time
import weakref
from typing import Any, Self

from qaic import _core
from qaic.rt.enums import QAicProfilingTypeEnum, QStatus, of_qaicrt
from qaic.rt.profiling import reports
from qaic.rt.profiling.handle import (
    Profiled,
    ReportCallback,
    checked_callback,
    checked_program,
    checked_type,
    init_failed,
)
from qaic.rt.properties import ProfilingProperties
from qaic.support.program_names import REPORTING_RATES_MS, SAMPLING_RATES

# Characters that may follow "(?" in ECMAScript; others exist only in Python.
_GROUPS = (":", "=", "!")

# Escapes that mean the same in ECMAScript and Python; other letters are refused.
_ESCAPES = frozenset("dDwWsSbBtnrfvxu0")


def compile_pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern that the whole name of a program must match.

    Character classes contain ASCII only, as in ECMAScript. Raises ValueError if the pattern is not a regular
    expression, or only one of the two languages has its features.
    """
    position = 0
    in_class = False
    while position < len(text):
        rest = text[position:]
        if rest[0] == "\\" and len(rest) > 1:
            letter = rest[1]
            if letter.isalpha() and letter not in _ESCAPES:
                raise ValueError(f"it has the escape \\{letter}, which is not supported")
            position += 2
            continue
        if in_class:
            if rest.startswith(("[:", "[.", "[=")):
                raise ValueError(
                    f"it has {rest[:2]!r} in a class, which is not supported; name the characters"
                )
            in_class = rest[0] != "]"
        elif rest[0] == "[":
            in_class = True
            # ECMAScript allows an empty class; in Python, a first bracket is a character.
            if rest.startswith(("[]", "[^]")):
                raise ValueError("it has an empty class, which is not supported")
        elif rest.startswith("(?") and not rest.startswith(_GROUPS, 2):
            raise ValueError(f"it has the group {rest[:3]!r}, which is not supported")
        elif rest.startswith(("*+", "++", "?+", "}+")):
            raise ValueError(f"it has {rest[:2]!r}, which is not a quantifier")
        position += 1
    try:
        return re.compile(text, re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"it is not a regular expression: {error}") from None


_OWNER = "StreamProfilingHandle"

#: number of reports that wait for a slow callback; later samples are in the next report
MOST_UNDELIVERED = 64


class Clock:
    """The system's clock."""

    def now_ms(self) -> float:
        """Return milliseconds since 1970."""
        return time.time_ns() / 1e6

    def wait_until(self, time_ms: float, stopped: threading.Event) -> bool:
        """Wait until a time, or until `stopped`; returns True if it was stopped."""
        return stopped.wait(max(0.0, (time_ms - self.now_ms()) / 1e3))


#: clock of new handles
CLOCK = Clock()


def next_boundary_ms(now_ms: float, period_ms: int) -> int:
    """Return the first multiple of the period after a time."""
    return (int(now_ms) // period_ms + 1) * period_ms


@of_qaicrt
class StreamProfilingHandle:
    """Takes samples of programs that can be added and removed, and reports in every period.

    Boundaries between periods are multiples of the period on the clock. At each of them, and at :meth:`stop`,
    the callback is called once, on the dispatcher thread of a context, with all samples since the last
    report, even if there are none. Reports include a removed or deleted program as long as it has samples.
    The handle does not keep its programs alive.

    Parameters
    ----------
    samplingRate
        ``"full"``, ``"half"``, ``"fourth"``, ``"eighth"``, ``"sixteenth"``, or 1, 2, 4, 8, 16. With 4 or
        ``"fourth"``, the handle samples one in four inferences of each activation.
    reportingRate
        Milliseconds of a period: 500, 1000, 2000 or 4000.
    callback
        Called with (report, type).
    properties
        A :class:`ProfilingProperties`; ``None`` for latency reports.
    name
        Name of the handle.
    regex
        ECMAScript pattern; new programs are added if their whole name matches.

    Raises
    ------
    ExceptionInit
        The rate, the type or the pattern is invalid.
    ExceptionNullPtr
        The callback is ``None``.
    """

    def __init__(  # noqa: PLR0917 - the order of the interface
        self,
        samplingRate: str | int,
        reportingRate: int,
        callback: ReportCallback,
        properties: ProfilingProperties | None = None,
        name: str = "",
        regex: str = "",
    ) -> None:
        sampling = SAMPLING_RATES.get(samplingRate, 0) if isinstance(samplingRate, str) else samplingRate
        if isinstance(sampling, bool) or sampling not in SAMPLING_RATES.values():
            known = ", ".join(SAMPLING_RATES)
            raise init_failed(
                f"samplingRate is {samplingRate!r}; {known} or 1, 2, 4, 8, 16 is expected", _OWNER
            )
        if isinstance(reportingRate, bool) or reportingRate not in REPORTING_RATES_MS:
            known = ", ".join(map(str, REPORTING_RATES_MS))
            raise init_failed(f"reportingRate is {reportingRate!r}; one of {known} ms is expected", _OWNER)
        self._type = checked_type(reports.LATENCY if properties is None else properties.type, _OWNER)
        self._callback = checked_callback(callback, _OWNER, self._type)
        self._period_ms = int(reportingRate)
        self._name = str(name)
        try:
            pattern = compile_pattern(regex) if regex else None
        except ValueError as error:
            raise init_failed(f"regex {regex!r} cannot be used: {error}", _OWNER) from None
        self._profiler = _core.Profiler(
            sampling=int(sampling), device_stats=reports.NEEDS_DEVICE[self._type], pattern=pattern
        )
        self._lock = threading.Lock()
        self._context: _core.RtContext | None = None
        self._stream: _Stream | None = None
        self._finalizer: weakref.finalize[..., StreamProfilingHandle] | None = None

    @property
    def name(self) -> str:
        """Name of the handle."""
        return self._name

    def addProgram(self, program: Profiled) -> QStatus:
        """Add a ``Program`` or an ``InferenceSet``; if the handle has started, its samples begin now.

        Returns
        -------
        QStatus
            ``QS_UNSUPPORTED`` for reports of device statistics about a program without statistics.
        """
        checked_program(program, _OWNER)
        with self._lock:
            if self._context is None:
                self._context = program._context()  # noqa: SLF001 - for this package
        try:
            number = self._profiler.add(program)
        except _core.QaicError as error:
            return self._refuse(str(error), QStatus.QS_ERROR)
        facts = self._profiler.programs[number]
        if reports.NEEDS_DEVICE[self._type] and not facts["has_stats"]:
            self._profiler.remove(program)
            return self._refuse(
                f"program {facts['network']!r} was compiled without statistics; "
                "compile it with a stats level of 40 or more",
                QStatus.QS_UNSUPPORTED,
            )
        return QStatus.QS_SUCCESS

    def removeProgram(self, program: Profiled) -> QStatus:
        """Remove a program; its samples are in the next report.

        Returns
        -------
        QStatus
            ``QS_INVAL`` if the program was not added.
        """
        checked_program(program, _OWNER)
        try:
            if not self._profiler.remove(program):
                return self._refuse("the program to remove was not added", QStatus.QS_INVAL)
        except _core.QaicError as error:
            return self._refuse(str(error), QStatus.QS_ERROR)
        return QStatus.QS_SUCCESS

    @classmethod
    def Factory(cls, *args: Any, **kwargs: Any) -> Self:
        """Make an object of the class, with the arguments of its constructor."""
        return cls(*args, **kwargs)

    def start(self) -> QStatus:
        """Start to take samples and to report.

        Returns
        -------
        QStatus
            ``QS_INVAL`` if the handle has started.
        """
        with self._lock:
            if self._stream is not None:
                return self._refuse("start was called twice; call stop first", QStatus.QS_INVAL)
            try:
                self._profiler.start()
            except _core.QaicError as error:
                return self._refuse(str(error), QStatus.QS_ERROR)
            self._stream = _Stream(
                self._log_context(), self._profiler, self._type, self._callback, self._period_ms, CLOCK
            )
            self._stream.begin()
            # A deleted handle must not leave a thread.
            if self._finalizer is not None:
                self._finalizer.detach()
            self._finalizer = weakref.finalize(self, self._stream.abandon)
        return QStatus.QS_SUCCESS

    def stop(self) -> QStatus:
        """Stop after a last report; :meth:`flushReports` waits for its delivery.

        Returns
        -------
        QStatus
            ``QS_INVAL`` if the handle was not started.
        """
        with self._lock:
            stream, self._stream = self._stream, None
            if stream is None:
                return self._refuse("stop was called before start", QStatus.QS_INVAL)
            try:
                stream.end()
            except _core.QaicError as error:
                return self._refuse(str(error), QStatus.QS_ERROR)
        return QStatus.QS_SUCCESS

    def flushReports(self) -> QStatus:
        """Wait until all reports made so far were delivered. Blocking; call it before the process ends."""
        context = self._context
        if context is not None:
            context._dispatcher().flush()  # noqa: SLF001 - for this package
        return QStatus.QS_SUCCESS

    def _log_context(self) -> _core.RtContext:
        if self._context is None:
            # Programs of any context may be added later.
            self._context = _core.RtContext()
        return self._context

    def _refuse(self, why: str, status: QStatus) -> QStatus:
        _core.rt_log_error(self._log_context(), f"{_OWNER}: {why}")
        return status


class _Stream:
    """A recording between a start and a stop. It has no reference to the handle."""

    def __init__(  # noqa: PLR0917 - made in one place
        self,
        context: _core.RtContext,
        profiler: _core.Profiler,
        kind: QAicProfilingTypeEnum,
        callback: ReportCallback,
        period_ms: int,
        clock: Clock,
    ) -> None:
        self._context = context
        self._profiler = profiler
        self._kind = kind
        self._callback = callback
        self._period_ms = period_ms
        self._clock = clock
        self._stopped = threading.Event()
        self._room = threading.Semaphore(MOST_UNDELIVERED)
        self._thread = threading.Thread(target=self._serve, name="qaicrt profile reports", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Stop after a last report."""
        self._stopped.set()
        self._thread.join()
        self._profiler.stop()
        self._report(waits=False)

    def abandon(self) -> None:
        """Stop without a report."""
        self._stopped.set()
        # The profiler does not run in a forked process.
        with contextlib.suppress(_core.QaicError):
            self._profiler.stop()

    def _serve(self) -> None:
        boundary = next_boundary_ms(self._clock.now_ms(), self._period_ms)
        while not self._clock.wait_until(boundary, self._stopped):
            if self._room.acquire(blocking=False):
                self._report(waits=True)
            # Missed periods are skipped. The clock may have been set back.
            following = next_boundary_ms(self._clock.now_ms(), self._period_ms)
            boundary = following + self._period_ms if following == boundary else following

    def _report(self, *, waits: bool) -> None:
        """Call the callback; with `waits`, the report counts among the undelivered ones."""
        try:
            samples = self._profiler.drain()
            if samples.dropped:
                why = f"samples dropped, because the buffer was full: {samples.dropped}"
                _core.rt_log_error(self._context, f"{_OWNER}: {why}")
            text = reports.report(samples, self._kind)
        except _core.QaicError as error:
            _core.rt_log_error(self._context, f"{_OWNER}: a report was not created: {error}")
            if waits:
                self._room.release()
            return
        dispatcher = self._context._dispatcher()  # noqa: SLF001 - for this package
        if not dispatcher.post(self._deliver, text, waits) and waits:
            self._room.release()

    def _deliver(self, text: str, waited: bool) -> None:  # noqa: FBT001 - called by the dispatcher
        if waited:
            self._room.release()
        self._callback(text, self._kind)
