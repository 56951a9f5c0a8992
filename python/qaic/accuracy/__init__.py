"""How well a program computes in reduced precision: which node loses, why, and what has to stay in float32.

`compare` computes a model in float32 and as it would be deployed, in parallel in one graph, and states where
they part. `search` finds a smallest set of nodes that keeps a target when it stays in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qaic.support.lazy_module import lazy_door

if TYPE_CHECKING:
    from qaic.accuracy.comparison import compare
    from qaic.accuracy.precision_search.plan import PrecisionPlan
    from qaic.accuracy.precision_search.search import search
    from qaic.accuracy.reports.report import AccuracyReport, PrecisionAccuracy

__all__ = ["AccuracyReport", "PrecisionAccuracy", "PrecisionPlan", "compare", "search"]

__getattr__ = lazy_door(
    __name__,
    {
        ".reports.report": "AccuracyReport PrecisionAccuracy",
        ".precision_search.plan": "PrecisionPlan",
        ".comparison": "compare",
        ".precision_search.search": "search",
    },
)
