"""Sums per operation, thread and core of one stats buffer, for the reports.

Executions are read once, in pieces, so that memory does not increase with their number.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qaic.stats.buffer import THREAD_PCYCLES_VALID, CoreTimes, StatsBuffer, core_facts, engine_name
from qaic.stats.reports.capture.op_info import FLUSH, OpInfo


class OpenOps:
    """The executions of one thread, which are passed in pieces, in the order of their starts."""

    def __init__(self) -> None:
        self._ocs: NDArray[np.int64] = np.empty(0, np.int64)
        self._start: NDArray[np.float64] = np.empty(0)
        self._dur: NDArray[np.float64] = np.empty(0)
        self._nested: NDArray[np.bool_] = np.empty(0, np.bool_)

    def inside(
        self,
        ocs: NDArray[np.int64],
        start: NDArray[np.float64],
        dur: NDArray[np.float64],
        nested: NDArray[np.bool_],
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """Yield operations that contain others, each with the time of an operation directly inside.

        Parameters
        ----------
        ocs, start, dur, nested
            Columns of the next executions, without transfers, which run in parallel with operations.
        """
        old = len(self._nested)
        is_nested = bool(nested.any())
        if is_nested:
            ocs = np.concatenate([self._ocs, ocs])
            start = np.concatenate([self._start, start])
            dur = np.concatenate([self._dur, dur])
            nested = np.concatenate([self._nested, nested])
            yield from _held(ocs, start, dur, nested, old)
        if len(start):
            kept = (start + dur) > start[-1]
            columns = (ocs[kept], start[kept], dur[kept], nested[kept])
            if not is_nested:
                still = (self._start + self._dur) > start[-1]
                before = (self._ocs[still], self._start[still], self._dur[still], self._nested[still])
                ocs, start, dur, nested = (np.concatenate(pair) for pair in zip(before, columns, strict=True))
                columns = (ocs, start, dur, nested)
            self._ocs, self._start, self._dur, self._nested = columns


def _held(
    ocs: NDArray[np.int64],
    start: NDArray[np.float64],
    dur: NDArray[np.float64],
    nested: NDArray[np.bool_],
    old: int,
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Yield for each level the containers of executions from ``old``, and durations of the executions."""
    end = start + dur
    places = np.arange(len(ocs))
    # Executions that began before and have not ended contain this execution.
    depth = places - np.searchsorted(np.sort(end), start, side="right")
    depth = np.where(nested, np.maximum(depth, 1), 0)
    for level in range(1, int(depth.max()) + 1):
        outer = np.maximum.accumulate(np.where(depth == level - 1, places, -1))
        inner = places[(depth == level) & (places >= old)]
        holder = outer[inner]
        held = (holder >= 0) & (end[holder] > start[inner])
        if held.any():
            # Ticks are integers, so an end may be rounded to a time after the end of its container.
            yield (ocs[holder[held]], np.minimum(dur[inner[held]], end[holder[held]] - start[inner[held]]))


#: number of executions that are read together: 12 MB of records
PIECE: Final = 1 << 18

# Flags of the records.
OP_BOOKKEEPING, OP_ASYNC, OP_NESTED = 2, 4, 8
DUR_SATURATED, SYNC_SATURATED, BARRIER_SATURATED = 1, 2, 4
OP_PCYCLES, OP_SYNC, OP_BARRIER, OP_OUT_BYTES = 8, 16, 32, 64


class OpSums:
    """Sums over the executions of each operation of the program (see ``OpInfo``), in ticks.

    An operation that runs on several threads of a group counts once, with the thread of the longest time.
    Times are own times: the time of an inner operation does not belong to the outer operation.
    """

    def __init__(self, count: int) -> None:
        def zeros() -> NDArray[np.float64]:
            return np.zeros(count)

        self.count = zeros()
        self.dur_u = zeros()
        self.pcycles = zeros()
        self.pcycle_count = zeros()
        self.out_bytes = zeros()
        self.sync_u = zeros()
        self.sync_count = zeros()
        self.barrier_u = zeros()
        self.barrier_count = zeros()
        self.transfer_u = zeros()
        self.transfer_count = zeros()
        self.transfer_bytes = zeros()
        self.first_u = np.full(count, np.inf)
        self.last_u = np.full(count, -np.inf)


