"""Operations that the inference waited for: the path over measured times and dependencies."""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qaic.report import Cell, Column, Report, Table, columns_of
from qaic.stats.reports.capture import Capture
from qaic.stats.reports.capture.groups import own_time_us, share
from qaic.stats.reports.capture.op_info import FLUSH, Coded
from qaic.stats.reports.capture.trace_reader import OP_ASYNC, OP_BOOKKEEPING, OP_NESTED, TraceReader
from qaic.stats.reports.ops import NO_OPERATIONS
from qaic.support.text import counted, duration

#: most steps of a path, which take some seconds to find
MOST_STEPS: Final = 20_000
#: first and largest number of executions that a search for an operation reads together
_BLOCK, _LARGEST_BLOCK = 1024, 1 << 16
_SKIPPED: Final = OP_ASYNC | OP_BOOKKEEPING | OP_NESTED


@dataclass(frozen=True)
class Step:
    """One execution of the path, in ticks; ``wait_u`` is the time since the previous execution ended."""

    op: int
    thread: int
    start_u: int
    end_u: int
    wait_u: int
    because: str


class _Thread:
    """Executions of one thread, with lookup by position, by time and by operation."""

    def __init__(self, reader: TraceReader, record: NDArray[Any]) -> None:
        first, count = int(record["first_op"]), int(record["op_count"])
        self.core = int(record["core"])
        self.thread = int(record["thread"])
        own = reader.facts.of_core(self.core)
        self.base, self.size = own.start, own.stop - own.start
        self.ops = reader.buffer.ops[first : first + count]
        categories = reader.facts.categories
        # The inference does not include writing the statistics.
        self._flushes: NDArray[np.bool_] = categories.codes[own] == categories.values.index(FLUSH)
        # Place of each operation's last execution, and when its first one ended.
        self._last = np.full(self.size, -1, np.int64)
        self._first_end = np.full(self.size, np.iinfo(np.int64).max)
        self._starts, self._durs = self.ops["start_u"], self.ops["dur_u"]
        self._ocs, self._kinds = self.ops["oc"], self.ops["kflags"]
        place = 0
        for piece in reader.pieces(record):
            ocs = piece["oc"].astype(np.int64)
            chosen = ((piece["kflags"] & _SKIPPED) == 0) & (ocs < self.size)
            chosen &= ~self._flushes[np.where(chosen, ocs, 0)]
            self._last[ocs[chosen]] = np.flatnonzero(chosen) + place
            ends = (piece["start_u"] + piece["dur_u"]).astype(np.int64)
            np.minimum.at(self._first_end, ocs[chosen], ends[chosen])
            place += len(piece)

    def interval(self, place: int) -> tuple[int, int]:
        """Return start and end of an execution."""
        start = int(self._starts[place])
        return start, start + int(self._durs[place])

    def oc(self, place: int) -> int:
        """Return the operation of an execution."""
        return int(self._ocs[place])

    def before(self, place: int) -> int | None:
        """Return the previous execution of the thread."""
        while place > 0:
            place -= 1
            oc = self.oc(place)
            if not int(self._kinds[place]) & _SKIPPED and oc < self.size and not self._flushes[oc]:
                return place
        return None

    def last_of(self, oc: int, until_u: int) -> int | None:
        """Return the last execution of an operation that ended before a time."""
        place = int(self._last[oc])
        if place < 0:
            return None
        if self.interval(place)[1] <= until_u:
            return place
        if int(self._first_end[oc]) > until_u:
            return None
        end = min(place, bisect_right(self._starts, until_u))
        size = _BLOCK
        while end > 0:
            start = max(0, end - size)
            size = min(2 * size, _LARGEST_BLOCK)
            for found in np.flatnonzero(self._ocs[start:end] == oc)[::-1].tolist():
                candidate: int = start + found
                if not int(self._kinds[candidate]) & _SKIPPED and self.interval(candidate)[1] <= until_u:
                    return candidate
            end = start
        return None

    def furthest(self) -> int | None:
        """Return the execution that ended last."""
        places = self._last[self._last >= 0]
        if not len(places):
            return None
        chosen = self.ops[places]
        return int(places[int((chosen["start_u"] + chosen["dur_u"]).argmax())])


