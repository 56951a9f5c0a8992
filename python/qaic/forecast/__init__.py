"""Forecasts of support, memory and speed of a model on a card, without a card.

`check` checks a model. Its forecast of speed has few physical parameters, which were fitted to published
measurements; ``docs/forecast.md`` lists them, and the errors for models that were not used for the fit.
"""

from qaic.forecast.model_check import check
from qaic.forecast.report import CheckReport

__all__ = ["CheckReport", "check"]