@dataclass
class ThreadSums:
    """One thread, in ticks."""

    core: int
    thread: int
    engine: str
    start_u: int
    end_u: int
    pcycles: int | None
    ops: int = 0
    busy_u: float = 0.0
    bookkeeping_u: float = 0.0
    op_pcycles: float | None = None
    sync_u: float = 0.0
    sync_count: int = 0
    barrier_u: float = 0.0
    barrier_count: int = 0
    transfer_u: float = 0.0
    transfer_count: int = 0
    saturated: int = 0

    @property
    def span_u(self) -> int:
        """Duration of the thread."""
        return max(0, self.end_u - self.start_u)


@dataclass(frozen=True, order=True)
class Gap:
    """A window in which no engine of a core works; operations are None at the start and end of the core."""

    length_u: int
    start_u: int
    before: int | None
    after: int | None


@dataclass
class CoreActivity:
    """Times in which a core works: the union of its executions."""

    core: CoreTimes
    busy_u: int = 0
    gap_u: int = 0
    gap_count: int = 0
    #: time from the core's start to its first operation, and from the end of the last operation to its end
    lead_u: int = 0
    tail_u: int = 0
    longest: list[Gap] = field(default_factory=list)

    @property
    def idle_u(self) -> int:
        """Time in which no engine works."""
        return self.gap_u + self.lead_u + self.tail_u


class TraceReader:
    """Sums of a stats buffer.

    Only reports that need single executions read `buffer` again; `facts` are the operations of its program.
    """

    def __init__(self, buffer: StatsBuffer, facts: OpInfo) -> None:
        self.buffer = buffer
        self.facts = facts
        self.run = buffer.run
        #: results of `timeline.activity`
        self.activities: dict[tuple[int, bool | None], CoreActivity] = {}
        self.hz = int(buffer.run.ucycle_hz) or 1
        self.cores = [CoreTimes(**core_facts(record)) for record in buffer.cores]
        spans = [(core.start_u, core.end_u) for core in self.cores]
        spans = spans or [(int(record["start_u"]), int(record["end_u"])) for record in buffer.threads]
        self.start_u = min((start for start, _ in spans), default=0)
        self.end_u = max((end for _, end in spans), default=0)
        self.ops = OpSums(len(facts))
        self.threads = [self._thread(record) for record in buffer.threads]

    @property
    def span_us(self) -> float:
        """Microseconds from the first start to the last end."""
        return self.us(max(0, self.end_u - self.start_u))

    @property
    def slice(self) -> int:
        """Device of the program that wrote the buffer."""
        return self.cores[0].slice if self.cores else 0

    def us(self, ticks: float) -> float:
        """Return ticks as microseconds."""
        return float(ticks) * 1e6 / self.hz

    def pieces(self, record: NDArray[Any], size: int | None = None) -> Iterator[NDArray[Any]]:
        """Yield the executions of a thread in pieces."""
        ops = self.buffer.ops
        size = size or PIECE
        first = int(record["first_op"])
        last = min(first + int(record["op_count"]), len(ops))
        for start in range(first, last, size):
            stop = min(start + size, last)
            yield ops[start:stop]
            self.buffer.advise_unneeded("OP", start, stop)

    def _thread(self, record: NDArray[Any]) -> ThreadSums:
        core, thread = int(record["core"]), int(record["thread"])
        sums = ThreadSums(
            core,
            thread,
            self._engine(record),
            int(record["start_u"]),
            int(record["end_u"]),
            int(record["pcycles"]) if int(record["flags"]) & THREAD_PCYCLES_VALID else None,
        )
        if not int(record["op_count"]):
            return sums
        place = self.facts.of_core(core)
        window = self._window(core)
        own = OpSums(place.stop - place.start)
        open_ops = OpenOps()
        idle_kinds = self.facts.is_bookkeeping[place]
        for piece in self.pieces(record):
            _add_piece(own, sums, piece, open_ops, window=window, idle_kinds=idle_kinds)
        _merge(self.ops, own, place)
        return sums

    def _engine(self, record: NDArray[Any]) -> str:
        thread, groups = int(record["thread"]), self.facts.thread_groups
        if thread < len(groups) and groups[thread] < len(self.facts.groups):
            return self.facts.groups[groups[thread]]
        return engine_name(int(record["engine"]))

    def _window(self, core: int) -> tuple[int, int]:
        """Return start and end of the core's run, to which waits are clipped."""
        windows = ((facts.start_u, facts.end_u) for facts in self.cores if facts.number == core)
        return next(windows, (self.start_u, self.end_u))

    def flush_us(self) -> float:
        """Return the time to write the statistics."""
        facts = self.facts.categories
        return self.us(facts.sums(self.ops.dur_u)[facts.values.index(FLUSH)])


