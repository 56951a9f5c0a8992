"""Finds the nodes that lose accuracy in reduced precision, the reasons, and the nodes to keep in float32.

`compare` runs a model in float32 and in the target precision, in one graph, and reports where the
results diverge. `search` finds a smallest set of nodes that must stay in float32 to reach a target.
"""

from typing import TYPE_CHECKING

from qaic.support.lazy_module import lazy_door

if TYPE_CHECKING:
    from qaic.accuracy.comparison import compare
    from qaic.accuracy.precision_search.plan import PrecisionPlan
    from qaic.accuracy.precision_search.search import search
    from qaic.accuracy.reports.precision_accuracy import PrecisionAccuracy
    from qaic.accuracy.reports.report import AccuracyReport

__all__ = ["AccuracyReport", "PrecisionAccuracy", "PrecisionPlan", "compare", "search"]

__getattr__ = lazy_door(
    __name__,
    {
        ".reports.report": "AccuracyReport",
        ".reports.precision_accuracy": "PrecisionAccuracy",
        ".precision_search.plan": "PrecisionPlan",
        ".comparison": "compare",
        ".precision_search.search": "search",
    },
)
