"""Recorded inferences of a session: times on the host, buffers of the device, and their trace."""

import contextlib
import html
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qaic import _core, page, stats
from qaic.attribute_dict import AttributeDict
from qaic.errors import OptionError, StateError
from qaic.rt.profiling import reports
from qaic.runtime.latency import PERCENTILES, Metrics, summarize
from qaic.stats import StatsBuffer
from qaic.stats.reports import REPORTS, Capture, HostLatencies, Report
from qaic.stats.reports.time.disturbance import ProcessorWaits
from qaic.support.atomic_io import write_replacing
from qaic.support.program_names import PREFIX, SAMPLING_RATES, trace_name
from qaic.support.text import counted, escape_html, escape_lines

_LARGEST_COUNT: Final = 2**63 - 1
_FORMATS: Final = ("json", "perfetto")
#: suffixes of file names for Perfetto's format
_PERFETTO_SUFFIXES: Final = frozenset({".perfetto-trace", ".pftrace", ".pb"})

#: stage of an inference -> its name for people, and the times of its start and end
_STAGES: Final[Mapping[str, tuple[str, str]]] = {
    "waiting": ("enqueued_ns", "begun_ns"),
    "inputs": ("begun_ns", "inputs_ready_ns"),
    "execution": ("inputs_ready_ns", "executed_ns"),
    "outputs": ("executed_ns", "outputs_ready_ns"),
    "completion": ("outputs_ready_ns", "completed_ns"),
}


class Stages(AttributeDict[float]):
    """Mean seconds of the parts of an inference."""

    waiting: float
    inputs: float
    execution: float
    outputs: float
    completion: float


