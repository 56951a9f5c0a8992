"""Profiles of a number of inferences, or of all between two calls."""

import contextlib
import operator
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, SupportsIndex, overload

from qaic import _core
from qaic.rt.enums import QAicProfilingTypeEnum, QStatus, of_qaicrt
from qaic.rt.exceptions import ExceptionInit, ExceptionNullPtr
from qaic.rt.profiling import reports

Profiled = _core.RtProgram | _core.RtInferenceSet
ReportCallback = Callable[[str, QAicProfilingTypeEnum], object]

_CALLBACK_FORM = ("program", "numSamples", "callback", "type")
_FILE_FORM = ("programs", "type", "fileNamePrefix", "outputDirectory")


@of_qaicrt
class ProfilingHandle:
    """Takes samples of inferences after :meth:`start`.

    There are two forms. With ``programs``, samples are taken until :meth:`stop`, which writes the reports to
    files. With ``callback``, samples are taken until there are ``numSamples``, or until :meth:`stop`; the
    callback is then called once, on the dispatcher thread of the context. Without samples there is no file
    and no call. A handle does not keep its programs alive, and can be started again.

    Parameters
    ----------
    programs
        ``Program`` and ``InferenceSet`` objects; their indices in the list are their numbers in the reports.
    type
        Type of report. Stats buffers and device metrics need a program with statistics.
    fileNamePrefix
        Prefix of the file names; empty for ``aic-profiling``.
    outputDirectory
        Folder of the files. If only its last level is missing, it is created.
    program
        One ``Program`` or ``InferenceSet``.
    numSamples
        Number of samples of each activation.
    callback
        Called with (report, type). Stats buffers are not text, so their type needs the form with files.

    Raises
    ------
    ExceptionInit
        The type, the number of samples or the combination is invalid.
    ExceptionNullPtr
        A program or the callback is ``None``.
    """

    @overload
    def __init__(
        self,
        programs: Iterable[Profiled],
        type: QAicProfilingTypeEnum = ...,
        fileNamePrefix: str = ...,
        outputDirectory: str | os.PathLike[str] = ...,
    ) -> None: ...
    @overload
    def __init__(
        self,
        program: Profiled,
        numSamples: SupportsIndex,
        callback: ReportCallback,
        type: QAicProfilingTypeEnum = ...,
    ) -> None: ...
    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        first = arguments[0] if arguments else None
        is_file_form = isinstance(first, list | tuple) or bool(keywords.keys() & set(_FILE_FORM) - {"type"})
        given = _bound(_FILE_FORM if is_file_form else _CALLBACK_FORM, arguments, keywords)
        self._type = checked_type(given.get("type", reports.LATENCY), "ProfilingHandle")
        self._count: int | None = None
        self._callback: ReportCallback | None = None
        self._folder = Path()
        self._prefix = ""
        if is_file_form:
            programs = list(given["programs"]) if given.get("programs") is not None else []
            if not programs:
                raise init_failed("no program is given; at least one is expected")
            self._folder = Path(given.get("outputDirectory", "."))
            self._prefix = given.get("fileNamePrefix", "")
            if not isinstance(self._prefix, str) or any(mark in self._prefix for mark in "/\\\0"):
                raise init_failed(f"fileNamePrefix is {self._prefix!r}; the start of a file name is expected")
        else:
            missing = [name for name in ("program", "numSamples", "callback") if name not in given]
            if missing:
                raise TypeError(f"ProfilingHandle is missing the arguments: {', '.join(missing)}")
            programs = [given["program"]]
            self._count = operator.index(given["numSamples"])
            if self._count < 1:
                raise init_failed(f"numSamples is {self._count}; at least 1 is expected")
            self._callback = checked_callback(given["callback"], "ProfilingHandle", self._type)
        for program in programs:
            checked_program(program, "ProfilingHandle")
        self._context = programs[0]._context()  # noqa: SLF001 - for this package
        self._profiler = _core.Profiler(
            programs, count=self._count, device_stats=reports.NEEDS_DEVICE[self._type]
        )
        # Names of programs without device statistics.
        self._without_stats = (
            [facts["network"] for facts in self._profiler.programs if not facts["has_stats"]]
            if reports.NEEDS_DEVICE[self._type]
            else []
        )
        self._lock = threading.Lock()
        self._run: _Run | None = None
        self._finalizer: weakref.finalize[..., ProfilingHandle] | None = None

    @classmethod
    def Factory(cls, *args: Any, **kwargs: Any) -> Self:
        """Make an object of the class, with the arguments of its constructor."""
        return cls(*args, **kwargs)

    def start(self) -> QStatus:
        """Start to take samples.

        Returns
        -------
        QStatus
            ``QS_INVAL`` if the handle has started, or the output directory cannot be created;
            ``QS_UNSUPPORTED`` for reports of device statistics about a program without statistics.
        """
        if self._without_stats:
            return self._refuse(
                f"program {self._without_stats[0]!r} was compiled without statistics; "
                "compile it with a stats level of 40 or more",
                QStatus.QS_UNSUPPORTED,
            )
        with self._lock:
            if self._run is not None and not self._run.is_over:
                return self._refuse("start was called twice; call stop first", QStatus.QS_INVAL)
            if self._callback is None:
                try:
                    self._folder.mkdir(exist_ok=True)
                except OSError as error:
                    return self._refuse(f"outputDirectory cannot be created: {error}", QStatus.QS_INVAL)
            self._run = _Run(self._context, self._profiler, self._type, self._callback, self._count)
            try:
                self._profiler.start()
            except _core.QaicError as error:
                self._run = None
                return self._refuse(str(error), QStatus.QS_ERROR)
            self._run.begin()
            # A deleted handle must not leave a thread.
            if self._finalizer is not None:
                self._finalizer.detach()
            self._finalizer = weakref.finalize(self, self._run.abandon)
        return QStatus.QS_SUCCESS

    def stop(self) -> QStatus:
        """Stop, and report. Blocks until the callback has returned, or the files are written.

        Returns
        -------
        QStatus
            ``QS_INVAL`` if the handle was not started, ``QS_ERROR`` if a report could not be created or
            written; the log contains the reason.
        """
        with self._lock:
            run, self._run = self._run, None
            if run is None:
                return self._refuse("stop was called before start", QStatus.QS_INVAL)
            try:
                samples = run.finish()
                if samples is not None and self._callback is None:
                    for name, content in reports.files(samples, self._type, self._prefix):
                        reports.write(self._folder, name, content)
            except (OSError, _core.QaicError) as error:
                return self._refuse(f"the report was not created: {error}", QStatus.QS_ERROR)
        run.flush()
        return QStatus.QS_SUCCESS

    def _refuse(self, why: str, status: QStatus) -> QStatus:
        _core.rt_log_error(self._context, f"ProfilingHandle: {why}")
        return status


