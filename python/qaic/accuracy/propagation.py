"""Estimates how much the error of each node contributes to the errors of the outputs."""

import math
from collections.abc import Sequence
from typing import Final

from qaic.accuracy.observed import ObservedNode

#: divisor of an inherited error; at least this part is assumed to come from the operands
_LEAST_PART: Final = 10


def noise(sqnr_db: float) -> float:
    """Return the power of an error divided by the power of its value, at most 1 for a lost value."""
    if math.isnan(sqnr_db):
        return 0.0
    return 1.0 if sqnr_db <= 0 else 10 ** (-sqnr_db / 10)


def parts_at_outputs(
    nodes: Sequence[ObservedNode], own_db: Sequence[float], inherited_db: Sequence[float]
) -> list[float]:
    """Return, for each node, the part of an error in its result that reaches the outputs.

    `own_db` and `inherited_db` are the errors of the nodes, in the order of the graph.
    """
    own, inherited = list(map(noise, own_db)), list(map(noise, inherited_db))
    at_value = {node.value: at for at, node in enumerate(nodes)}
    reads = [[at_value[name] for name in node.inputs if name in at_value] for node in nodes]
    is_read = {place for places in reads for place in places}
    parts = [0.0 if at in is_read else 1.0 for at in range(len(nodes))]
    for at in range(len(nodes) - 1, -1, -1):
        given = sum(inherited[place] for place in reads[at])
        if not given:
            continue
        # Errors may cancel, so that a node inherits less than it adds; its operands still matter then.
        gain = max(inherited[at] - own[at], inherited[at] / _LEAST_PART) / given
        for place in reads[at]:
            parts[place] += gain * parts[at]
    return parts
