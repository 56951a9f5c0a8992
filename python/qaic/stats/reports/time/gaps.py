"""Windows in which no engine of a core works."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qaic.stats.reports.capture import median
from qaic.stats.reports.capture.groups import share
from qaic.stats.reports.render.table import NOT_MEASURED, Column, Report, Table
from qaic.stats.reports.time.timeline import CoreActivity, activity
from qaic.support.text import duration

if TYPE_CHECKING:
    from qaic.stats.reports.capture import Capture
    from qaic.stats.reports.capture.trace_reader import TraceReader
    from qaic.stats.reports.render.table import Cell

_CORES = (
    Column("device", kind="int"),
    Column("core", kind="int"),
    Column("span", "us", "float"),
    Column("working", "us", "float"),
    Column("working share", kind="percent"),
    Column("gaps", kind="int"),
    Column("in gaps", "us", "float"),
    Column("longest", "us", "float"),
    Column("before the first", "us", "float"),
    Column("after the last", "us", "float"),
)
_LONGEST = (
    Column("device", kind="int"),
    Column("core", kind="int"),
    Column("at", "us", "float"),
    Column("gap", "us", "float"),
    Column("after operation"),
    Column("before operation"),
)


def gaps(capture: Capture) -> Report:
    """Idle time of every core, and its longest windows in the last sample."""
    capture = capture.typical
    rows: list[tuple[Cell, ...]] = []
    longest: list[tuple[Cell, ...]] = []
    if not any(thread.ops for reader in capture.each() for thread in reader.threads):
        note = f"operations: {NOT_MEASURED}, or the stats level is below 70; gaps are between operations"
        return Report("gaps", "Idle windows", [], [Table("cores", "Cores", _CORES, [], note)])
    for readers in capture.by_device():
        for core in readers[0].cores:
            found = activities(readers, core.core)
            rows.append((readers[0].slice, core.core, *_figures(readers, found)))
            longest += _windows(readers[-1], found[-1])
    longest.sort(key=lambda row: (-float(row[3] or 0), row[:3]))
    whole, idle = (
        sum(float(row[2] or 0) for row in rows),
        sum(float(row[2] or 0) - float(row[3] or 0) for row in rows),
    )
    verdict = [f"no engine works for {share(idle, whole) or 0:.1f} % of the cores' time"]
    if longest:
        _, core_number, at, length, after, before = longest[0]
        verdict.append(
            f"the longest window is {duration(float(length or 0))} on core {core_number}"
            f" at {duration(float(at or 0))}, between {after or 'the begin'} and {before}"
        )
    note = (
        "the time before the first operation and after the last, which includes writing the statistics,"
        " is no gap"
    )
    return Report(
        "gaps",
        "Idle windows",
        verdict,
        [
            Table("cores", "Cores", _CORES, rows, note),
            Table("longest", "Longest windows of the last sample", _LONGEST, longest[:100]),
        ],
    )


def activities(readers: list[TraceReader], core: int) -> list[CoreActivity]:
    """Return what one core did in each of the samples that have it."""
    return [activity(reader, facts) for reader in readers for facts in reader.cores if facts.core == core]


def _figures(readers: list[TraceReader], found: list[CoreActivity]) -> tuple[Cell, ...]:
    us = readers[0].us
    span = median([us(one.core.span_u) for one in found]) or 0.0
    busy = median([us(one.busy_u) for one in found]) or 0.0
    return (
        span,
        busy,
        share(busy, span),
        round(median([one.gap_count for one in found]) or 0),
        median([us(one.gap_u) for one in found]),
        median([us(one.longest[0].length_u) if one.longest else 0.0 for one in found]),
        median([us(one.lead_u) for one in found]),
        median([us(one.tail_u) for one in found]),
    )


def _windows(reader: TraceReader, found: CoreActivity) -> list[tuple[Cell, ...]]:
    names = reader.facts.names
    return [
        (
            reader.slice,
            found.core.core,
            reader.us(gap.start_u - reader.start_u),
            reader.us(gap.length_u),
            None if gap.before is None else names[gap.before],
            None if gap.after is None else names[gap.after],
        )
        for gap in found.longest
    ]