class Profile:
    """Recording of a ``with session.profile()`` block. The data is available after the block.

    Parameters
    ----------
    qpc
        The container.
    device
        True to keep the device's stats buffers; ``None``: only if a stats level was set.
    first, samples, sampling
        As for :meth:`qaic.Session.profile`.

    Raises
    ------
    OptionError
        A number is out of range.
    StateError
        ``device`` is true, and the program has no stats buffers.
    """

    def __init__(
        self,
        qpc: _core.Qpc,
        *,
        device: bool | None = None,
        first: int = 0,
        samples: int | None = None,
        sampling: int = 1,
    ) -> None:
        _check_count("first", first, 0)
        if samples is not None:
            _check_count("samples", samples, 1)
        if sampling not in SAMPLING_RATES.values():
            raise OptionError(
                f"sampling is {sampling!r}; one in 1, 2, 4, 8 or 16 inferences is expected",
                code="profile.sampling",
            )
        if device and _core.StatsDescriptor.of_qpc(qpc) is None:
            raise StateError(
                "the program has no device statistics",
                code="profile.no_device",
                hints=("compile it with stats_level=40 or more; 70 and more measure operators too",),
            )
        self._profiler = _core.Profiler(first=first, count=samples, sampling=sampling, device_stats=device)
        self._recorded: _core.Samples | None = None
        self._device: tuple[StatsBuffer, ...] | None = None
        self._waits: ProcessorWaits | None = None

    # --- recording, by the session --------------------------------------------------------------------------

    def add(self, program: _core.InferenceSet) -> None:
        """Also record the inferences of a program."""
        self._profiler.add(program)

    def begin(self) -> None:
        """Begin to record."""
        self._begun = time.perf_counter(), _waited_ns()
        self._profiler.start()

    def end(self) -> None:
        """End recording, and keep the data."""
        self._profiler.stop()
        began_s, before = self._begun
        if after := _waited_ns():
            longest_ns = max(waited - before.get(thread, 0) for thread, waited in after.items())
            self._waits = ProcessorWaits(time.perf_counter() - began_s, longest_ns / 1e9)
        self._recorded = self._profiler.drain()

    # --- results --------------------------------------------------------------------------------------------

    @property
    def is_recording(self) -> bool:
        """True while the block has not ended."""
        return self._recorded is None

    @property
    def samples(self) -> NDArray[np.void]:
        """One row for each inference, in the order of their ends; read-only.

        Columns ``enqueued_ns``, ``begun_ns``, ``inputs_ready_ns``, ``executed_ns``, ``outputs_ready_ns`` and
        ``completed_ns`` are nanoseconds of one clock; ``program`` (which counts loads of the session),
        ``activation`` and ``inference`` identify the inference, and ``queue_depth`` and ``in_queue`` describe
        the queue.

        Raises
        ------
        qaic.errors.StateError
            The block has not ended, or contains no complete inference; also for all properties below.
        """
        return self._samples().times()

    @property
    def dropped(self) -> int:
        """Number of inferences beyond the limit of 1048576 inferences or 1 GiB of buffers."""
        return self._samples().dropped

    @property
    def latencies_s(self) -> NDArray[np.float64]:
        """Seconds from the call to the outputs, for each inference."""
        times = self.samples
        latencies: NDArray[np.float64] = (times["completed_ns"] - times["enqueued_ns"]) / 1e9
        return latencies

    @property
    def latency(self) -> Metrics:
        """Statistics of `latencies_s`, with the keys and attributes of :meth:`qaic.Session.get_metrics`."""
        return summarize(self.latencies_s)

    @property
    def stages(self) -> Stages:
        """Mean seconds of the stages of an inference; their sum is the mean latency.

        The stages are ``waiting`` for a thread, transfer of ``inputs``, ``execution``, transfer of
        ``outputs``, and ``completion``, which is short unless the device writes a stats buffer.
        """
        times = self.samples
        return Stages(
            (name, float((times[end] - times[start]).mean()) / 1e9) for name, (start, end) in _STAGES.items()
        )

    @property
    def device(self) -> tuple[StatsBuffer, ...]:
        """The device's stats buffers (:func:`qaic.stats.open`), in the order of the samples that have one."""
        if self._device is None:
            self._device = tuple(
                stats.open(content, qpc=stats.Descriptor(descriptor))
                for descriptor, content in self._contents()
            )
        return self._device

    def capture(self) -> Capture:
        """Return the data for reports and pages (:mod:`qaic.stats.reports`, :mod:`qaic.page`)."""
        capture = Capture(self.device, host=HostLatencies.of_samples(self.samples), waits=self._waits)
        if capture.is_cpu:
            capture.engine = f"onnxruntime {_core.engine_info()[1]}"
        return capture

    def trace(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        format: str | None = None,  # noqa: A002  # as `qaic-opstats --format`
        merge_thread_groups: bool = True,
        flow_events: bool = False,
        barrier_events: bool = False,
    ) -> bytes | None:
        """Create one trace of the host and the device, for chrome://tracing or Perfetto. Blocking.

        Parameters
        ----------
        path
            File to write; ``None``: the trace is returned.
        format
            ``"json"`` (Chrome) or ``"perfetto"``. Default: by the suffix of ``path``; ``.pftrace``,
            ``.perfetto-trace`` and ``.pb`` are Perfetto, all others JSON.
        merge_thread_groups, flow_events, barrier_events
            As the options of ``qaic-opstats``.

        Returns
        -------
        bytes or None
            The trace, or ``None`` if it was written to ``path``.

        Raises
        ------
        qaic.errors.OptionError
            The format is unknown.
        OSError
            The file cannot be written; it does not change.
        """
        kind = _format(path, format)
        parts = [
            (_core.StatsBuffer(content, descriptor), descriptor, descriptor.network, None)
            for descriptor, content in self._contents()
        ]
        options: dict[str, Any] = {
            "format": kind,
            "merge_thread_groups": merge_thread_groups,
            "flow_events": flow_events,
            "barrier_events": barrier_events,
            "host_samples": self._samples(),
        }
        if path is None:
            return bytes(_core.stats_trace(parts, **options))
        write_replacing(Path(path), lambda aside: _core.stats_trace(parts, path=aside, **options))
        return None

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write all data in the files of ``qaic-runner``. Blocking.

        The files are a latency report for each load of the session, one trace, and the device's stats
        buffers, which ``qaic-opstats`` reads. Files of the same names are replaced.

        Parameters
        ----------
        folder
            Output folder; it is created if its parent exists.

        Returns
        -------
        list of pathlib.Path
            The files.

        Raises
        ------
        OSError
            The folder or a file cannot be written.
        """
        samples, place = self._samples(), Path(folder)
        place.mkdir(exist_ok=True)
        written = []
        for kind in (reports.LATENCY, reports.RAW_DEVICE_STATS):
            for name, content in reports.files(samples, kind, PREFIX):
                reports.write(place, name, content)
                written.append(place / name)
        self.trace(place / trace_name(0))
        return [*written, place / trace_name(0)]

    def report(self, name: str = "overview") -> Report:
        """Create one of the reports of ``qaic-opstats report``.

        Its ``verdict`` is a list of sentences, and its ``tables`` contain the numbers. ``str(report)`` is
        the text; ``report.tables[0].to_pandas()`` is a data frame; notebooks show tables.

        Raises
        ------
        qaic.errors.OptionError
            The report does not exist; the message lists all reports.
        """
        if name not in REPORTS:
            raise OptionError(f"unknown report {name!r}; known: {', '.join(REPORTS)}", code="profile.report")
        return REPORTS[name](self.capture())

    def page(self, path: str | os.PathLike[str]) -> Path:
        """Write one HTML page with all reports and a timeline; returns its path. Blocking.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        capture = self.capture()
        return page.write(capture, [make(capture) for make in REPORTS.values()], path)

    def __len__(self) -> int:
        """Return the number of inferences; 0 during the recording."""
        return 0 if self._recorded is None else len(self._recorded)

    def __repr__(self) -> str:
        """Return the number of inferences and buffers."""
        state = "recording" if self.is_recording else counted(len(self), "inference")
        return f"<qaic Profile: {state}>"

    def _repr_html_(self) -> str:
        if not len(self):
            return f"<p>{escape_html(repr(self))}</p>"
        return f"<pre>{html.escape(escape_lines(str(self)))}</pre>"

    def __str__(self) -> str:
        """Return lines about latencies, their stages, and the device."""
        if not len(self):
            return repr(self)
        times, latency = self.samples, self.latency
        span_s = float(times["completed_ns"].max() - times["enqueued_ns"].min()) / 1e9
        count, activations = len(times), len(np.unique(times["activation"]))
        figures = {
            "min": "min_latency",
            "mean": "avg_latency",
            **{name: name for name in PERCENTILES},
            "max": "max_latency",
        }
        lines = [
            f"{counted(count, 'inference')} on {counted(activations, 'activation')} in {span_s * 1e3:.3f} ms",
            "latency us: " + "  ".join(f"{name} {latency[key] * 1e6:.1f}" for name, key in figures.items()),
            "of it us:   " + "  ".join(f"{name} {mean * 1e6:.1f}" for name, mean in self.stages.items()),
        ]
        if self.dropped:
            lines.append(f"not recorded, because the buffer was full: {self.dropped}")
        executed = [
            measured["ExecTimeUs"]
            for program in range(len(self._samples().programs))
            for _, _, measured in self._samples().device_kpis(program)
            if measured["ExecTimeUs"] is not None
        ]
        if executed:
            lines.append(
                f"device us:  min {min(executed):.1f}  mean {np.mean(executed):.1f}  max {max(executed):.1f} "
                f"in {counted(len(executed), 'buffer')}"
            )
        return "\n".join(lines)

    def _samples(self) -> _core.Samples:
        if self._recorded is None:
            raise StateError(
                "the profile is being recorded",
                code="profile.recording",
                hints=("use the profile after the with block",),
            )
        if not len(self._recorded):
            raise StateError(
                "no inference ended while the profile was recorded",
                code="profile.empty",
                hints=("run the session inside the with block, and wait for its futures there",),
            )
        return self._recorded

    def _contents(self) -> Iterator[tuple[_core.StatsDescriptor, bytes]]:
        """Yield the device's buffers, each with its description."""
        samples = self._samples()
        known: dict[int, _core.StatsDescriptor | None] = {}
        for number, program in enumerate(samples.times()["program"].tolist()):
            if (content := samples.stats(number)) is not None:
                if program not in known:
                    known[program] = samples.descriptor(program)
                if (descriptor := known[program]) is not None:
                    yield descriptor, content


def _waited_ns() -> dict[str, int]:
    """Return the time for which each thread has waited for a processor; empty if Linux does not count it."""
    waited = {}
    for thread in Path("/proc/self/task").iterdir():
        # A thread may end meanwhile.
        with contextlib.suppress(OSError):
            waited[thread.name] = int((thread / "schedstat").read_text().split()[1])
    return waited


def _check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LARGEST_COUNT:
        raise OptionError(
            f"{name} is {value!r}; a whole number of at least {least} is expected", code=f"profile.{name}"
        )


def _format(path: str | os.PathLike[str] | None, given: str | None) -> str:
    if given is None:
        is_perfetto = path is not None and Path(path).suffix in _PERFETTO_SUFFIXES
        return "perfetto" if is_perfetto else "json"
    if given not in _FORMATS:
        raise OptionError(
            f"format is {given!r}; one of {', '.join(_FORMATS)} is expected", code="profile.format"
        )
    return given