def walk(reader: TraceReader, most_steps: int = MOST_STEPS) -> tuple[list[Step], bool]:
    """Return the path in the order of time, and True if it is complete."""
    records = [record for record in reader.buffer.threads if int(record["op_count"])]
    threads = [
        _Thread(reader, record) for record in records if int(record["core"]) + 1 < len(reader.facts.base)
    ]
    ends = [(thread.interval(place)[1], number, place) for number, thread in enumerate(threads)
            if (place := thread.furthest()) is not None]  # fmt: skip
    steps: list[Step] = []
    if not ends:
        return steps, True
    _, number, place = max(ends)
    while len(steps) < most_steps:
        thread = threads[number]
        start, end = thread.interval(place)
        op = thread.base + thread.oc(place)
        found = _cause(reader, threads, number, place)
        if found is None:
            steps.append(Step(op, thread.thread, start, end, max(0, start - reader.start_u), "begin"))
            return steps[::-1], True
        ended, because, number, place = found
        steps.append(Step(op, thread.thread, start, end, max(0, start - ended), because))
    return steps[::-1], False


def _cause(
    reader: TraceReader, threads: list[_Thread], number: int, place: int
) -> tuple[int, str, int, int] | None:
    """Return the execution that another one waited for: its end, the reason, its thread and position."""
    thread = threads[number]
    start, _ = thread.interval(place)
    oc = thread.oc(place)
    wanted = [(op, "data") for op in reader.facts.producers(thread.base + oc, data_only=True)]
    data = {op for op, _ in wanted}
    wanted += [(op, "order") for op in reader.facts.producers(thread.base + oc) if op not in data]
    previous = thread.before(place)
    if previous is not None:
        # If an operation runs on several threads, the slowest counts.
        wanted.append((thread.base + thread.oc(previous), "thread"))
    found: list[tuple[int, int, str, int, int]] = []
    rank = {"thread": 0, "order": 1, "data": 2}
    for op, because in wanted:
        core = int(reader.facts.cores[op])
        for other_number, other in enumerate(threads):
            if other.core != core:
                continue
            # Ticks of two threads may differ by one.
            other_place = other.last_of(op - other.base, start + 1)
            if other_place is None or (other_number == number and other_place >= place):
                continue
            other_start, other_end = other.interval(other_place)
            if (other_start, other_number, other_place) < (start, number, place):
                found.append((other_end, rank[because], because, other_number, other_place))
    if not found:
        return None
    ended, _, because, found_number, found_place = max(found)
    return ended, because, found_number, found_place


#: largest number of listed steps, the longest ones
_MOST: Final = 500

_STEPS = columns_of(
    "at:float us | operation | kind | engine | core:int | time:float us | waited:float us | because of"
)


def _sums(name: str) -> tuple[Column, ...]:
    return (Column(name), *columns_of("steps:int | time:float us | share of path:percent"))


def critical_path(capture: Capture) -> Report:
    """Report the path of the typical inference, on its slowest device."""
    readers = capture.typical.each()
    reader = max(readers, key=lambda reader: reader.span_us, default=None)
    if reader is None or not any(thread.ops for thread in reader.threads):
        table = Table("steps", "Longest steps", _STEPS, [], NO_OPERATIONS)
        return Report("critical-path", "Critical path", [], [table])
    working = [thread for thread in reader.threads if thread.ops]
    which = f"inference {reader.run.inference}, device {reader.slice}"
    if len(working) == 1:
        return _of_one_thread(reader, which)
    if not reader.facts.has_dependencies:
        note = "the descriptor has no dependencies, so the waits are unknown"
        return Report(
            "critical-path", "Critical path", [], [Table("steps", "Longest steps", _STEPS, [], note)]
        )
    steps, whole = walk(reader)
    return _report(reader, which, steps, whole)


