"""Candidates that a search can keep in higher precision, the most promising first.

A unit is what rounds together: a node with those that are fused into it, and the same node of a function in
all of its calls. A unit by itself gains less than it adds: what reads its result in the lower precision
rounds it once more. So errors of results are ranked, and each brings the unit that makes it and those that
read it; errors of weights are ranked next to them, and bring their unit alone.

An error counts as much as is left of it at the outputs: times the travel of its place. That is known from the
comparison itself: the error that a node inherits, without its own, over what its operands inherit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

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
    """

    names: tuple[str, ...]


def ranked_units(accuracy: PrecisionAccuracy, nodes: Sequence[ObservedNode]) -> list[Unit]:
    """List the units that are rounded, by the largest error that needs them; overflow is the largest."""
    readers: dict[str, list[int]] = {}
    for at, node in enumerate(nodes):
        for name in node.inputs:
            readers.setdefault(name, []).append(at)
    errors: list[tuple[float, int, list[int]]] = []
    travel = _travel(accuracy, nodes)
    for at, (node, row) in enumerate(zip(nodes, accuracy.nodes, strict=True)):
        own = _noise(float(row["own_sqnr_db"]))
        of_weights = own * float(row["weights_share"])
        size = math.inf if row["overflow"] > 0 else (own - of_weights) * travel[at]
        errors.append((size, at, [at, *readers.get(node.value, ())]))
        errors.append((of_weights * travel[at], at, [at]))
    found: dict[Unit, None] = {}
    for _, _, places in sorted(errors, key=lambda item: (-item[0], item[1], len(item[2]))):
        found |= {Unit(nodes[at].kept_by): None for at in places if nodes[at].kind is not Kind.FLOAT}
    return list(found)


def _travel(accuracy: PrecisionAccuracy, nodes: Sequence[ObservedNode]) -> list[float]:
    """Return how much of an error at the result of each node is left at the outputs."""
    own = [_noise(float(row["own_sqnr_db"])) for row in accuracy.nodes]
    inherited = [_noise(float(row["inherited_sqnr_db"])) for row in accuracy.nodes]
    at_value = {node.value: at for at, node in enumerate(nodes)}
    reads = [[at_value[name] for name in node.inputs if name in at_value] for node in nodes]
    is_read = {place for places in reads for place in places}
    travel = [0.0 if at in is_read else 1.0 for at in range(len(nodes))]
    for at in range(len(nodes) - 1, -1, -1):
        given = sum(inherited[place] for place in reads[at])
        if not given:
            continue
        # Errors may cancel, so that a node inherits less than it adds; none of its operands is harmless then.
        gain = max(inherited[at] - own[at], inherited[at] / _LEAST_PART) / given
        for place in reads[at]:
            travel[place] += gain * travel[at]
    return travel


#: the least part of what a node inherits that is taken to come from its operands
_LEAST_PART: Final = 10


def _noise(sqnr_db: float) -> float:
    """Return the power of an error over that of its value; at most 1, above which all is lost."""
    if math.isnan(sqnr_db):
        return 0.0
    return 1.0 if sqnr_db <= 0 else 10 ** (-sqnr_db / 10)
