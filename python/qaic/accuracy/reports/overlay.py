"""Errors of nodes as Model Explorer's node data: results for nodes, and colours by thresholds.

The format is that of https://github.com/google-ai-edge/model-explorer/wiki (custom node data), in its form
for one graph, whatever that is called: ``results`` by the name of an output of a node, and a ``gradient``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from qaic.accuracy.reports.report import PrecisionAccuracy

#: dB -> colour, from wrong to good
_GRADIENT: Final = (("0.0", "#c0392b"), ("0.5", "#f1c40f"), ("1.0", "#27ae60"))
_LEAST, _MOST = 0.0, 80.0


def overlay(item: PrecisionAccuracy) -> dict[str, object]:
    """Return the inherited SQNR of every node, limited to 0 to 80 dB, by the first output of the node."""
    results = {
        str(row["name"]): {"value": round(_limited(float(row["inherited_sqnr_db"])), 2)}
        for row in item.nodes
        if not math.isnan(row["inherited_sqnr_db"])
    }
    gradient = [{"stop": float(stop), "bgColor": colour} for stop, colour in _GRADIENT]
    return {"name": f"inherited SQNR in dB, {item.to}", "results": results, "gradient": gradient}


def _limited(value: float) -> float:
    return min(max(value, _LEAST), _MOST)
