"""Forecasts without a card: support, memory and speed of a model on one.

`check` answers for a model. Its forecast of speed has few physical parameters, fitted on published
measurements; ``docs/forecast.md`` has them, and its errors on models that it has not seen.
"""

from qaic.forecast.model_check import check
from qaic.forecast.report import CheckReport

__all__ = ["CheckReport", "check"]
