"""Throughput and latency of a model on a card, from the work of its operations.

An inference takes the longer of two times, because weights are fetched while the cores compute: the time of
multiply-accumulates, vector steps and functions on the cores of an instance, and that of weights and
activations beyond the on-chip memory through the DDR, which all instances share. Each operation adds a fixed
time, and another for every cut if a sample is split among cores. The host converts and transfers inputs and
outputs; with a set size above 1 this overlaps with the device.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qaic.forecast.operations import OperationTable

Array = NDArray[np.float64]

#: peak of int8 divided by that of float16, for the card with 14 cores: 325 TOPS and 110 TFLOPS
_INT8_GAIN: Final = 325 / 110
#: peak of float16 for each core of the measured card, in TFLOPS
_MEASURED: Final = 110 / 14


@dataclass(frozen=True, slots=True)
class Card:
    """Properties of a card."""

    #: Name of the product.
    name: str
    #: Chips on the card, each a device.
    devices: int
    #: Cores of a device.
    cores: int
    #: DDR of a device.
    memory_bytes: int
    #: Peak of a device in float16.
    tflops: float

    @property
    def clock(self) -> float:
        """Peak rate of a core divided by that of the measured card."""
        return self.tflops / self.cores / _MEASURED

    @staticmethod
    def mac_gain(precision: str) -> float:
        """Return the peak rate of multiply-accumulates divided by that of float16."""
        return _INT8_GAIN if "int8" in precision.split("+") else 1.0


_GIB: Final = 1 << 30
CARDS: Final = {
    card.name: card
    for card in (
        Card("standard", 1, 14, 16 * _GIB, 110),
        Card("pro", 1, 16, 32 * _GIB, 125),
        Card("ultra", 4, 16, 32 * _GIB, 290 / 4),
    )
}


#: exponent that joins the times of a pipeline; the result is slightly longer than two equal times
_SHARPNESS: Final = 12

#: names of `Forecast.limits`, by number; overhead includes that of operations and of parts of samples
LIMITS: Final = ("computing", "DDR", "overhead", "inputs", "outputs", "host")


@dataclass(frozen=True, slots=True)
class Parameters:
    """Rates and times of one core, card and host, in SI units; fitted by ``tools/forecast``."""

    #: Multiply-accumulates per second of a core, in the matrix unit and in convolutions of single channels.
    mac_rate: float
    depthwise_rate: float
    #: Numbers of sums and columns of a product at which the matrix unit reaches half of its rate.
    depth_half: float
    width_half: float
    #: Elements per second of a core, in simple steps and in functions such as exp.
    step_rate: float
    function_rate: float
    #: Bytes per second of the DDR.
    ddr_rate: float
    #: Bytes of the operands of an operation that each core keeps on the chip.
    kept_bytes: float
    #: Seconds for each operation, and for each further part that a sample is cut into.
    operation_s: float
    cut_s: float
    #: Fraction of the compute time that each further part adds.
    cut_loss: float
    #: Seconds of the host for each inference.
    request_s: float
    #: Bytes per second between host and card, for all instances together.
    input_rate: float
    output_rate: float
    #: Bytes per second that the host converts for one inference.
    host_input_rate: float
    host_output_rate: float

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Parameters":
        """Read a mapping with a number for each name."""
        return cls(**{field.name: float(value[field.name]) for field in fields(cls)})


class Settings(NamedTuple):
    """Configurations, one for each element of the arrays."""

    #: Cores of one instance.
    cores: Array
    #: Instances at a time.
    instances: Array
    #: Samples in one inference.
    batch: Array
    #: Inferences that wait or run for each instance.
    set_size: Array


class Forecast(NamedTuple):
    """Forecasts, one for each configuration."""

    #: Samples per second, all instances together.
    samples_per_s: Array
    #: Seconds from the submission of an inference to its outputs, with the set size as the number in flight.
    latency_s: Array
    #: Seconds of one inference on the card.
    device_s: Array
    #: Number of the largest part in `LIMITS`.
    limits: NDArray[np.int64]


def forecast(
    table: OperationTable, settings: Settings, parameters: Parameters, card: Card, *, precision: str = "fp16"
) -> Forecast:
    """Forecast the speed of a model in some configurations.

    `table` has the work of one inference. `parameters` are those of the measured cards, from which the rates
    of `card` are scaled. `precision` is ``fp16``; ``int8`` and ``mxfp6`` are extrapolated from public peak
    rates and the bytes of weights.
    """
    cores, instances, batch, set_size = (np.asarray(value, np.float64) for value in settings)
    p, rows = parameters, table.rows
    count = rows["count"]
    scale = batch / table.samples
    macs = rows["macs"]
    use = rows["depth"] / (rows["depth"] + p.depth_half) * rows["width"] / (rows["width"] + p.width_half)
    rate = np.where(rows["width"] == 1, p.depthwise_rate, p.mac_rate * np.maximum(use, 1e-9))
    products = float((count * macs / rate).sum()) / card.mac_gain(precision)
    others = float((count * (rows["steps"] / p.step_rate + rows["functions"] / p.function_rate)).sum())
    cuts = np.maximum(cores / batch, 1) - 1
    computing = scale * (products + others) / card.clock / cores * (1 + p.cut_loss * cuts)
    kept, at = np.unique(cores, return_inverse=True)
    element_bytes = 1 if "int8" in precision.split("+") else 2
    moved = rows["moved"] / table.samples * element_bytes
    spilled = np.array([(count * np.maximum(0, moved - each * p.kept_bytes)).sum() for each in kept])[at]
    state = scale * table.state_bytes / 2 * element_bytes
    fetching = (table.weight_bytes(precision) + state + batch * spilled) * instances / p.ddr_rate
    waiting = float(count.sum()) * (p.operation_s + p.cut_s * cuts)
    device = np.maximum(computing, fetching) + waiting
    inputs, outputs = scale * table.input_bytes, scale * table.output_bytes
    host = p.request_s + inputs / p.host_input_rate + outputs / p.host_output_rate
    alone = device + inputs / p.input_rate + outputs / p.output_rate + host
    parts = np.stack(
        [
            np.where(computing >= fetching, device, 0),
            np.where(computing < fetching, device, 0),
            waiting,
            instances * inputs / p.input_rate,
            instances * outputs / p.output_rate,
            alone / set_size,
        ]
    )
    together = np.stack([device, *parts[3:]])
    longest = together.max(axis=0)
    cycle = longest * ((together / longest) ** _SHARPNESS).sum(axis=0) ** (1 / _SHARPNESS)
    shares = parts.copy()
    shares[:2] -= np.where(shares[:2] > 0, waiting, 0)
    shares[5] = np.where(set_size == 1, alone - device, alone / set_size * (alone / set_size > device))
    return Forecast(instances * batch / cycle, set_size * cycle, device, shares.argmax(axis=0))


#: share of multiply-accumulates in convolutions above which a model is compared with image classifiers
_CONVOLUTIONAL = 0.5


@dataclass(frozen=True, slots=True)
class Fitted:
    """Result of the fit to the measured rows."""

    #: Rates and times.
    parameters: Parameters
    #: Half width of the 90 % interval in logarithms, by kind of model and quantity.
    intervals: Mapping[str, Mapping[str, float]]
    #: Part of the residuals that varies between configurations of one model, by kind of model.
    within: Mapping[str, float]
    #: Smallest and largest value of each property of a model and of a configuration.
    ranges: Mapping[str, Sequence[float]]
    #: Number of measured rows and of their models.
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
    """Return the kind of models with which a model is compared: ``convolutions`` or ``products``."""
    return "convolutions" if table.convolutions > _CONVOLUTIONAL else "products"


def reasons_outside(
    table: OperationTable, settings: Settings, fitted: Fitted, card: Card, precision: str
) -> list[str]:
    """List the differences of a forecast from the measured rows; each doubles the width of its interval."""
    found = []
    if precision != "fp16":
        found.append(f"the precision is {precision}; all measurements are of float16")
    if card.name != "standard":
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
            found.append(f"{shown}: {value:,.0f}, measured models have {low:,.0f} to {high:,.0f}")
    for name, values in zip(settings._fields, settings, strict=True):
        low, high = fitted.ranges[name]
        if values.size and not (low <= values.min() and values.max() <= high):
            found.append(f"{name.replace('_', ' ')}: measured configurations have {low:.0f} to {high:.0f}")
    if table.unknown:
        found.append(f"nodes in loops or of unknown shape, whose work is not counted: {table.unknown}")
    return found
