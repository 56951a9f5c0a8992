"""Which operation waits, for how long, before what, and for which other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from qaic.stats.reports.capture import median, median_rows
from qaic.stats.reports.capture.groups import share
from qaic.stats.reports.render.table import NOT_MEASURED, Column, Report, Table
from qaic.support.text import duration

if TYPE_CHECKING:
    from qaic.stats.reports.capture import Capture
    from qaic.stats.reports.capture.trace_reader import TraceReader
    from qaic.stats.reports.render.table import Cell

#: operations listed of a device
_MOST: Final = 200

_ENGINES = (
    Column("device", kind="int"),
    Column("engine"),
    Column("threads", kind="int"),
    Column("sync", "us", "float"),
    Column("syncs", kind="int"),
    Column("sync of threads' time", kind="percent"),
    Column("barrier", "us", "float"),
    Column("barriers", kind="int"),
    Column("barrier of threads' time", kind="percent"),
)
_OPS = (
    Column("operation"),
    Column("kind"),
    Column("engine"),
    Column("device", kind="int"),
    Column("core", kind="int"),
    Column("sync", "us", "float"),
    Column("syncs", kind="int"),
    Column("last producer"),
    Column("producer's engine"),
)
_PORTS = (
    Column("device", kind="int"),
    Column("core", kind="int"),
    Column("thread", kind="int"),
    Column("port", kind="int"),
    Column("direction"),
    Column("waited", "us", "float"),
)


def waits(capture: Capture) -> Report:
    """Report waits before operations (sync), after them (barrier), and for the host's ports."""
    capture = capture.typical
    engine_rows: list[tuple[Cell, ...]] = []
    op_rows: list[tuple[Cell, ...]] = []
    for readers in capture.by_device():
        engine_rows += _by_engine(readers)
        op_rows += _by_operation(readers)
    op_rows.sort(key=lambda row: (-float(row[5] or 0), str(row[0])))
    measured = any(row[3] is not None or row[6] is not None for row in engine_rows)
    if not measured:
        engine_rows = []
    verdict = []
    if op_rows:
        first = op_rows[0]
        verdict.append(
            f"most is waited before {first[0]}: {duration(float(first[5] or 0))} on {first[2]}"
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
            Table("engines", "By engine", _ENGINES, engine_rows, note),
            Table("operations", "Before operations", _OPS, op_rows[:_MOST]),
            Table("ports", "For the host", _PORTS, port_rows, port_note),
        ],
    )


def _by_engine(readers: list[TraceReader]) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []
    for engine in dict.fromkeys(thread.engine for thread in readers[0].threads):
        per_sample = [[thread for thread in reader.threads if thread.engine == engine] for reader in readers]
        us = readers[0].us
        figures: list[Cell] = []
        for name in ("sync", "barrier"):
            counts = [sum(getattr(thread, f"{name}_count") for thread in threads) for threads in per_sample]
            if not any(counts):
                figures += [None, None, None]
                continue
            sums = [sum(getattr(thread, f"{name}_u") for thread in threads) for threads in per_sample]
            lived = [sum(thread.span_u for thread in threads) for threads in per_sample]
            figures += [
                median([us(waited) for waited in sums]),
                round(median(counts) or 0),
                median([share(waited, whole) for waited, whole in zip(sums, lived, strict=True)]),
            ]
        rows.append((readers[0].slice, engine, len(per_sample[0]), *figures))
    return rows


def _by_operation(readers: list[TraceReader]) -> list[tuple[Cell, ...]]:
    facts, last = readers[0].facts, readers[-1]
    waited = median_rows([reader.ops.sync_u for reader in readers])
    counts = median_rows([reader.ops.sync_count for reader in readers])
    chosen = np.flatnonzero(waited > 0)
    chosen = chosen[np.argsort(-waited[chosen], kind="stable")[:_MOST]]
    rows: list[tuple[Cell, ...]] = []
    for op in chosen.tolist():
        # The one that ended last is the one that was waited for.
        producers = [producer for producer in facts.producers(op) if np.isfinite(last.ops.last_u[producer])]
        producer = max(producers, key=lambda one: last.ops.last_u[one], default=None)
        rows.append(
            (
                facts.names[op],
                facts.kinds.values[facts.kinds.codes[op]],
                facts.engines.values[facts.engines.codes[op]],
                readers[0].slice,
                int(facts.cores[op]),
                last.us(waited[op]),
                round(float(counts[op])),
                None if producer is None else facts.names[producer],
                None if producer is None else facts.engines.values[facts.engines.codes[producer]],
            )
        )
    return rows


def _ports(capture: Capture) -> list[tuple[Cell, ...]]:
    waited: dict[tuple[int, int, int, int, str], list[float]] = {}
    for reader in capture.each():
        for port in reader.buffer.ports:
            direction = "out" if int(port["direction"]) else "in"
            key = (reader.slice, int(port["core"]), int(port["thread"]), int(port["port"]), direction)
            waited.setdefault(key, []).append(reader.us(int(port["wait_u"])))
    return [(*key, median(values)) for key, values in sorted(waited.items())]