def _add_piece(
    own: OpSums,
    sums: ThreadSums,
    piece: NDArray[Any],
    open_ops: OpenOps,
    *,
    window: tuple[int, int],
    idle_kinds: NDArray[np.bool_],
) -> None:
    """Add some executions of one thread."""
    size = len(own.count)
    ocs = piece["oc"].astype(np.int64)
    if len(ocs) and int(ocs.max()) >= size:
        piece, ocs = piece[ocs < size], ocs[ocs < size]
    if not len(ocs):
        return
    flags, kinds = piece["flags"], piece["kflags"]
    any_flag, any_kind = int(np.bitwise_or.reduce(flags)), int(np.bitwise_or.reduce(kinds))
    start = piece["start_u"].astype(np.float64)
    dur = piece["dur_u"].astype(np.float64)
    end = start + dur
    transfer = (kinds & OP_ASYNC) != 0 if any_kind & OP_ASYNC else None
    work = None if transfer is None else ~transfer

    def add(
        total: NDArray[np.float64], weights: NDArray[Any] | None, chosen: NDArray[np.bool_] | None
    ) -> float:
        sizes = weights if weights is None or chosen is None else weights[chosen]
        found = np.bincount(ocs if chosen is None else ocs[chosen], sizes, minlength=size)
        total += found
        return float(found.sum())

    place = slice(None) if work is None else work
    nested = (kinds & OP_NESTED) != 0
    for inner_oc, inner_dur in open_ops.inside(ocs[place], start[place], dur[place], nested[place]):
        np.subtract.at(own.dur_u, inner_oc, inner_dur)
        inner_idle = idle_kinds[inner_oc]
        sums.busy_u -= float(inner_dur[~inner_idle].sum())
        sums.bookkeeping_u -= float(inner_dur[inner_idle].sum())
    worked = add(own.dur_u, dur, work)
    sums.ops += int(add(own.count, None, work))
    idle = idle_kinds[ocs]
    if any_kind & OP_BOOKKEEPING:
        idle |= (kinds & OP_BOOKKEEPING) != 0
    if transfer is not None:
        idle &= ~transfer
    bookkeeping = float(dur[idle].sum())
    sums.bookkeeping_u += bookkeeping
    sums.busy_u += worked - bookkeeping

    if any_flag & OP_PCYCLES:
        cycles = (flags & OP_PCYCLES) != 0
        if work is not None:
            cycles &= work
        add(own.pcycle_count, None, cycles)
        measured = add(own.pcycles, piece["pcycles"].astype(np.float64), cycles)
        sums.op_pcycles = (sums.op_pcycles or 0.0) + measured
    if any_flag & OP_SYNC:
        synced = (flags & OP_SYNC) != 0
        waited = np.minimum(piece["sync_u"].astype(np.float64), np.maximum(start - window[0], 0))
        sums.sync_u += add(own.sync_u, waited, synced)
        sums.sync_count += int(add(own.sync_count, None, synced))
    if any_flag & OP_BARRIER:
        stopped = (flags & OP_BARRIER) != 0
        waited = np.minimum(piece["barrier_u"].astype(np.float64), np.maximum(window[1] - end, 0))
        sums.barrier_u += add(own.barrier_u, waited, stopped)
        sums.barrier_count += int(add(own.barrier_count, None, stopped))
    if any_flag & OP_OUT_BYTES:
        written = (flags & OP_OUT_BYTES) != 0
        out_bytes = piece["out_bytes"].astype(np.float64)
        add(own.out_bytes, out_bytes, written if work is None else written & work)
        if transfer is not None:
            add(own.transfer_bytes, out_bytes, written & transfer)
    if transfer is not None:
        sums.transfer_u += add(own.transfer_u, dur, transfer)
        sums.transfer_count += int(add(own.transfer_count, None, transfer))
    saturated = DUR_SATURATED | SYNC_SATURATED | BARRIER_SATURATED
    if any_flag & saturated:
        sums.saturated += int(np.count_nonzero(flags & saturated))
    np.minimum.at(own.first_u, ocs, start)
    np.maximum.at(own.last_u, ocs, end)


_LARGEST: Final = (
    "count", "dur_u", "pcycles", "pcycle_count", "out_bytes", "sync_u", "sync_count", "barrier_u",
    "barrier_count", "transfer_u", "transfer_count", "transfer_bytes", "last_u",
)  # fmt: skip


def _merge(into: OpSums, own: OpSums, place: slice) -> None:
    """Add the operations of a thread; of several threads with the same operation, the longest counts."""
    for name in _LARGEST:
        total = getattr(into, name)[place]
        np.maximum(total, getattr(own, name), out=total)
    first = into.first_u[place]
    np.minimum(first, own.first_u, out=first)
