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
    """Utilization of every engine, and time by category."""
    capture = capture.typical
    rows: list[tuple[Cell, ...]] = []
    for readers in capture.by_device():
        keys = sorted({(thread.core, thread.engine) for thread in readers[0].threads})
        for core, engine in keys:
            rows.append((readers[0].slice, core, engine, *_figures(readers, core, engine)))
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
    """Part of a thread's time in which it works, 0 to 1; None where its operations were not measured."""
    if not thread.ops or not thread.span_u:
        return None
    return thread.busy_u / thread.span_u


def _figures(readers: list[TraceReader], core: int, engine: str) -> tuple[Cell, ...]:
    per_sample = [
        [thread for thread in reader.threads if (thread.core, thread.engine) == (core, engine)]
        for reader in readers
    ]
    us = readers[0].us

    def summed(name: str, counted: str) -> float | None:
        return median(
            [
                us(sum(getattr(thread, name) for thread in threads))
                if any(getattr(thread, counted) for thread in threads)
                else None
                for threads in per_sample
            ]
        )

    shares = [[100 * (utilization(thread) or 0) for thread in threads] for threads in per_sample]
    measured = any(thread.ops for threads in per_sample for thread in threads)
    return (
        round(median([len(threads) for threads in per_sample]) or 0),
        median([sum(values) / len(values) for values in shares if values]) if measured else None,
        median([max(values) for values in shares if values]) if measured else None,
        median([_of_pcycles(threads) for threads in per_sample]),
        summed("busy_u", "ops"),
        round(median([sum(thread.ops for thread in threads) for threads in per_sample]) or 0)
        if measured
        else None,
        summed("sync_u", "sync_count"),
        summed("barrier_u", "barrier_count"),
        summed("transfer_u", "transfer_count"),
    )


def _of_pcycles(threads: list[ThreadSums]) -> float | None:
    """Processor cycles of the operations, of those of the threads."""
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
