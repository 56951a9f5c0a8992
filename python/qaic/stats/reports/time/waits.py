"""Operations that wait, and windows in which no engine of a core works."""

from typing import Final

import numpy as np

from qaic.report import NOT_MEASURED, Cell, Report, Table, columns_of
from qaic.stats.reports.capture import Capture
from qaic.stats.reports.capture.groups import share
from qaic.stats.reports.capture.trace_reader import CoreActivity, TraceReader
from qaic.stats.reports.time.timeline import activity
from qaic.support.text import duration

#: largest number of listed operations of a device
_MOST: Final = 200

_ENGINES = columns_of(
    "device:int | engine | threads:int | sync:float us | syncs:int | sync of threads' time:percent | "
    "barrier:float us | barriers:int | barrier of threads' time:percent"
)
_OPS = columns_of(
    "operation | kind | engine | device:int | core:int | sync:float us | syncs:int | last producer | "
    "producer's engine"
)
_PORTS = columns_of("device:int | core:int | thread:int | port:int | direction | waited:float us")


def waits(capture: Capture) -> Report:
    """Report waits before operations (sync), after them (barrier), and for the host's ports."""
    capture = capture.typical
    engine_rows: list[tuple[Cell, ...]] = []
    op_rows: list[tuple[Cell, ...]] = []
    for reader in capture.each():
        engine_rows += _by_engine(reader)
        op_rows += _by_operation(reader)
    op_rows.sort(key=lambda row: (-float(row[5] or 0), str(row[0])))
    measured = any(row[3] is not None or row[6] is not None for row in engine_rows)
    verdict = []
    if op_rows:
        first = op_rows[0]
        verdict.append(
            f"the longest waits, {duration(float(first[5] or 0))}, are before {first[0]} on {first[2]}"
            f" of core {first[4]}" + (f", whose last producer is {first[7]}" if first[7] else "")
        )
    note = (
        "waits are clipped to the core's inference; threads wait in parallel, so waits are not a latency"
        if measured
        else f"sync and barrier: {NOT_MEASURED}"
    )
    port_rows = _ports(capture)
    port_note = None if port_rows else f"ports: {NOT_MEASURED}, or the stats level is below 50"
    return Report(
        "waits",
        "Waits",
        verdict,
        [
            Table("engines", "By engine", _ENGINES, engine_rows if measured else [], note),
            Table("operations", "Before operations", _OPS, op_rows[:_MOST]),
            Table("ports", "Waits for the host", _PORTS, port_rows, port_note),
        ],
    )


def _by_engine(reader: TraceReader) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []
    for engine in dict.fromkeys(thread.engine for thread in reader.threads):
        threads = [thread for thread in reader.threads if thread.engine == engine]
        figures: list[Cell] = []
        for name in ("sync", "barrier"):
            count = sum(getattr(thread, f"{name}_count") for thread in threads)
            waited = sum(getattr(thread, f"{name}_u") for thread in threads)
            part = share(waited, sum(thread.span_u for thread in threads))
            figures += [reader.us(waited), count, part] if count else [None, None, None]
        rows.append((reader.slice, engine, len(threads), *figures))
    return rows


def _by_operation(reader: TraceReader) -> list[tuple[Cell, ...]]:
    facts, ops = reader.facts, reader.ops
    waited = ops.sync_u
    chosen = np.flatnonzero(waited > 0)
    chosen = chosen[np.argsort(-waited[chosen], kind="stable")[:_MOST]]
    rows: list[tuple[Cell, ...]] = []
    for op in chosen.tolist():
        # The operation waited for the producer that ended last.
        producers = [producer for producer in facts.producers(op) if np.isfinite(ops.last_u[producer])]
        producer = max(producers, key=lambda one: ops.last_u[one], default=None)
        rows.append(
            (
                facts.names[op],
                facts.kinds[op],
                facts.engines[op],
                reader.slice,
                int(facts.cores[op]),
                reader.us(waited[op]),
                round(float(ops.sync_count[op])),
                None if producer is None else facts.names[producer],
                None if producer is None else facts.engines[producer],
            )
        )
    return rows


def _ports(capture: Capture) -> list[tuple[Cell, ...]]:
    return sorted(
        (
            reader.slice,
            *(int(port[name]) for name in ("core", "thread", "port")),
            "out" if int(port["direction"]) else "in",
            reader.us(int(port["wait_u"])),
        )
        for reader in capture.each()
        for port in reader.buffer.ports
    )


_GAPS = columns_of(
    "device:int | core:int | span:float us | working:float us | working share:percent | gaps:int | "
    "in gaps:float us | longest:float us | before the first:float us | after the last:float us"
)
_LONGEST_GAPS = columns_of(
    "device:int | core:int | at:float us | gap:float us | after operation | before operation"
)


def gaps(capture: Capture) -> Report:
    """Report the idle time of every core, and its longest windows."""
    capture = capture.typical
    rows: list[tuple[Cell, ...]] = []
    longest: list[tuple[Cell, ...]] = []
    if not any(thread.ops for reader in capture.each() for thread in reader.threads):
        note = f"operations: {NOT_MEASURED}, or the stats level is below 70; gaps are between operations"
        return Report("gaps", "Idle windows", [], [Table("cores", "Cores", _GAPS, [], note)])
    for reader in capture.each():
        for core in reader.cores:
            found = activity(reader, core)
            rows.append((reader.slice, core.number, *_figures(reader, found)))
            longest += _windows(reader, found)
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
            f" at {duration(float(at or 0))}, between {after or 'the start'} and {before}"
        )
    note = (
        "the time before the first operation and after the last, which includes writing the statistics,"
        " is not a gap"
    )
    return Report(
        "gaps",
        "Idle windows",
        verdict,
        [
            Table("cores", "Cores", _GAPS, rows, note),
            Table("longest", "Longest windows", _LONGEST_GAPS, longest[:100]),
        ],
    )


def _figures(reader: TraceReader, found: CoreActivity) -> tuple[Cell, ...]:
    us = reader.us
    span, busy = us(found.core.span_u), us(found.busy_u)
    longest = us(found.longest[0].length_u) if found.longest else 0.0
    return (
        *(span, busy, share(busy, span), found.gap_count, us(found.gap_u), longest),
        *(us(found.lead_u), us(found.tail_u)),
    )


def _windows(reader: TraceReader, found: CoreActivity) -> list[tuple[Cell, ...]]:
    names = reader.facts.names
    return [
        (
            reader.slice,
            found.core.number,
            reader.us(gap.start_u - reader.start_u),
            reader.us(gap.length_u),
            None if gap.before is None else names[gap.before],
            None if gap.after is None else names[gap.after],
        )
        for gap in found.longest
    ]