@dataclass(eq=False)
class _Run:
    """A recording between a start and its end. It has no reference to the handle."""

    _context: _core.RtContext
    _profiler: _core.Profiler
    _kind: QAicProfilingTypeEnum
    _callback: ReportCallback | None
    _count: int | None
    _ending: threading.Lock = field(init=False, default_factory=threading.Lock)
    is_over: bool = field(init=False, default=False)

    def begin(self) -> None:
        if self._count is not None:
            threading.Thread(target=self._watch, name="qaicrt profile", daemon=True).start()

    def _watch(self) -> None:
        """Report when all samples are complete."""
        if self._profiler.wait():
            try:
                self.finish()
            except _core.QaicError as error:
                _core.rt_log_error(self._context, f"ProfilingHandle: the report was not created: {error}")

    def finish(self) -> _core.Samples | None:
        """Stop, call the callback, and return the samples; ``None`` if the recording was already stopped."""
        with self._ending:
            if self.is_over:
                return None
            self.is_over = True
            self._profiler.stop()
            samples = self._profiler.drain()
            if samples.dropped:
                why = f"samples dropped, because the buffer was full: {samples.dropped}"
                _core.rt_log_error(self._context, f"ProfilingHandle: {why}")
            if self._callback is not None and len(samples):
                text = reports.report(samples, self._kind)
                dispatcher = self._context._dispatcher()  # noqa: SLF001 - for this package
                dispatcher.post(self._callback, text, self._kind)
        return samples

    def flush(self) -> None:
        if self._callback is not None:
            self._context._dispatcher().flush()  # noqa: SLF001 - for this package

    def abandon(self) -> None:
        with self._ending:
            if not self.is_over:
                self.is_over = True
                # The profiler does not run in a forked process.
                with contextlib.suppress(_core.QaicError):
                    self._profiler.stop()


def checked_program(program: object, owner: str) -> Profiled:
    """Raise an error for an object that has no inferences."""
    if program is None:
        raise _null("a program", owner)
    if not isinstance(program, _core.RtProgram | _core.RtInferenceSet):
        found = type(program).__name__
        raise TypeError(f"{owner} got type {found}; a Program or an InferenceSet is expected")
    return program


def checked_type(kind: object, owner: str) -> QAicProfilingTypeEnum:
    """Raise an error for an invalid type of report."""
    if not isinstance(kind, QAicProfilingTypeEnum):
        raise init_failed(f"type is {kind!r}; a QAicProfilingTypeEnum is expected", owner)
    return kind


def checked_callback(callback: Any, owner: str, kind: QAicProfilingTypeEnum) -> ReportCallback:
    """Raise an error for an object that cannot be called, and for a type whose reports are not text."""
    if callback is None:
        raise _null("the callback", owner)
    if not callable(callback):
        found = callback.__class__.__name__
        raise init_failed(f"callback has type {found}; a callable is expected", owner)
    if kind is reports.RAW_DEVICE_STATS:
        why = "stats buffers are files; create the ProfilingHandle with programs and an outputDirectory"
        raise init_failed(why, owner)
    checked: ReportCallback = callback
    return checked


def _bound(names: tuple[str, ...], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments by name."""
    if len(arguments) > len(names):
        raise TypeError(f"ProfilingHandle takes at most {len(names)} arguments, found {len(arguments)}")
    given = dict(zip(names, arguments, strict=False))
    for name, value in keywords.items():
        if name not in names:
            raise TypeError(f"ProfilingHandle has no argument {name!r}; it has {', '.join(names)}")
        if name in given:
            raise TypeError(f"ProfilingHandle got the argument {name!r} twice")
        given[name] = value
    return given


def init_failed(why: str, owner: str = "ProfilingHandle") -> ExceptionInit:
    """Return the exception for a handle that cannot be created."""
    return ExceptionInit(f"Initialization Exception: in object: {owner} {why}", code="call.argument")


def _null(what: str, owner: str = "ProfilingHandle") -> ExceptionNullPtr:
    text = f"Null Pointer Exception: in object: {owner} {what} is None; an object is expected"
    return ExceptionNullPtr(text, code="call.argument")
