"""Recordings of ``qaic-runner``, and their files.

The compiled module keeps samples until they are fetched. Samples with buffers of the device are fetched and
written while the program runs, so that memory does not grow with their number. Other samples are small and
are fetched at the end.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

from qaic import _core, rt
from qaic.cli.console import print_line, print_message
from qaic.cli.runner.command_line import Profiling
from qaic.cli.runner.latencies import RunProgress, round_trips
from qaic.cli.runner.outputs import replace, replace_content, writable_folder
from qaic.errors import InputError
from qaic.options.rows.runner import STREAMED
from qaic.qpc import Qpc
from qaic.rt.profiling.reports import LATENCY, RAW_DEVICE_STATS, device_report, files
from qaic.support.program_names import PREFIX, summary_name, trace_name

#: names of files and their contents
_Named: TypeAlias = Iterator[tuple[str, str | bytes]]
#: types that need the buffers of the device
_OF_DEVICE = ("stats", "raw_device_stats")
#: most inferences of each activation whose device metrics are shown
_METRIC_SAMPLES = 20
#: number of the only program of a run
_PROGRAM = 0


def statistics_of(container: Path) -> _core.StatsDescriptor | None:
    """Read the descriptor of the device's buffers; ``None`` for a program without such buffers."""
    qpc = Qpc(container)
    return _core.StatsDescriptor.of_qpc(qpc.compiled) if qpc.is_program else None


def checked_folder(wanted: Profiling, statistics: _core.StatsDescriptor | None) -> Path:
    """Create the folder of the files if the program has the required buffers.

    Raises InputError if the profile needs buffers of the device and the program has none, and OSError if the
    folder cannot be created or is not writable.
    """
    kind = next((kind for kind in wanted.types if kind in _OF_DEVICE), None)
    if kind is not None and statistics is None:
        raise InputError(
            f"--aic-profiling-type {kind}: the program has no device statistics",
            code="runner.no_statistics",
            hints=("compile it with -stats-level=40 or more; 70 and more measure operators too",),
        )
    return writable_folder(wanted.folder)


class _Recorder(NamedTuple):
    """A recorder of one type of profile."""

    profiler: _core.Profiler
    #: reports the results so far, repeatedly while the program runs
    fetch: Callable[[], None]
    #: reports the rest, after the profiler has stopped
    finish: Callable[[], None]
    is_stream: bool = False


@contextmanager
def device_metrics(inference_set: rt.InferenceSet) -> Iterator[_core.Profiler]:
    """Record device metrics of the first inferences of a run in the block; yields their profiler."""
    profiler = _core.Profiler([inference_set], count=_METRIC_SAMPLES, device_stats=True)

    def serve() -> None:
        # Inferences after the last sample need no check.
        profiler.wait()
        profiler.stop()

    thread = threading.Thread(target=serve, name="qaic-runner-metrics", daemon=True)
    profiler.start()
    thread.start()
    try:
        yield profiler
    finally:
        profiler.stop()
        thread.join()


def metric_lines(profiler: _core.Profiler) -> list[str]:
    """Return the lines of the report on device metrics; none if nothing was measured."""
    samples = profiler.drain()
    if not samples.device_kpis(0):
        return []
    # The vendor's form, including spaces at the ends of lines.
    return ["Device Performance: ", *device_report(samples, 0).splitlines()]


