"""Errors of nodes as Model Explorer's node data: results for nodes, and colors by thresholds.

The format is that of https://github.com/google-ai-edge/model-explorer/wiki (custom node data), in its form
for one graph, whatever that is called: ``results`` by the name of an output of a node, and ``thresholds``. A
``gradient`` would go from the smallest to the largest value of the file, and show a good program in red.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from qaic.accuracy.reports.report import PrecisionAccuracy

_LEAST, _MOST = 0.0, 80.0
#: largest value in dB -> color: as wrong, fair and good outputs
_THRESHOLDS: Final = ((20.0, "#e57368"), (40.0, "#f4d160"), (_MOST, "#7fc99a"))


def overlay(item: PrecisionAccuracy) -> dict[str, object]:
    """Return the inherited SQNR of every node, limited to 0 to 80 dB, by the first output of the node."""
    results = {
        str(row["name"]): {"value": round(_limited(float(row["inherited_sqnr_db"])), 2)}
        for row in item.nodes
        if not math.isnan(row["inherited_sqnr_db"])
    }
    thresholds = [{"value": value, "bgColor": color} for value, color in _THRESHOLDS]
    return {"results": results, "thresholds": thresholds}


def _limited(value: float) -> float:
    return min(max(value, _LEAST), _MOST)
