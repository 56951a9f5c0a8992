"""A benchmark that keeps an inference set busy.

The inferences run in the compiled module, without Python code between them unless there is a completion
callback. Callbacks run on the dispatcher thread of the context; live reports come from a thread of the
benchmark.
"""

import math
import operator
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Self, SupportsFloat, SupportsIndex

from qaic import _core
from qaic.rt.dispatch import Dispatcher
from qaic.rt.enums import LiveReportingLevelEnum, QAicOpStatsFormatEnum, QStatus, of_qaicrt
from qaic.rt.exceptions import ExceptionInit, ExceptionNullPtr
from qaic.rt.profiling.reports import operations_report
from qaic.rt.programs import ExecObjInfo
from qaic.rt.properties import (
    BenchmarkProperties,
    InferenceSetProperties,
    QAicProgramProperties,
    QAicQueueProperties,
)
from qaic.rt.sequences import vector_char
from qaic.support.text import counted

CompletionCallback = Callable[[_core.RtExecObj, ExecObjInfo], object]
OpStatsCallback = Callable[[vector_char, int, QAicOpStatsFormatEnum, int, ExecObjInfo], object]

#: number of completions that wait for a slow callback before the benchmark also waits
_UNDELIVERED = 1024

#: largest number of 31 bits; threads cannot wait much longer
_LONGEST_PERIOD_MS = 2**31 - 1


