"""What a search can keep in higher precision, the most promising first.

A unit is what rounds together: a node with those that are fused into it, and the same node of a function in
all of its calls. Units are ranked by the share of the error of the outputs that they answer for: their own
error, times how much of an error at their place is still there at the outputs. That travel is known from the
comparison itself: what a node inherits, without its own error, over what its operands inherit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qaic.accuracy.observed import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qaic.accuracy.observed import ObservedNode
    from qaic.accuracy.reports.report import PrecisionAccuracy


@dataclass(frozen=True, slots=True)
class Unit:
    """Nodes that are kept together.

    Parameters
    ----------
    names
        As a node precision file has them.
    place
        Of its first node in the graph.
    weight
        What it adds to the power of the outputs' error over the power of the outputs; infinite where it
        overflows.
    """

    names: tuple[str, ...]
    place: int
    weight: float


def ranked_units(accuracy: PrecisionAccuracy, nodes: Sequence[ObservedNode]) -> list[Unit]:
    """List the units that are rounded: those that overflow with their readers, then by what they add."""
    weights = _weights(accuracy, nodes)
    lost = _overflowing(accuracy, nodes)
    found: dict[tuple[str, ...], list[int]] = {}
    for at, node in enumerate(nodes):
        if node.kind is not Kind.FLOAT:
            found.setdefault(node.kept_by, []).append(at)
    units = [
        Unit(
            names,
            places[0],
            math.inf if any(at in lost for at in places) else sum(weights[at] for at in places),
        )
        for names, places in found.items()
    ]
    return sorted(units, key=lambda unit: (-unit.weight, unit.place))


def _overflowing(accuracy: PrecisionAccuracy, nodes: Sequence[ObservedNode]) -> set[int]:
    """Return the nodes that overflow, and what reads them, which would round to infinity again."""
    lost = {at for at in range(len(nodes)) if accuracy.nodes[at]["overflow"] > 0}
    values = {nodes[at].value for at in lost}
    return lost | {at for at, node in enumerate(nodes) if not values.isdisjoint(node.inputs)}


def _weights(accuracy: PrecisionAccuracy, nodes: Sequence[ObservedNode]) -> list[float]:
    rows = accuracy.nodes
    own = [_noise(float(row["own_sqnr_db"])) for row in rows]
    inherited = [_noise(float(row["inherited_sqnr_db"])) for row in rows]
    at_value = {node.value: at for at, node in enumerate(nodes)}
    reads = [[at_value[name] for name in node.inputs if name in at_value] for node in nodes]
    is_read = {place for places in reads for place in places}
    travel = [0.0 if at in is_read else 1.0 for at in range(len(nodes))]
    for at in range(len(nodes) - 1, -1, -1):
        given = sum(inherited[place] for place in reads[at])
        if not given:
            continue
        gain = max(0.0, inherited[at] - own[at]) / given
        for place in reads[at]:
            travel[place] += gain * travel[at]
    return [error * far for error, far in zip(own, travel, strict=True)]


def _noise(sqnr_db: float) -> float:
    """Return the power of an error over that of its value; at most 1, above which all is lost."""
    if math.isnan(sqnr_db):
        return 0.0
    return 1.0 if sqnr_db <= 0 else 10 ** (-sqnr_db / 10)
