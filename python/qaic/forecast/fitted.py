"""The shipped fit: parameters, the width of intervals, and the range of the rows it was made from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from qaic.forecast.speed import Parameters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qaic.forecast.cards import Card
    from qaic.forecast.operations import OperationTable
    from qaic.forecast.speed import Settings

#: models of which most multiply-accumulates are of convolutions are compared with image classifiers
_CONVOLUTIONAL = 0.5


@dataclass(frozen=True, slots=True)
class Fitted:
    """Result of the fit to the measured rows.

    Parameters
    ----------
    parameters
        Rates and times.
    intervals
        Half of the 90 % interval in logarithms, by kind of model and quantity.
    within
        Part of the residuals that differs between configurations of one model, by kind of model.
    ranges
        Least and largest value of each property of a model and of a configuration.
    rows, models
        Number of measured rows and of their models.
    """

    parameters: Parameters
    intervals: Mapping[str, Mapping[str, float]]
    within: Mapping[str, float]
    ranges: Mapping[str, Sequence[float]]
    rows: int
    models: int

    @property
    def source(self) -> str:
        """Sentence about the measurements."""
        return (
            f"fitted on {self.rows} published measurements of {self.models} text encoders and image "
            "classifiers in float16 on cards with 14 cores"
        )


@lru_cache(maxsize=1)
def shipped() -> Fitted:
    """Return the fit of this package."""
    value: dict[str, Any] = json.loads((files(__package__) / "parameters.json").read_text(encoding="utf-8"))
    parameters = Parameters.from_json(value["parameters"])
    return Fitted(parameters, *(value[name] for name in ("intervals", "within", "range", "rows", "models")))


def kind_of(table: OperationTable) -> str:
    """Return the kind of models that a model is compared with: ``convolutions`` or ``products``."""
    return "convolutions" if table.convolutions > _CONVOLUTIONAL else "products"


def reasons_outside(
    table: OperationTable, settings: Settings, fitted: Fitted, card: Card, precision: str
) -> list[str]:
    """List in which ways a forecast goes beyond the measured rows; each makes its interval twice as wide."""
    found = []
    if precision != "fp16":
        found.append(f"the precision is {precision}; all measurements are of float16")
    if not card.is_measured:
        found.append(f"the card is {card.name}; all measurements are of cards with 14 cores")
    if table.state_bytes:
        found.append("the model keeps state on the card, as decoders do; no measured model does")
    samples = table.samples
    for name, shown, value in (
        ("macs", "multiply-accumulates of a sample", table.total("macs") / samples),
        ("weights", "weights", table.total("weights")),
        ("operations", "operations", table.rows["count"].sum()),
        ("input_bytes", "bytes of inputs of a sample", table.input_bytes / samples),
        ("output_bytes", "bytes of outputs of a sample", table.output_bytes / samples),
    ):
        low, high = fitted.ranges[name]
        if not low / 2 <= value <= high * 2:
            found.append(f"{shown}: {value:.3g}, measured models have {low:.3g} to {high:.3g}")
    for name, values in zip(settings._fields, settings, strict=True):
        low, high = fitted.ranges[name]
        if values.size and not (low <= values.min() and values.max() <= high):
            found.append(f"{name.replace('_', ' ')}: measured configurations have {low:.0f} to {high:.0f}")
    if table.unknown:
        found.append(f"nodes in loops or of unknown shape, whose work is not counted: {table.unknown}")
    return found