class Recording:
    """Records a run inside a ``with`` block; `finish` then writes the rest.

    Without `finish`, for example after a failure, only complete files exist. `statistics` is the descriptor
    of the device's buffers, if the program has any. `progress` ends the run if a file cannot be written.
    """

    def __init__(
        self,
        inference_set: rt.InferenceSet,
        wanted: Profiling,
        folder: Path,
        statistics: _core.StatsDescriptor | None,
        progress: RunProgress,
    ) -> None:
        self._set = inference_set
        self._wanted = wanted
        self._statistics = statistics
        self._progress = progress
        self._folder = folder
        # Set if the run has failed, which then does not wait for unfinished files.
        self._abandoned = threading.Event()
        self._recorders = [recorder for kind in wanted.types for recorder in self._recorders_of(kind)]
        self._is_started = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="qaic-runner-profiling", daemon=True)

    def _recorders_of(self, kind: str) -> list[_Recorder]:
        if kind in _OF_DEVICE:
            profiler = self._profiler(is_stream=False, device_stats=True)
            contents = self._buffers if kind == "raw_device_stats" else self._summaries
            write = partial(self._write_each, profiler, contents)
            return [_Recorder(profiler, write, write)]
        is_stream, is_trace = kind in STREAMED, kind.startswith("trace")
        profiler = self._profiler(is_stream=is_stream, device_stats=False if is_trace else None)
        finish = partial(self._write_trace if is_trace else self._write_latencies, profiler)
        # Small samples are fetched at the end.
        main = _Recorder(profiler, lambda: None, finish, is_stream)
        if not is_stream:
            return [main]
        reported = self._profiler(is_stream=True, device_stats=False)

        def report(*, always: bool) -> None:
            if len(samples := reported.drain()) or always:
                print_line(f"{kind}: {round_trips(samples)}")

        reports = _Recorder(reported, partial(report, always=True), partial(report, always=False), is_stream)
        return [main, reports]

    def _write_each(self, profiler: _core.Profiler, contents: Callable[[_core.Samples], _Named]) -> None:
        """Write a file for each inference, until the run has failed."""
        for name, content in contents(_drained(profiler)):
            if self._abandoned.is_set():
                return
            replace_content(self._folder / name, _encoded(content))

    @staticmethod
    def _buffers(samples: _core.Samples) -> _Named:
        return files(samples, RAW_DEVICE_STATS, PREFIX)

    def _summaries(self, samples: _core.Samples) -> _Named:
        assert self._statistics is not None  # noqa: S101  # `checked_folder` has looked
        for number, sample in enumerate(samples.times()):
            if (content := samples.stats(number)) is not None:
                buffer = _core.StatsBuffer(content, self._statistics)
                name = summary_name(_PROGRAM, sample["activation"], sample["inference"])
                yield name, _core.stats_summary(buffer, self._statistics)

    def _write_latencies(self, profiler: _core.Profiler) -> None:
        for name, content in files(_drained(profiler), LATENCY, PREFIX):
            replace_content(self._folder / name, _encoded(content))

    def _write_trace(self, profiler: _core.Profiler) -> None:
        samples = _drained(profiler)
        if len(samples):
            replace(
                self._folder / trace_name(_PROGRAM),
                lambda path: _core.stats_trace([], path=path, host_samples=samples),
            )

    def _profiler(self, *, is_stream: bool, device_stats: bool | None) -> _core.Profiler:
        if is_stream:
            return _core.Profiler([self._set], sampling=self._wanted.sampling, device_stats=device_stats)
        return _core.Profiler(
            [self._set], first=self._wanted.first, count=self._wanted.samples, device_stats=device_stats
        )

    def __enter__(self) -> None:
        if not self._wanted.delay_s:
            self._start()
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._abandoned.set()
        self._ended.set()
        self._thread.join()
        for recorder in self._recorders:
            recorder.profiler.stop()

    def finish(self, completed: int) -> None:
        """Write the remaining files. Blocking.

        `completed` is the number of inferences of the run. Raises OSError if a file cannot be written.
        """
        if not self._is_started:
            print_message("warning", "the run ended before --aic-profiling-start-delay; nothing was recorded")
            return
        if completed <= self._wanted.first and not all(recorder.is_stream for recorder in self._recorders):
            print_message(
                "warning",
                f"--aic-profiling-start-iter {self._wanted.first} is after the last of "
                f"{completed} inferences, which are numbered from 0; nothing was recorded",
            )
        for recorder in self._recorders:
            recorder.finish()

    def _start(self) -> None:
        self._is_started = True
        for recorder in self._recorders:
            recorder.profiler.start()

    def _serve(self) -> None:
        try:
            if not self._is_started:
                if self._ended.wait(self._wanted.delay_s):
                    return
                self._start()
            self._fetch_until_ended()
        except BrokenPipeError:
            # Standard output is closed. The run continues, and its last lines fail in the same way.
            return
        except BaseException as error:  # noqa: BLE001  # raised where the run is
            self._progress.fault = error

    def _fetch_until_ended(self) -> None:
        duration_s, period_s = self._wanted.duration_s, self._wanted.period_s
        stop_s = None if duration_s is None else time.monotonic() + duration_s
        active = list(self._recorders)
        while True:
            # Reports are due at multiples of the period.
            left_s = period_s - time.time() % period_s
            if stop_s is not None:
                left_s = min(left_s, max(0.0, stop_s - time.monotonic()))
            if self._ended.wait(left_s):
                return
            is_over = stop_s is not None and time.monotonic() >= stop_s
            for recorder in active:
                if is_over and recorder.is_stream:
                    recorder.profiler.stop()
                recorder.fetch()
            if is_over:
                active = [recorder for recorder in active if not recorder.is_stream]
                stop_s = None


def _drained(profiler: _core.Profiler) -> _core.Samples:
    samples = profiler.drain()
    if samples.dropped:
        print_message("note", f"inferences not recorded, because the buffer was full: {samples.dropped}")
    return samples


def _encoded(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content
