"""Utilization of each engine, by kind of operation."""

from qaic.report import NOT_MEASURED, Cell, Report, Table, columns_of
from qaic.stats.reports.capture import Capture, median
from qaic.stats.reports.capture.groups import Sums, share
from qaic.stats.reports.capture.op_info import CATEGORIES, Coded
from qaic.stats.reports.capture.trace_reader import ThreadSums, TraceReader

_ENGINES = columns_of(
    "device:int | core:int | engine | threads:int | utilization:percent | busiest thread:percent | "
    "of PCycles:percent | busy:float us | operations:int | sync:float us | barrier:float us | "
    "transfers:float us"
)


def engines(capture: Capture) -> Report:
    """Report the utilization of every engine, and the time by category."""
    capture = capture.typical
    rows: list[tuple[Cell, ...]] = []
    for reader in capture.each():
        keys = sorted({(thread.core, thread.engine) for thread in reader.threads})
        for key in keys:
            threads = [thread for thread in reader.threads if (thread.core, thread.engine) == key]
            rows.append((reader.slice, *key, *_figures(reader, threads)))
    categories = _categories(capture)
    verdict = []
    if any(row[4] for row in rows):
        names = list(dict.fromkeys(str(row[2]) for row in rows))
        shares = [(row[2], row[4]) for row in rows if isinstance(row[4], float)]
        means = {name: median([share for engine, share in shares if engine == name]) for name in names}
        text = ", ".join(f"{name} {mean:.1f} %" for name, mean in means.items() if mean is not None)
        verdict.append(f"utilization, median of the cores: {text}")
    notes = [
        "times are sums over an engine's threads, utilization is their mean;"
        " engines work in parallel, so do not add them up"
    ]
    if any(str(row[2]) == "DMAIssue" for row in rows):
        notes.append("DMAIssue only starts transfers: they are in the column transfers and in the report dma")
    return Report(
        "engines",
        "Engines",
        verdict,
        [Table("engines", "Engines", _ENGINES, rows, "; ".join(notes)), categories],
    )


def utilization(thread: ThreadSums) -> float | None:
    """Return the part of a thread's time in which it works, 0 to 1; None if operations were not measured."""
    return None if not thread.ops or not thread.span_u else thread.busy_u / thread.span_u


def _figures(reader: TraceReader, threads: list[ThreadSums]) -> tuple[Cell, ...]:
    def summed(name: str, counted: str) -> float | None:
        if not any(getattr(thread, counted) for thread in threads):
            return None
        return reader.us(sum(getattr(thread, name) for thread in threads))

    shares = [100 * (utilization(thread) or 0.0) for thread in threads]
    measured = sum(thread.ops for thread in threads)
    return (
        len(threads),
        sum(shares) / len(shares) if measured else None,
        max(shares) if measured else None,
        _of_pcycles(threads),
        summed("busy_u", "ops"),
        measured or None,
        summed("sync_u", "sync_count"),
        summed("barrier_u", "barrier_count"),
        summed("transfer_u", "transfer_count"),
    )


def _of_pcycles(threads: list[ThreadSums]) -> float | None:
    """Return the share of the threads' processor cycles in operations."""
    both = [
        (thread.op_pcycles, thread.pcycles)
        for thread in threads
        if thread.op_pcycles is not None and thread.pcycles
    ]
    return share(sum(op for op, _ in both), sum(cycles for _, cycles in both)) if both else None


def _categories(capture: Capture) -> Table:
    sums = Sums(capture, lambda facts: Coded.joined(facts.engines, facts.categories))
    columns, rows = sums.rows("engine | category | count | time | share")
    rows.sort(key=lambda row: (str(row[0]), CATEGORIES.index(str(row[1]))))
    of_engine: dict[Cell, float] = {}
    for row in rows:
        of_engine[row[0]] = of_engine.get(row[0], 0.0) + float(row[3] or 0)
    rows = [(*row, share(float(row[3] or 0), of_engine[row[0]])) for row in rows]
    note = None if rows else f"operations: {NOT_MEASURED}, or the stats level is below 70"
    columns += columns_of("share of engine:percent")
    return Table("categories", "Kinds of work", columns, rows, note)
