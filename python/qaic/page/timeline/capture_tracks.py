"""A capture as a timeline: a row for each thread of each core, its transfers and nested operations apart."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qaic.page.timeline import MOST_BOXES, Labels, Merger, Sample, Timeline, Track, lanes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from qaic.stats.reports.capture import Capture
    from qaic.stats.reports.capture.op_info import OpInfo
    from qaic.stats.reports.capture.trace_reader import Reading, ThreadSums

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
    readings = capture.each()
    if not readings:
        _add_host(timeline, capture, None)
        return timeline
    counted = sum(len(reading.buffer.ops) for reading in readings)
    lived_u = sum(thread.span_u for reading in readings for thread in reading.threads)
    merger = Merger(counted, max(1, lived_u), most=most)
    origins, first_utc_ns = _origins(capture, timeline.notes)
    rows: defaultdict[_Row, list[Track]] = defaultdict(list)
    numbers: dict[int, NDArray[np.int64]] = {}
    for sample in capture.samples:
        name = timeline.labels.add(f"inference {sample.inference}")
        for reading in sample.readings:
            if id(reading.facts) not in numbers:
                numbers[id(reading.facts)] = _describe(timeline.labels, reading.facts)
            for row, track in _reading_rows(reading, numbers[id(reading.facts)], name):
                track.origin_ns = origins[id(reading)]
                rows[row].append(merger.apply(track))
        starts = [origins[id(reading)] for reading in sample.readings]
        ends = [origins[id(reading)] + reading.span_us * 1000 for reading in sample.readings]
        title = f"{sample.inference} ({sample.span_us / 1000:.3f} ms)"
        timeline.samples.append(Sample(title, min(starts), max(ends)))
    for row in sorted(rows, key=lambda key: key.order):
        timeline.tracks.extend(lanes(_joined(row, rows[row])))
    _add_host(timeline, capture, first_utc_ns)
    spans = [sample.span_us for sample in capture.samples]
    timeline.shown = int(np.argsort(spans)[len(spans) // 2])
    if merger.merged_away:
        timeline.notes.append(
            f"{merger.merged_away} of {counted} operations are too short to be told apart here: those under "
            f"{merger.cell * 1e6 / readings[0].hz:.3g} us are drawn together, named by the longest. The "
            "tables count each one."
        )
    return timeline


def _add_host(timeline: Timeline, capture: Capture, first_utc_ns: int | None) -> None:
    """Add the rows of the host above those of the devices, if the profiler's times are there."""
    host = capture.host
    times = None if host is None else getattr(host, "times", None)
    if times is None or not len(times):
        return
    if timeline.tracks and not (first_utc_ns and host.epoch_utc_ns):
        timeline.notes.append("The host is not drawn: the device's clock does not know the time of day.")
        return
    from qaic.page.timeline.host_tracks import host_tracks

    # Whole numbers: nanoseconds of the day have more digits than a double.
    begin = host.epoch_utc_ns + int(times["enqueued_ns"].min())
    origin = float(begin - first_utc_ns) if first_utc_ns else 0.0
    timeline.tracks[:0] = host_tracks(times, origin, timeline.labels)


def _origins(capture: Capture, notes: list[str]) -> tuple[dict[int, float], int | None]:
    """Nanoseconds from the first start of all to the start of each reading, and the UTC of that first start.

    Devices have clocks of their own. Where all know the time of day, that is one time for all; where one does
    not, inferences follow the clock of their first device and begin together on the others.
    """
    absolute = all(int(reading.run.epoch_utc_ns) for reading in capture.each())
    times: dict[int, int] = {}
    ends: dict[tuple[int, int], int] = {}
    jumbled = False
    for sample in capture.samples:
        for reading in sample.readings:
            clock = reading if absolute else sample.readings[0]
            epoch = int(clock.run.epoch_utc_ns) if absolute else 0
            times[id(reading)] = epoch + clock.start_u * 1_000_000_000 // clock.hz
        activation = sample.program, sample.activation
        jumbled |= min(times[id(reading)] for reading in sample.readings) < ends.get(activation, 0)
        ends[activation] = max(_end_ns(times, reading) for reading in sample.readings)
    if jumbled and not absolute:
        notes.append(
            "The clocks of these inferences do not tell their order; they are shown one after the other."
        )
        times = _in_turn(capture)
    first = min(times.values())
    return {key: float(time - first) for key, time in times.items()}, first if absolute else None


def _end_ns(times: dict[int, int], reading: Reading) -> int:
    return times[id(reading)] + round(reading.span_us * 1000)