def _report(reader: TraceReader, which: str, steps: list[Step], whole: bool) -> Report:  # noqa: FBT001
    facts, us = reader.facts, reader.us
    ops = np.array([step.op for step in steps], np.int64)
    times = np.array([us(step.end_u - step.start_u) for step in steps])
    waited = us(sum(step.wait_u for step in steps))
    total = float(times.sum())
    chosen = sorted(np.argsort(-times, kind="stable")[:_MOST].tolist())
    rows: list[tuple[Cell, ...]] = [
        (
            us(step.start_u - reader.start_u),
            facts.names[step.op],
            facts.kinds[step.op],
            facts.engines[step.op],
            int(facts.cores[step.op]),
            us(step.end_u - step.start_u),
            us(step.wait_u),
            step.because,
        )
        for step in (steps[place] for place in chosen)
    ]
    counts = np.ones(len(ops))
    verdict = [
        f"{counted(len(steps), 'step')}: {duration(total)} of work and {duration(waited)} of waiting, "
        f"of the {duration(reader.span_us)} of {which}",
        *_most(_by(facts.kinds, ops, counts, times), total, "kind"),
    ]
    if not whole:
        verdict.append(
            f"the path is longer: the report ends after {counted(len(steps), 'step')} from its end"
        )
    note = "because of: a producer's data or order, or the thread's previous operation; waited: since its end"
    return Report(
        "critical-path",
        "Critical path",
        verdict,
        [
            Table("kinds", "By kind", _sums("kind"), _by(facts.kinds, ops, counts, times)),
            Table("engines", "By engine", _sums("engine"), _by(facts.engines, ops, counts, times)),
            Table("nodes", "By node", _sums("node"), _by(facts.nodes, ops, counts, times)),
            Table("steps", "Longest steps, in the order of time", _STEPS, rows, note),
        ],
    )


def _of_one_thread(reader: TraceReader, which: str) -> Report:
    """Report the path for one thread, which consists of all operations."""
    facts = reader.facts
    times, counts = own_time_us(reader), reader.ops.count
    ops = np.flatnonzero(counts)
    times, counts = times[ops], counts[ops]
    total = float(times.sum())
    kinds = _by(facts.kinds, ops, counts, times)
    verdict = [
        f"one thread runs all operations one after the other: {duration(total)}"
        f" of the {duration(reader.span_us)} of {which}",
        *_most(kinds, total, "kind"),
    ]
    return Report(
        "critical-path",
        "Critical path",
        verdict,
        [
            Table("kinds", "By kind", _sums("kind"), kinds),
            Table("nodes", "By node", _sums("node"), _by(facts.nodes, ops, counts, times)),
        ],
    )


def _by(
    coded: Coded, ops: np.ndarray[Any, Any], counts: np.ndarray[Any, Any], times: np.ndarray[Any, Any]
) -> list[tuple[Cell, ...]]:
    codes = coded.codes[ops]
    size = len(coded.values)
    summed = np.bincount(codes, times, minlength=size)
    steps = np.bincount(codes, counts, minlength=size)
    total = float(times.sum())
    order = sorted(np.flatnonzero(steps).tolist(), key=lambda code: (-summed[code], coded.values[code]))
    return [
        (
            coded.values[code],
            round(float(steps[code])),
            float(summed[code]),
            share(float(summed[code]), total),
        )
        for code in order
    ]


def _most(rows: list[tuple[Cell, ...]], total: float, name: str) -> list[str]:
    if not rows or total <= 0:
        return []
    return [f"the {name} with the largest part is {rows[0][0]}, {float(rows[0][3] or 0):.1f} % of the path"]
