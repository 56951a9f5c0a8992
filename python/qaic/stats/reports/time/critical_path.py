"""Which operations the inference waited for: the path over measured times and the compiler's dependencies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from qaic.stats.reports.capture.groups import own_time_us, share
from qaic.stats.reports.operations.nodes import NO_OPERATIONS
from qaic.stats.reports.render.table import Column, Report, Table
from qaic.stats.reports.time.path import Step, walk
from qaic.support.text import duration

if TYPE_CHECKING:
    from qaic.stats.reports.capture import Capture
    from qaic.stats.reports.capture.op_info import Coded
    from qaic.stats.reports.capture.trace_reader import TraceReader
    from qaic.stats.reports.render.table import Cell

#: steps listed, the longest ones
_MOST: Final = 500

_STEPS = (
    Column("at", "us", "float"),
    Column("operation"),
    Column("kind"),
    Column("engine"),
    Column("core", kind="int"),
    Column("time", "us", "float"),
    Column("waited", "us", "float"),
    Column("because of"),
)


def _sums(name: str) -> tuple[Column, ...]:
    return (
        Column(name),
        Column("steps", kind="int"),
        Column("time", "us", "float"),
        Column("share of path", kind="percent"),
    )


def critical_path(capture: Capture) -> Report:
    """Path of the sample whose time is nearest to the median, on its slowest device."""
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
        note = "the descriptor has no dependencies, so what waited for what is not known"
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
            facts.kinds.values[facts.kinds.codes[step.op]],
            facts.engines.values[facts.engines.codes[step.op]],
            int(facts.cores[step.op]),
            us(step.end_u - step.start_u),
            us(step.wait_u),
            step.because,
        )
        for step in (steps[place] for place in chosen)
    ]
    counts = np.ones(len(ops))
    verdict = [
        f"{len(steps)} steps work for {duration(total)} and wait {duration(waited)}"
        f" of the {duration(reader.span_us)} of {which}",
        *_most(_by(facts.kinds, ops, counts, times), total, "kind"),
    ]
    if not whole:
        verdict.append(f"the path is longer: only its last {len(steps)} steps were followed")
    note = (
        "because of: data or order of a producer, or what the thread did before; waited: since that one ended"
    )
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
    """With one thread all operations are the path, one after the other."""
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