def _in_turn(capture: Capture) -> dict[int, int]:
    times: dict[int, int] = {}
    begin = 0
    for sample in capture.samples:
        for reading in sample.readings:
            times[id(reading)] = begin
        # A gap that is seen as one.
        begin = max(_end_ns(times, reading) for reading in sample.readings) + round(sample.span_us * 100)
    return times


def _describe(labels: Labels, facts: OpInfo) -> NDArray[np.int64]:
    """Add the operations of a program; the result is the label of each, by number."""
    kinds, memories, types, nodes, engines = (
        facts.kinds, facts.memories, facts.types, facts.nodes, facts.engines,
    )  # fmt: skip
    sizes = facts.output_bytes
    return np.array(
        [
            labels.add(
                name,
                kinds.values[kinds.codes[place]],
                nodes=_new_nodes(name, nodes.values[nodes.codes[place]]),
                output_bytes=int(sizes[place]) or None,
                memory=memories.values[memories.codes[place]],
                types=types.values[types.codes[place]],
                group=engines.values[engines.codes[place]],
            )
            for place, name in enumerate(facts.names)
        ],
        np.int64,
    )


def _new_nodes(name: str, nodes: str) -> tuple[str, ...]:
    return (nodes,) if nodes and nodes != name else ()


def _reading_rows(
    reading: Reading, numbers: NDArray[np.int64], inference: int
) -> Iterator[tuple[_Row, Track]]:
    tick_ns = 1e9 / reading.hz
    for core in reading.cores:
        row = _row(reading, core.core, -1, 0, "execution")
        yield (
            row,
            Track(
                row.group,
                row.name,
                np.array([max(0, core.start_u - reading.start_u)], np.int64),
                np.array([core.span_u], np.int64),
                np.array([inference], np.int64),
                role="span",
                ns_per_unit=tick_ns,
            ),
        )
    engines = [(thread.core, thread.engine) for thread in reading.threads]
    records = reading.buffer.threads
    for place, (thread, record) in enumerate(zip(reading.threads, records, strict=True)):
        several = engines.count((thread.core, thread.engine)) > 1
        name = f"{thread.engine} {thread.thread}" if several else thread.engine
        for piece in reading.pieces(record):
            yield from (
                (row, Track(row.group, row.name, ns_per_unit=tick_ns, **columns))
                for row, columns in _piece_rows(reading, thread, (place, name), piece, numbers)
            )


def _piece_rows(
    reading: Reading,
    thread: ThreadSums,
    named: tuple[int, str],
    piece: NDArray[Any],
    numbers: NDArray[np.int64],
) -> Iterator[tuple[_Row, dict[str, Any]]]:
    """Yield the rows of some executions of a thread: operations, those inside others, transfers."""
    place, name = named
    base = reading.facts.base
    if thread.core + 1 >= len(base):
        return
    low, high = int(base[thread.core]), int(base[thread.core + 1])
    piece = piece[piece["oc"] < high - low]
    kinds = piece["kflags"]
    transfer, nested = (kinds & _ASYNC) != 0, (kinds & _NESTED) != 0
    for lane, (title, chosen) in enumerate(
        [
            (name, ~transfer & ~nested),
            (f"{name} inside", ~transfer & nested),
            (f"{name} DMA", transfer),
        ]
    ):
        picked = piece[chosen]
        if len(picked):
            row = _row(reading, thread.core, place, lane, title)
            yield row, _columns(reading, picked, numbers[low + picked["oc"].astype(np.int64)])


def _columns(reading: Reading, ops: NDArray[Any], label: NDArray[np.int64]) -> dict[str, Any]:
    # Ticks before the reading's first are a fault of the producer, which the decoder warned of.
    start = ops["start_u"].astype(np.int64) - reading.start_u
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


def _row(reading: Reading, core: int, place: int, lane: int, name: str) -> _Row:
    run = reading.run
    group = f"device {reading.slice}, core {core}"
    if run.activation or run.program:
        group += f", activation {run.activation}"
    if run.program:
        group += f" of program {run.program}"
    return _Row((int(run.program), int(run.activation)), reading.slice, core, place, lane, group, name)


def _joined(row: _Row, parts: list[Track]) -> Track:
    """One row of all inferences, on the time of the first."""
    first = parts[0]
    offsets = [round((part.origin_ns - first.origin_ns) / first.ns_per_unit) for part in parts]
    # Samples come in the order of their numbers, which on several activations is not that of time.
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
