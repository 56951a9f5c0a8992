"""Throughput and latency of a model on a card, from the work of its operations.

An inference takes the longer of two times, because weights are fetched while the cores compute: the time of
multiply-accumulates, vector steps and functions on the cores of an instance, and that of weights and
activations beyond the on-chip memory through the DDR, which all instances share. Each operation adds a fixed
time, and one for every cut where a sample is cut among cores. The host converts and transfers inputs and
outputs; with a set size above 1 this overlaps with the device.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from qaic.forecast.cards import Card
    from qaic.forecast.operations import OperationTable

    Array = NDArray[np.float64]

#: exponent that joins the limits of a pipeline: near the longest, a little above where two are equal
_SHARPNESS: Final = 12

#: names of `Forecast.limits`, by their numbers; overhead is of operations and of the parts of samples
LIMITS: Final = ("computing", "DDR", "overhead", "inputs", "outputs", "host")


@dataclass(frozen=True, slots=True)
class Parameters:
    """Rates and times of one core, card and host, in SI units; fitted by ``tools/forecast``.

    Parameters
    ----------
    mac_rate, depthwise_rate
        Multiply-accumulates per second of a core: of the matrix unit, and of convolutions of single channels.
    depth_half, width_half
        Sums and columns of a product at which the matrix unit has half of its rate.
    step_rate, function_rate
        Elements per second of a core: simple steps, and functions such as exp.
    ddr_rate
        Bytes per second of the DDR.
    kept_bytes
        Bytes of the operands of an operation that each core keeps on the chip.
    operation_s, cut_s
        Seconds for each operation, and for each further part that a sample is cut into.
    cut_loss
        Part of the computing that each further part adds.
    request_s
        Seconds of the host for each inference.
    input_rate, output_rate
        Bytes per second between host and card, of all instances.
    host_input_rate, host_output_rate
        Bytes per second that the host converts for one inference.
    """

    mac_rate: float
    depthwise_rate: float
    depth_half: float
    width_half: float
    step_rate: float
    function_rate: float
    ddr_rate: float
    kept_bytes: float
    operation_s: float
    cut_s: float
    cut_loss: float
    request_s: float
    input_rate: float
    output_rate: float
    host_input_rate: float
    host_output_rate: float

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Parameters:
        """Read a mapping with a number for each name."""
        return cls(**{field.name: float(value[field.name]) for field in fields(cls)})


class Settings(NamedTuple):
    """Configurations, one for each place of the arrays.

    Parameters
    ----------
    cores : array
        Cores of one instance.
    instances : array
        Instances at a time.
    batch : array
        Samples in one inference.
    set_size : array
        Inferences that wait or run for each instance.
    """

    cores: Array
    instances: Array
    batch: Array
    set_size: Array


class Forecast(NamedTuple):
    """Forecasts, one for each configuration.

    Parameters
    ----------
    samples_per_s : array
        Samples per second, all instances together.
    latency_s : array
        Seconds from the submission of an inference to its outputs, as many in flight as the set size allows.
    device_s : array
        Seconds of one inference on the card.
    limits : array of int
        Number of the largest part in `LIMITS`.
    """

    samples_per_s: Array
    latency_s: Array
    device_s: Array
    limits: NDArray[np.int64]


def forecast(
    table: OperationTable, settings: Settings, parameters: Parameters, card: Card, *, precision: str = "fp16"
) -> Forecast:
    """Forecast the speed of a model in some configurations.

    Parameters
    ----------
    table : OperationTable
        Work of one inference of the model.
    settings : Settings
        Configurations.
    parameters : Parameters
        Of the cards that were measured.
    card : Card
        The card; its rates are scaled from those.
    precision : str
        ``fp16``; ``int8`` and ``mxfp6`` are extrapolated from public peak rates and the bytes of weights.
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
