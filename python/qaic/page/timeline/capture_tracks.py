"""A capture as a timeline: a row per thread of each core, others for transfers and nested operations."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qaic.page.timeline import MOST_BOXES, Labels, Merger, Timeline, TimeSpan, Track, lanes
from qaic.stats.reports.capture import Capture
from qaic.stats.reports.capture.op_info import OpInfo
from qaic.stats.reports.capture.trace_reader import ThreadSums, TraceReader
from qaic.support.text import duration as duration_text

# Consecutive stages; the wait in the queue precedes them and is drawn as a wait.
_STAGES: Final = (
    ("pre-processing", "begun_ns", "inputs_ready_ns"),
    ("execution", "inputs_ready_ns", "executed_ns"),
    ("post-processing", "executed_ns", "outputs_ready_ns"),
    # Reads measurements of the device, if requested, and notifies the caller.
    ("completion", "outputs_ready_ns", "completed_ns"),
)
# Up to this number, each inference has its own name.
_MOST_NAMED: Final = 50_000


def host_tracks(times: NDArray[Any], origin_ns: float, labels: Labels) -> Iterator[Track]:
    """Yield the rows of the host.

    `times` are samples of a profiler, in nanoseconds of its clock; the first begins at `origin_ns` on the
    time of the page. The names of the inferences are added to `labels`, the names of the timeline.
    """
    named = len(times) <= _MOST_NAMED
    first = int(times["enqueued_ns"].min()) if len(times) else 0
    programs = np.unique(times["program"])
    for program in programs.tolist():
        mine = times[times["program"] == program]
        for activation in np.unique(mine["activation"]).tolist():
            samples = mine[mine["activation"] == activation]
            name = f"activation {activation}" + (f" of program {program}" if len(programs) > 1 else "")
            yield from lanes(_track(name, samples, first, origin_ns, labels, named=named))


def _track(
    name: str, samples: NDArray[Any], first: int, origin_ns: float, labels: Labels, *, named: bool
) -> Track:
    starts, durations, numbers, waits = [], [], [], []
    for place, (stage, begin, end) in enumerate(_STAGES):
        start = samples[begin].astype(np.int64)
        # A skipped stage has the time of the previous one.
        durations.append(np.maximum(samples[end].astype(np.int64) - start, 0))
        starts.append(start - first)
        waited = start - samples["enqueued_ns"].astype(np.int64) if place == 0 else np.zeros_like(start)
        waits.append(np.maximum(waited, 0))
        if named:
            added = [labels.add(f"inference {number}", stage) for number in samples["inference"].tolist()]
            numbers.append(np.array(added, np.int64))
        else:
            numbers.append(np.full(len(samples), labels.add(stage, stage), np.int64))
    start, duration = np.concatenate(starts), np.concatenate(durations)
    order = np.argsort(start, kind="stable")
    order = order[duration[order] > 0]
    return Track(
        "host",
        name,
        start[order],
        duration[order],
        np.concatenate(numbers)[order],
        role="host",
        origin_ns=origin_ns,
        before=np.concatenate(waits)[order],
    )


# Flags of OP records.
_ASYNC, _NESTED = 4, 8
_SYNC, _BARRIER, _OUT_BYTES = 16, 32, 64


@dataclass(frozen=True)
class _Row:
    """Key of a row; rows are shown in the order of their keys."""

    activation: tuple[int, int]
    slice: int
    core: int
    place: int
    lane: int
    group: str
    name: str

    @property
    def order(self) -> tuple[tuple[int, int], int, int, int, int]:
        return self.activation, self.slice, self.core, self.place, self.lane


def timeline_of(capture: Capture, *, most: int = MOST_BOXES) -> Timeline:
    """Return the timeline of a capture; at most ``most`` boxes, the rest merged and noted."""
    timeline = Timeline()
    readers = capture.each()
    if not readers:
        _add_host(timeline, capture, None)
        return timeline
    counted = sum(len(reader.buffer.ops) for reader in readers)
    lived_u = sum(thread.span_u for reader in readers for thread in reader.threads)
    merger = Merger(counted, max(1, lived_u), most=most)
    origins, first_utc_ns = _origins(capture, timeline.notes)
    rows: defaultdict[_Row, list[Track]] = defaultdict(list)
    numbers: dict[int, NDArray[np.int64]] = {}
    for sample in capture.samples:
        name = timeline.labels.add(f"inference {sample.inference}")
        for reader in sample.readers:
            if id(reader.facts) not in numbers:
                numbers[id(reader.facts)] = _describe(timeline.labels, reader.facts)
            for row, track in _reading_rows(reader, numbers[id(reader.facts)], name):
                track.origin_ns = origins[id(reader)]
                rows[row].append(merger.apply(track))
        starts = [origins[id(reader)] for reader in sample.readers]
        ends = [origins[id(reader)] + reader.span_us * 1000 for reader in sample.readers]
        title = f"{sample.inference} ({duration_text(sample.span_us)})"
        timeline.samples.append(TimeSpan(title, min(starts), max(ends)))
    for row in sorted(rows, key=lambda key: key.order):
        timeline.tracks.extend(lanes(_joined(row, rows[row])))
    _add_host(timeline, capture, first_utc_ns)
    timeline.shown = capture.typical_place
    if merger.merged_away:
        timeline.notes.append(
            f"{merger.merged_away} of {counted} operations are too short to be drawn separately: those under "
            f"{merger.cell * 1e6 / readers[0].hz:.3g} us are drawn together, named by the longest. The "
            "tables count each one."
        )
    return timeline


def _add_host(timeline: Timeline, capture: Capture, first_utc_ns: int | None) -> None:
    """Add the rows of the host above those of the devices, if the profiler has times."""
    host = capture.host
    times = None if host is None else getattr(host, "times", None)
    if times is None or not len(times):
        return
    if timeline.tracks and not (first_utc_ns and host.epoch_utc_ns):
        timeline.notes.append("The host is not drawn: the device's clock does not show the time of day.")
        return

    # Integers, because nanoseconds of the day have more digits than a double.
    begin = host.epoch_utc_ns + int(times["enqueued_ns"].min())
    origin = float(begin - first_utc_ns) if first_utc_ns else 0.0
    timeline.tracks[:0] = host_tracks(times, origin, timeline.labels)


def _origins(capture: Capture, notes: list[str]) -> tuple[dict[int, float], int | None]:
    """Nanoseconds from the first start of all to the start of each buffer, and the UTC of that first start.

    Each device has its own clock. If all devices report the time of day, it is the common time. Otherwise
    inferences follow the clock of their first device and start on the others at the same time.
    """
    absolute = all(int(reader.run.epoch_utc_ns) for reader in capture.each())
    times: dict[int, int] = {}
    ends: dict[tuple[int, int], int] = {}
    jumbled = False
    for sample in capture.samples:
        for reader in sample.readers:
            clock = reader if absolute else sample.readers[0]
            epoch = int(clock.run.epoch_utc_ns) if absolute else 0
            times[id(reader)] = epoch + clock.start_u * 1_000_000_000 // clock.hz
        activation = sample.program, sample.activation
        jumbled |= min(times[id(reader)] for reader in sample.readers) < ends.get(activation, 0)
        ends[activation] = max(_end_ns(times, reader) for reader in sample.readers)
    if jumbled and not absolute:
        notes.append(
            "The clocks of these inferences do not show their order; they are drawn one after the other."
        )
        times = _in_turn(capture)
    first = min(times.values())
    return {key: float(time - first) for key, time in times.items()}, first if absolute else None


def _end_ns(times: dict[int, int], reader: TraceReader) -> int:
    return times[id(reader)] + round(reader.span_us * 1000)


def _in_turn(capture: Capture) -> dict[int, int]:
    times: dict[int, int] = {}
    begin = 0
    for sample in capture.samples:
        for reader in sample.readers:
            times[id(reader)] = begin
        # A visible gap.
        begin = max(_end_ns(times, reader) for reader in sample.readers) + round(sample.span_us * 100)
    return times


def _describe(labels: Labels, facts: OpInfo) -> NDArray[np.int64]:
    """Add the operations of a program; the result is the label of each, by number."""
    return np.array(
        [
            labels.add(
                name,
                facts.kinds[place],
                nodes=_new_nodes(name, facts.nodes[place]),
                output_bytes=int(facts.output_bytes[place]) or None,
                memory=facts.memories[place],
                types=facts.types[place],
                group=facts.engines[place],
            )
            for place, name in enumerate(facts.names)
        ],
        np.int64,
    )


def _new_nodes(name: str, nodes: str) -> tuple[str, ...]:
    return (nodes,) if nodes and nodes != name else ()


def _reading_rows(
    reader: TraceReader, numbers: NDArray[np.int64], inference: int
) -> Iterator[tuple[_Row, Track]]:
    tick_ns = 1e9 / reader.hz
    for core in reader.cores:
        row = _row(reader, core.number, -1, 0, "execution")
        yield (
            row,
            Track(
                row.group,
                row.name,
                np.array([max(0, core.start_u - reader.start_u)], np.int64),
                np.array([core.span_u], np.int64),
                np.array([inference], np.int64),
                role="span",
                ns_per_unit=tick_ns,
            ),
        )
    engines = [(thread.core, thread.engine) for thread in reader.threads]
    records = reader.buffer.threads
    for place, (thread, record) in enumerate(zip(reader.threads, records, strict=True)):
        several = engines.count((thread.core, thread.engine)) > 1
        name = f"{thread.engine} {thread.thread}" if several else thread.engine
        for piece in reader.pieces(record):
            yield from (
                (row, Track(row.group, row.name, ns_per_unit=tick_ns, **columns))
                for row, columns in _piece_rows(reader, thread, (place, name), piece, numbers)
            )


def _piece_rows(
    reader: TraceReader,
    thread: ThreadSums,
    named: tuple[int, str],
    piece: NDArray[Any],
    numbers: NDArray[np.int64],
) -> Iterator[tuple[_Row, dict[str, Any]]]:
    """Yield the rows of some executions of a thread: operations, those inside others, transfers."""
    place, name = named
    known = reader.facts.of_core(thread.core)
    piece = piece[piece["oc"] < known.stop - known.start]
    kinds = piece["kflags"]
    transfer, nested = (kinds & _ASYNC) != 0, (kinds & _NESTED) != 0
    for lane, (title, chosen) in enumerate(
        [(name, ~transfer & ~nested), (f"{name} inside", ~transfer & nested), (f"{name} DMA", transfer)]
    ):
        picked = piece[chosen]
        if len(picked):
            row = _row(reader, thread.core, place, lane, title)
            yield row, _columns(reader, picked, numbers[known.start + picked["oc"].astype(np.int64)])


def _columns(reader: TraceReader, ops: NDArray[Any], label: NDArray[np.int64]) -> dict[str, Any]:
    # Ticks before the first of the buffer are a defect of its producer; the decoder has warned.
    start = ops["start_u"].astype(np.int64) - reader.start_u
    np.maximum(start, 0, out=start)
    order = None if bool((start[1:] >= start[:-1]).all()) else np.argsort(start, kind="stable")
    flags = ops["flags"]
    columns: dict[str, Any] = {"start": start, "duration": ops["dur_u"].astype(np.int64), "label": label}
    for name, field, flag in (("before", "sync_u", _SYNC), ("after", "barrier_u", _BARRIER)):
        valid = (flags & flag) != 0
        columns[name] = np.where(valid, ops[field], 0).astype(np.int64) if valid.any() else None
    if order is not None:
        columns = {name: None if column is None else column[order] for name, column in columns.items()}
    return columns


def _row(reader: TraceReader, core: int, place: int, lane: int, name: str) -> _Row:
    run = reader.run
    group = f"device {reader.slice}, core {core}"
    if run.activation or run.program:
        group += f", activation {run.activation}"
    if run.program:
        group += f" of program {run.program}"
    return _Row((int(run.program), int(run.activation)), reader.slice, core, place, lane, group, name)


def _joined(row: _Row, parts: list[Track]) -> Track:
    """One row of all inferences, relative to the first."""
    first = parts[0]
    offsets = [round((part.origin_ns - first.origin_ns) / first.ns_per_unit) for part in parts]
    # Samples are ordered by number, which with several activations is not the order in time.
    order = np.argsort(offsets, kind="stable")
    parts = [parts[place] for place in order]
    base = min(offsets)
    starts = [part.start + (offsets[place] - base) for place, part in zip(order, parts, strict=True)]
    joined: dict[str, Any] = {}
    for name, fill in (("duration", 0), ("label", 0), ("before", 0), ("after", 0), ("members", 1)):
        columns = [getattr(part, name) for part in parts]
        if all(column is None for column in columns):
            continue
        joined[name] = np.concatenate(
            [
                np.full(len(part.start), fill, np.int64) if column is None else column
                for part, column in zip(parts, columns, strict=True)
            ]
        )
    return Track(
        row.group,
        row.name,
        np.concatenate(starts),
        role=first.role,
        ns_per_unit=first.ns_per_unit,
        origin_ns=first.origin_ns + base * first.ns_per_unit,
        **joined,
    )
