"""Differences of a new capture from a baseline, and their places."""

import math
from collections.abc import Callable

import numpy as np

from qaic.report import Cell, Column, Report, Table, columns_of
from qaic.stats.reports.capture import Capture
from qaic.stats.reports.capture.groups import Sums
from qaic.stats.reports.capture.op_info import Coded, OpInfo
from qaic.stats.reports.ops import NO_OPERATIONS
from qaic.stats.reports.time.disturbance import disturbances
from qaic.support.text import duration, percentage


def _columns(name: str) -> tuple[Column, ...]:
    return (
        Column(name),
        *columns_of(
            "baseline:float us | new:float us | difference:float us | change:change | baseline count:int | "
            "new count:int"
        ),
    )


_INFERENCE = columns_of("inference | baseline:float us | new:float us | difference:float us | change:change")


def diff(baseline: Capture, new: Capture) -> Report:
    """Compare two captures: the inference, kinds of operations, and nodes.

    ``change`` is relative to the baseline. A row that exists only in one program has no time in the other.
    Nodes are nodes of the user's model. Nodes that only one program fuses form one row.
    """
    spans = [sorted(sample.span_us for sample in capture.samples) for capture in (baseline, new)]
    before, after = (capture.median(lambda sample: sample.span_us) for capture in (baseline, new))
    verdict = []
    if before and after:
        change = 100 * (after - before) / before
        verdict.append(
            f"both take the same time, {duration(before)}"
            if before == after
            else f"the new program takes {percentage(abs(change))} % {'more' if change > 0 else 'less'} time "
            f"than the baseline ({duration(before)} -> {duration(after)})"
        )
        if _middles_overlap(*spans) and len(spans[0]) + len(spans[1]) > 2:
            verdict.append("the middle halves of their samples overlap, so the difference may be noise")
    for name, capture in (("the baseline", baseline), ("the new program", new)):
        verdict += [f"not certain, {name}: {reason}" for reason in disturbances(capture)]
    if baseline.binaries() != new.binaries():
        verdict.append("the binaries differ: counts of operations compare only within one compilation")
    if baseline.is_cpu != new.is_cpu:
        verdict.append("they were measured on different kinds of devices")
    inference: list[tuple[Cell, ...]] = [
        ("median", *_compared(before, after)),
        ("lower quartile", *_compared(*(_quantile(values, 0.25) for values in spans))),
        ("upper quartile", *_compared(*(_quantile(values, 0.75) for values in spans))),
        ("min", *_compared(_first(spans[0]), _first(spans[1]))),
        ("max", *_compared(_first(spans[0][::-1]), _first(spans[1][::-1]))),
    ]
    kinds = _rows(baseline, new, lambda facts: facts.kinds)
    nodes = _rows(baseline, new, _JoinedNodes(baseline, new).of)
    return Report(
        "diff",
        f"From {baseline.name or 'the baseline'} to {new.name or 'the new program'}"
        if baseline.name != new.name
        else "Compared with the baseline",
        verdict,
        [
            Table(
                "inference", f"Inference, {len(spans[0])} and {len(spans[1])} samples", _INFERENCE, inference
            ),
            Table("kinds", "By kind", _columns("kind"), kinds, None if kinds else NO_OPERATIONS),
            Table("nodes", "By node", _columns("node"), nodes),
        ],
    )


class _JoinedNodes:
    """Nodes of the user's model, joined with nodes that only one of the programs fuses with them.

    Precisions have different fusions: a convolution and its activation may be one operation in one program
    and two in the other, so only sums can be compared. An operation belongs to the node in its name.
    """

    def __init__(self, *captures: Capture) -> None:
        #: node -> another node of its row; the leader of a row is not a key
        self._leaders: dict[str, str] = {}
        #: leader -> the nodes of its row, in the order of the operations
        self._members: dict[str, dict[str, None]] = {}
        computed = [_computed(capture) for capture in captures]
        for own, other in (computed, computed[::-1]):
            holders = {node: path for path, nodes in reversed(other.items()) for node in nodes}
            for path in own:
                if path in other:
                    continue
                holder = next((holders[node] for node in (path, *own[path]) if node in holders), None)
                if holder is not None:
                    self._join(holder, path)
        for node in {**computed[0], **computed[1]}:
            self._members.setdefault(self._leader(node), {})[node] = None

    def of(self, facts: OpInfo) -> Coded:
        """Return the row of each operation, as text."""
        return Coded.of(" + ".join(self._members[self._leader(path)]) for path in facts.paths)

    def _join(self, one: str, other: str) -> None:
        one, other = self._leader(one), self._leader(other)
        if one != other:
            self._leaders[other] = one

    def _leader(self, node: str) -> str:
        seen = []
        while node in self._leaders:
            seen.append(node)
            node = self._leaders[node]
        self._leaders.update(dict.fromkeys(seen, node))
        return node


def _computed(capture: Capture) -> dict[str, list[str]]:
    """Return the results of operations by the node in their name."""
    found: dict[str, list[str]] = {}
    for readers in capture.by_device():
        facts = readers[0].facts
        for path, nodes in zip(facts.paths, facts.node_sets, strict=True):
            found.setdefault(path, []).extend(nodes)
    return found


def _rows(baseline: Capture, new: Capture, key: Callable[[OpInfo], Coded]) -> list[tuple[Cell, ...]]:
    sides = [Sums(capture, key) for capture in (baseline, new)]
    times, counts = ([side.of(measure) for side in sides] for measure in ("time", "count"))
    rows: list[tuple[Cell, ...]] = []
    for name in {**times[0], **times[1]}:
        before, after = (side.get(name) for side in times)
        difference = _difference(before or 0.0, after or 0.0)
        change = 100 * difference / before if before and after is not None else None
        executed = (round(side[name]) if name in side else None for side in counts)
        rows.append((name, before, after, difference, change, *executed))
    rows.sort(key=lambda row: (-abs(float(row[3] or 0)), str(row[0])))
    return rows


def _compared(before: float | None, after: float | None) -> tuple[Cell, ...]:
    if before is None or after is None:
        return before, after, None, None
    difference = _difference(before, after)
    return before, after, difference, 100 * difference / before if before else None


def _difference(before: float, after: float) -> float:
    """Return the difference of two sums, without errors of rounding."""
    return 0.0 if math.isclose(before, after, rel_tol=1e-9) else after - before


def _quantile(values: list[float], part: float) -> float | None:
    return float(np.quantile(values, part)) if values else None


def _middles_overlap(first: list[float], second: list[float]) -> bool:
    """Return True if the ranges between the quartiles overlap; they do not depend on single inferences."""
    low = max(np.quantile(values, 0.25) for values in (first, second))
    high = min(np.quantile(values, 0.75) for values in (first, second))
    return bool(low <= high)


def _first(values: list[float]) -> float | None:
    return values[0] if values else None
