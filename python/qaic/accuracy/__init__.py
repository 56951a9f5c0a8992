"""How well a program computes in reduced precision: which node loses, why, and what has to stay in float32.

`compare` computes a model in float32 and as it would be deployed, in parallel in one graph, and states where
they part. `search` finds a smallest set of nodes that keeps a target when it stays in float32.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qaic.accuracy.comparison import compare
    from qaic.accuracy.precision_search.plan import PrecisionPlan
    from qaic.accuracy.precision_search.search import search
    from qaic.accuracy.reports.report import AccuracyReport, PrecisionAccuracy

__all__ = ["AccuracyReport", "PrecisionAccuracy", "PrecisionPlan", "compare", "search"]

_HOMES = {
    "AccuracyReport": "reports.report",
    "PrecisionAccuracy": "reports.report",
    "PrecisionPlan": "precision_search.plan",
    "compare": "comparison",
    "search": "precision_search.search",
}


def __getattr__(name: str) -> object:
    """Load a public name from its home on first use."""
    if name not in _HOMES:
        message = f"module 'qaic.accuracy' has no attribute {name!r}"
        raise AttributeError(message)
    value: object = getattr(importlib.import_module(f"qaic.accuracy.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
