"""Did two captures differ, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qaic.stats.reports.capture.groups import grouped, own_time_us
from qaic.stats.reports.operations.nodes import NO_OPERATIONS
from qaic.stats.reports.render.table import Column, Report, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from qaic.stats.reports.capture import Capture
    from qaic.stats.reports.capture.op_info import Coded, OpInfo
    from qaic.stats.reports.render.table import Cell


def _columns(name: str) -> tuple[Column, ...]:
    return (
        Column(name),
        Column("time A", "us", "float"),
        Column("time B", "us", "float"),
        Column("B - A", "us", "float"),
        Column("change", kind="change"),
        Column("count A", kind="int"),
        Column("count B", kind="int"),
    )


_INFERENCE = (
    Column("figure"),
    Column("A", kind="float"),
    Column("B", kind="float"),
    Column("B - A", kind="float"),
    Column("change", kind="change"),
)


def diff(a: Capture, b: Capture) -> Report:
    """Compare two captures: the inference, kinds of operations, and nodes.

    ``change`` is relative to A; what only one has, has no time in the other.
    """
    same = a.binaries() == b.binaries()
    spans_a = sorted(sample.span_us for sample in a.samples)
    spans_b = sorted(sample.span_us for sample in b.samples)
    middle_a, middle_b = (capture.median(lambda sample: sample.span_us) for capture in (a, b))
    verdict = []
    if middle_a and middle_b:
        change = 100 * (middle_b - middle_a) / middle_a
        verdict.append(
            f"A and B take the same time, {middle_a:.1f} us"
            if middle_a == middle_b
            else f"B takes {abs(change):.1f} % {'longer' if change > 0 else 'less'} than A"
            f" ({middle_a:.1f} us -> {middle_b:.1f} us)"
        )
        if spans_a[-1] >= spans_b[0] and spans_b[-1] >= spans_a[0] and len(spans_a) + len(spans_b) > 2:
            verdict.append("their samples overlap, so the difference may be noise")
    if not same:
        verdict.append("the binaries differ: counts of operations compare only within one compilation")
    if a.is_cpu != b.is_cpu:
        verdict.append("they were measured on different kinds of devices")
    inference: list[tuple[Cell, ...]] = [
        ("inference us, median", *_compared(middle_a, middle_b)),
        ("inference us, least", *_compared(_first(spans_a), _first(spans_b))),
        ("inference us, most", *_compared(_first(spans_a[::-1]), _first(spans_b[::-1]))),
    ]
    kinds = _rows(a, b, lambda facts: facts.kinds)
    nodes = _rows(a, b, lambda facts: facts.nodes)
    return Report(
        "diff",
        f"Difference of {a.name or 'A'} (A) and {b.name or 'B'} (B)",
        verdict,
        [
            Table(
                "inference", f"Inference, {len(spans_a)} and {len(spans_b)} samples", _INFERENCE, inference
            ),
            Table("kinds", "By kind", _columns("kind"), kinds, None if kinds else NO_OPERATIONS),
            Table("nodes", "By node", _columns("node"), nodes),
        ],
    )


def _rows(a: Capture, b: Capture, key: Callable[[OpInfo], Coded]) -> list[tuple[Cell, ...]]:
    sums = [
        {group.key: group for group in grouped(capture, key, {"time": own_time_us})} for capture in (a, b)
    ]
    rows: list[tuple[Cell, ...]] = []
    for name in {**sums[0], **sums[1]}:
        groups = [side.get(name) for side in sums]
        times = [None if group is None else group["time"] for group in groups]
        counts = [None if group is None else round(group["count"]) for group in groups]
        difference = (times[1] or 0.0) - (times[0] or 0.0)
        change = 100 * difference / times[0] if times[0] and times[1] is not None else None
        rows.append((name, *times, difference, change, *counts))
    rows.sort(key=lambda row: (-abs(float(row[3] or 0)), str(row[0])))
    return rows


def _compared(a: float | None, b: float | None) -> tuple[Cell, ...]:
    if a is None or b is None:
        return a, b, None, None
    return a, b, b - a, 100 * (b - a) / a if a else None


def _first(values: list[float]) -> float | None:
    return values[0] if values else None
