"""Executions of one core in the order of time, over all its threads."""

import heapq
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qaic.stats.buffer import CoreTimes
from qaic.stats.reports.capture.trace_reader import (
    OP_ASYNC,
    OP_BOOKKEEPING,
    PIECE,
    CoreActivity,
    Gap,
    TraceReader,
)

#: largest number of kept windows of a core, the longest ones
MOST_GAPS: Final = 50


class _Cursor:
    """Executions of one thread, in pieces."""

    def __init__(self, reader: TraceReader, record: NDArray[Any], size: int) -> None:
        self._pieces = reader.pieces(record, size)
        self.starts: NDArray[np.int64] = np.empty(0, np.int64)
        self.ends = self.starts
        self.ocs = self.starts
        self.transfers: NDArray[np.bool_] = np.empty(0, np.bool_)
        self.bookkeeping = self.transfers
        self.exhausted = False

    def fill(self) -> None:
        """Read the next piece if all executions were taken."""
        while not len(self.starts) and not self.exhausted:
            piece = next(self._pieces, None)
            if piece is None:
                self.exhausted = True
                return
            self.starts = piece["start_u"].astype(np.int64)
            self.ends = self.starts + piece["dur_u"]
            self.ocs = piece["oc"].astype(np.int64)
            self.transfers = (piece["kflags"] & OP_ASYNC) != 0
            self.bookkeeping = (piece["kflags"] & OP_BOOKKEEPING) != 0

    def take(self, until: int) -> tuple[NDArray[Any], ...]:
        """Return the executions that start no later than `until`."""
        count = int(np.searchsorted(self.starts, until, side="right"))
        names = ("starts", "ends", "ocs", "transfers", "bookkeeping")
        taken = tuple(getattr(self, name)[:count] for name in names)
        for name in names:
            setattr(self, name, getattr(self, name)[count:])
        return taken


def in_time_order(
    reader: TraceReader, core: int, *, transfers: bool | None = None
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
    """Yield starts, ends and numbers (in ``OpInfo``) of a core's executions by start, in pieces.

    Work that does not belong to the model is omitted. `transfers` is true for only transfers, false for all
    other operations, and None for both.
    """
    facts = reader.facts
    place = facts.of_core(core)
    base, size, idle = place.start, place.stop - place.start, facts.is_bookkeeping[place]
    if not size:
        return
    records = [
        record for record in reader.buffer.threads if int(record["core"]) == core and int(record["op_count"])
    ]
    share = max(1, PIECE // max(1, len(records)))
    cursors = [_Cursor(reader, record, share) for record in records]
    while True:
        for cursor in cursors:
            cursor.fill()
        cursors = [cursor for cursor in cursors if not cursor.exhausted]
        if not cursors:
            return
        # Later executions of every thread start at or after this time.
        until = min(int(cursor.starts[-1]) for cursor in cursors)
        taken = [cursor.take(until) for cursor in cursors]
        starts, ends, ocs, moves, books = (np.concatenate(columns) for columns in zip(*taken, strict=True))
        chosen = ocs < size
        chosen &= ~books
        chosen &= ~idle[np.where(chosen, ocs, 0)]
        if transfers is not None:
            chosen &= moves == transfers
        starts, ends, ocs = starts[chosen], ends[chosen], ocs[chosen]
        order = np.argsort(starts, kind="stable")
        if len(order):
            yield starts[order], ends[order], ocs[order] + base


def activity(reader: TraceReader, core: CoreTimes, *, transfers: bool | None = None) -> CoreActivity:
    """Return when a core works; the answer is kept. Parameters as of :func:`in_time_order`."""
    key = (core.number, transfers)
    found = reader.activities.get(key)
    if found is None:
        found = reader.activities[key] = _activity(reader, core, transfers=transfers)
    return found


def _activity(reader: TraceReader, core: CoreTimes, *, transfers: bool | None) -> CoreActivity:
    found = CoreActivity(core)
    reached, last_op = core.start_u, None
    first = True
    for starts, ends, ocs in in_time_order(reader, core.number, transfers=transfers):
        latest = np.maximum.accumulate(np.maximum(ends, reached))
        before = np.concatenate([[reached], latest[:-1]])
        lengths = starts - before
        empty = lengths > 0
        found.busy_u += int((np.maximum(latest - np.maximum(before, starts), 0)).sum())
        # For each operation, the earlier operation with the latest end.
        furthest = np.maximum.accumulate(np.where(ends >= latest, np.arange(len(ends)), -1))
        if first and empty[0]:
            found.lead_u = int(lengths[0])
            empty[0] = False
        places = np.flatnonzero(empty)
        found.gap_u += int(lengths[places].sum())
        found.gap_count += len(places)
        if len(places) > MOST_GAPS:
            places = places[np.argpartition(lengths[places], -MOST_GAPS)[-MOST_GAPS:]]
        for place in places:
            previous = last_op if place == 0 or furthest[place - 1] < 0 else int(ocs[furthest[place - 1]])
            gap = Gap(int(lengths[place]), int(before[place]), previous, int(ocs[place]))
            (heapq.heappush if len(found.longest) < MOST_GAPS else heapq.heappushpop)(found.longest, gap)
        if furthest[-1] >= 0:
            last_op = int(ocs[furthest[-1]])
        reached = int(latest[-1])
        first = False
    found.tail_u = max(0, core.end_u - reached)
    if first:
        # No operation ran.
        found.lead_u, found.tail_u = 0, core.span_u
    found.longest.sort(key=lambda gap: (-gap.length_u, gap.start_u))
    return found