@of_qaicrt
class InferenceBenchmarkSet:
    """Runs many inferences of one container on the same buffers and measures their rate.

    Parameters
    ----------
    context
        The context of the device.
    qpc
        The container.
    dev
        Device id; ``None``: the device in ``properties``, or the first device of the context.
    setSize
        Exec objects of each activation.
    numActivations
        Activations of the program.
    inferenceDataVector
        A buffer for each binding, inputs then outputs, for all inferences; or an ``InferenceVector``.
    properties
        Program and queue properties.

    Raises
    ------
    ExceptionInit
        The number of buffers is not the number of bindings.
    """

    def __init__(  # noqa: PLR0917 - the order of the interface
        self,
        context: _core.RtContext,
        qpc: _core.RtQpc,
        dev: int | None = None,
        setSize: int | None = None,
        numActivations: int | None = None,
        inferenceDataVector: Sequence[_core.RtQBuffer] | _core.RtInferenceVector | None = None,
        properties: BenchmarkProperties | None = None,
    ) -> None:
        # These arguments are required. They have defaults because they follow an argument with a default.
        if setSize is None or numActivations is None or inferenceDataVector is None:
            names = ("setSize", "numActivations", "inferenceDataVector")
            given = (setSize, numActivations, inferenceDataVector)
            missing = [name for name, value in zip(names, given, strict=True) if value is None]
            raise TypeError(f"InferenceBenchmarkSet is missing the arguments: {', '.join(missing)}")
        for name, value in (("context", context), ("qpc", qpc)):
            if value is None:
                raise ExceptionNullPtr(
                    f"Null Pointer Exception: in object: InferenceBenchmarkSet {name} is None; "
                    "an object is expected",
                    code="call.argument",
                )
        if isinstance(inferenceDataVector, _core.RtInferenceVector):
            inferenceDataVector = inferenceDataVector.getVector()
        program = qpc.getInfo().program[0]
        expected = len(program.bufferMappings)
        self._buffers = list(inferenceDataVector)
        if len(self._buffers) != expected:
            raise ExceptionInit(
                f"Initialization Exception: in object: InferenceBenchmarkSet inferenceDataVector has "
                f"{counted(len(self._buffers), 'buffer')}; the program has {counted(expected, 'binding')}",
                code="call.argument",
            )
        self._context = context
        self._qpc = qpc
        self._dev = dev
        self._set_size = operator.index(setSize)
        self._activations = operator.index(numActivations)
        self._properties = properties or BenchmarkProperties()
        self._program_name = program.name
        self._batch_size = program.batchSize
        self._runner: _core.RtBenchmark | None = None
        # A run holds the lock; no thread waits for it.
        self._busy = threading.Lock()
        self._completion: CompletionCallback | None = None
        self._handles: _core.RtInferenceSet | None = None
        self._op_stats: tuple[OpStatsCallback, int, int, QAicOpStatsFormatEnum] | None = None
        self._reporting: LiveReportingLevelEnum | None = None
        self._profiling: LiveReportingLevelEnum | None = None
        self._period_s = 1.0
        self._last = (0, 0.0, 0)

    @classmethod
    def Factory(cls, *args: Any, **kwargs: Any) -> Self:
        """Make an object of the class, with the arguments of its constructor."""
        return cls(*args, **kwargs)

    def enable(self) -> QStatus:
        """Load and activate the program. Blocking.

        Returns
        -------
        QStatus
            ``QS_ERROR`` if the device has no room; the log contains the reason.
        """
        if not self._busy.acquire(blocking=False):
            return self._refuse("enable was called while a benchmark runs", QStatus.QS_ERROR)
        try:
            if self._runner is None:
                properties = InferenceSetProperties(
                    self._properties.programProperties, self._properties.queueProperties
                )
                handles = _core.RtInferenceSet(
                    self._context, self._qpc, self._dev, self._set_size, self._activations, properties
                )
                self._runner = _core.RtBenchmark(handles, self._buffers)
                self._handles = handles
        except (ExceptionInit, ExceptionNullPtr):
            # The log contains the reason of the failure.
            return QStatus.QS_ERROR
        finally:
            self._busy.release()
        return QStatus.QS_SUCCESS

    def disable(self) -> QStatus:
        """Release the program and its cores.

        Returns
        -------
        QStatus
            ``QS_ERROR`` during a run; nothing changes.
        """
        if not self._busy.acquire(blocking=False):
            return self._refuse("disable was called while a benchmark runs", QStatus.QS_ERROR)
        try:
            self._runner = self._handles = None
        finally:
            self._busy.release()
        return QStatus.QS_SUCCESS

    def run(self, numInferencesToRun: SupportsIndex) -> QStatus:
        """Run a number of inferences. Blocks until all have ended.

        Returns
        -------
        QStatus
            ``QS_INVAL`` for a number below 1; ``QS_ERROR`` or another status if an inference failed.
        """
        count = operator.index(numInferencesToRun)
        if count < 1:
            return self._refuse(f"numInferencesToRun is {count}; at least 1 is expected", QStatus.QS_INVAL)
        return self._measure(count, None)

    def runForDuration(self, duration: SupportsFloat) -> QStatus:
        """Start inferences for ``duration`` seconds. Blocks until all have ended.

        Returns
        -------
        QStatus
            As :meth:`run`.
        """
        seconds = float(duration)
        if not (seconds > 0 and math.isfinite(seconds)):
            return self._refuse(
                f"the duration is {duration} s; a number above 0 is expected", QStatus.QS_INVAL
            )
        return self._measure(None, seconds)

    def getInfCompleted(self) -> list[int]:
        """Return the number of inferences of the current or last run, by activation."""
        return self._runner.completed() if self._runner else [0] * self._activations

    def getLastRunStats(self) -> tuple[int, float, int, int]:
        """Return (inferences, inferences per second, microseconds, batch size) of the last run.

        The rate counts a batch as one inference.
        """
        return (*self._last, self._batch_size)

    def enableExecObjCompletionCallback(self, callback: CompletionCallback) -> QStatus:
        """Call ``callback(ExecObj, ExecObjInfo)`` after each inference, from the next run on.

        All inferences write the same buffers, so a callback finds the results of the latest inference. A slow
        callback makes the benchmark slower.
        """
        if not callable(callback):
            raise TypeError(f"callback has type {type(callback).__name__}; a callable is expected")
        self._completion = callback
        return QStatus.QS_SUCCESS

    def disableExecObjCompletionCallback(self) -> None:
        """Stop the calls after inferences, from the next run on."""
        self._completion = None

    def enableOpStatsCallback(
        self,
        callback: OpStatsCallback,
        initialSampleIndex: SupportsIndex,
        numSamplesPerProgramInstance: SupportsIndex,
        format: QAicOpStatsFormatEnum,  # noqa: A002 - the name of the interface
    ) -> QStatus:
        """Call ``callback(report, size, format, sample, ExecObjInfo)`` after each run.

        There is a call for each selected inference. The report is a text summary, or a Chrome trace as JSON;
        ``size`` is its number of bytes and ``sample`` the number of the inference. ``execObjIndex`` is always
        0. The calls are on the dispatcher thread. A program without statistics causes no calls.

        Parameters
        ----------
        callback
            Called from the next run on.
        initialSampleIndex
            Number of inferences without a report at the start of a run.
        numSamplesPerProgramInstance
            Number of reports of each activation.
        format
            Form of the reports.

        Returns
        -------
        QStatus
            ``QS_INVAL`` for a bad format or sample range.
        """
        if not callable(callback):
            raise TypeError(f"callback has type {type(callback).__name__}; a callable is expected")
        if not isinstance(format, QAicOpStatsFormatEnum):
            return self._refuse(f"{format!r} is not a QAicOpStatsFormatEnum", QStatus.QS_INVAL)
        first, count = operator.index(initialSampleIndex), operator.index(numSamplesPerProgramInstance)
        if first < 0 or count < 1:
            why = f"found samples {first} to {first + count - 1}, expected at least one from 0"
            return self._refuse(why, QStatus.QS_INVAL)
        self._op_stats = (callback, first, count, format)
        return QStatus.QS_SUCCESS

    def disableOpStatsCallback(self) -> QStatus:
        """Stop the reports of operator statistics, from the next run on."""
        self._op_stats = None
        return QStatus.QS_SUCCESS

    def setLiveReporting(
        self,
        level: LiveReportingLevelEnum = LiveReportingLevelEnum.LIVE_REPORTING_SUMMARY,
        reportingPeriodMs: SupportsIndex = 1000,
    ) -> QStatus:
        """Print a summary line to standard output in every period of a run, from the next run on.

        Returns
        -------
        QStatus
            ``QS_INVAL`` for an unknown level or a period that is not from 1 ms to 24 days.
        """
        period = operator.index(reportingPeriodMs)
        if not isinstance(level, LiveReportingLevelEnum) or not 1 <= period <= _LONGEST_PERIOD_MS:
            why = (
                f"live reporting at level {level!r} every {period} ms was requested; "
                f"a LiveReportingLevelEnum and 1 to {_LONGEST_PERIOD_MS} ms are expected"
            )
            return self._refuse(why, QStatus.QS_INVAL)
        self._reporting = level
        self._period_s = period / 1000
        return QStatus.QS_SUCCESS

    def setLiveProfilingLevel(self, level: LiveReportingLevelEnum) -> QStatus:
        """Add the mean time from submission to completion to each live report.

        Returns
        -------
        QStatus
            ``QS_ERROR`` if live reporting is off, ``QS_INVAL`` for an unknown level.
        """
        if not isinstance(level, LiveReportingLevelEnum):
            return self._refuse(f"{level!r} is not a LiveReportingLevelEnum", QStatus.QS_INVAL)
        if self._reporting is None:
            return self._refuse(
                "live profiling needs live reporting; call setLiveReporting", QStatus.QS_ERROR
            )
        self._profiling = level
        return QStatus.QS_SUCCESS

    @staticmethod
    def initDefaultProperties(properties: BenchmarkProperties) -> None:
        """Write the defaults into ``properties``."""
        properties.programProperties = QAicProgramProperties()
        properties.queueProperties = QAicQueueProperties()

    def _refuse(self, why: str, status: QStatus) -> QStatus:
        _core.rt_log_error(self._context, f"InferenceBenchmarkSet: {why}")
        return status

    def _measure(self, count: int | None, seconds: float | None) -> QStatus:
        if not self._busy.acquire(blocking=False):
            return self._refuse("a benchmark is already running; wait until it ends", QStatus.QS_ERROR)
        try:
            runner = self._runner
            if runner is None:
                return self._refuse("the set is not enabled; call enable first", QStatus.QS_ERROR)
            op_stats = self._op_stats
            profiler = self._profiler()
            reporter = self._reporter(runner)
            courier = self._courier(runner)
            try:
                status, completed, elapsed_ns = runner.run(
                    count, seconds, courier.completed if courier else None
                )
            finally:
                # Ctrl-C may interrupt either thread; both must end with the run.
                if reporter:
                    reporter.stop()
                if profiler:
                    profiler.stop()
            if profiler and op_stats:
                self._tell_op_stats(profiler.drain(), op_stats[0], op_stats[3])
            if courier:
                courier.flush()
            if status is QStatus.QS_SUCCESS:
                rate = completed * 1e9 / elapsed_ns if elapsed_ns else 0.0
                self._last = (completed, rate, elapsed_ns // 1000)
            return status
        finally:
            self._busy.release()

    def _reporter(self, runner: _core.RtBenchmark) -> "_Reporter | None":
        if self._reporting is None:
            return None
        in_flight = self._set_size * self._activations if self._profiling else None
        detailed = self._reporting is LiveReportingLevelEnum.LIVE_REPORTING_DETAILED
        reporter = _Reporter(runner, self._batch_size, in_flight, detailed=detailed)
        reporter.start(self._period_s)
        return reporter

    def _profiler(self) -> _core.Profiler | None:
        """Create the profiler of a run with operator statistics."""
        if self._op_stats is None or self._handles is None:
            return None
        _, first, count, _ = self._op_stats
        profiler = _core.Profiler([self._handles], first=first, count=count, device_stats=None)
        profiler.start()
        return profiler

    def _tell_op_stats(
        self, samples: _core.Samples, callback: OpStatsCallback, form: QAicOpStatsFormatEnum
    ) -> None:
        dispatcher = self._context._dispatcher()  # noqa: SLF001 - for this package
        as_trace = form is QAicOpStatsFormatEnum.QAIC_OPSTATS_FORMAT_JSON
        for index, sample in enumerate(samples.times()):
            try:
                text = operations_report(samples, index, int(sample["program"]), as_trace=as_trace)
            except _core.QaicError as error:
                self._refuse(f"no report was created: {error}", QStatus.QS_ERROR)
                continue
            if text is not None and self._runner is not None:
                activation = int(sample["activation"])
                program_id = self._runner.program_id(activation)
                info = ExecObjInfo(0, activation, program_id, self._program_name, QStatus.QS_SUCCESS)
                report = vector_char(text)
                dispatcher.post(callback, report, len(report), form, int(sample["inference"]), info)
        dispatcher.flush()

    def _courier(self, runner: _core.RtBenchmark) -> "_Courier | None":
        if self._completion is None:
            return None
        infos = [
            ExecObjInfo(
                handle // self._activations, activation, program_id, self._program_name, QStatus.QS_SUCCESS
            )
            for handle in range(self._set_size * self._activations)
            for activation, program_id in [(handle % self._activations, runner.program_id(handle))]
        ]
        dispatcher = self._context._dispatcher()  # noqa: SLF001 - for this package
        return _Courier(dispatcher, self._completion, runner, infos)


class _Courier:
    """Passes completions to a callback on the dispatcher thread, with a limited queue."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        callback: CompletionCallback,
        runner: _core.RtBenchmark,
        infos: list[ExecObjInfo],
    ) -> None:
        self._dispatcher = dispatcher
        self._callback = callback
        self._runner = runner
        self._infos = infos
        self._room = threading.Semaphore(_UNDELIVERED)
        # The dispatcher thread itself must not wait for room.
        self._waits = not dispatcher.is_current()

    def completed(self, handle: int) -> None:
        if self._waits:
            self._room.acquire()
        if not self._dispatcher.post(self._deliver, handle):
            self._room.release()

    def flush(self) -> None:
        self._dispatcher.flush()

    def _deliver(self, handle: int) -> None:
        self._room.release()
        info = self._infos[handle]
        # A copy, which a client may keep or change.
        copy = ExecObjInfo(
            info.execObjIndex, info.activationIndex, info.programId, info.programName, info.status
        )
        self._callback(self._runner.exec_obj(handle), copy)


class _Reporter:
    """Prints the progress of a run in every period and at its end."""

    def __init__(
        self, runner: _core.RtBenchmark, batch_size: int, in_flight: int | None, *, detailed: bool
    ) -> None:
        self._runner = runner
        self._batch_size = batch_size
        self._in_flight = in_flight
        self._detailed = detailed
        self._stopped = threading.Event()
        self._began = time.monotonic()
        # Time of the last line, and its number of inferences.
        self._last = (self._began, 0)
        self._thread: threading.Thread | None = None

    def start(self, period_s: float) -> None:
        self._thread = threading.Thread(
            target=self._serve, args=(period_s,), name="qaicrt live report", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread:
            self._thread.join()

    def _serve(self, period_s: float) -> None:
        going = True
        while going:
            going = not self._stopped.wait(period_s)
            try:
                sys.stdout.write(self._line() + "\n")
                sys.stdout.flush()
            except (OSError, ValueError):
                # Standard output is closed; the benchmark continues without reports.
                return

    def _line(self) -> str:
        counts = self._runner.completed()
        now, total = time.monotonic(), sum(counts)
        before, reported = self._last
        self._last = (now, total)
        period_s = max(now - before, 1e-9)
        rate = (total - reported) / period_s
        line = (
            f"InferenceCnt {total} TotalDuration {int((now - self._began) * 1e6)}us "
            f"BatchSize {self._batch_size} Inf/Sec {rate * self._batch_size:.3f}"
        )
        if self._in_flight is not None and rate:
            # All exec objects are busy all the time, so the mean follows from the rate (Little's law).
            line += f" HostRoundTripUs {self._in_flight / rate * 1e6:.1f}"
        if self._detailed:
            line += " Activations " + ",".join(map(str, counts))
        return line
