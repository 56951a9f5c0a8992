"""Configurations that a model can run in, and the best of them for throughput, for latency, and balanced."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from qaic.forecast.operations import OperationTable
from qaic.forecast.speed import LIMITS, Card, Parameters, Settings, forecast

_BATCHES: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16)
_SET_SIZES: Final = (1, 2, 4)
#: goal of a configuration -> quantity to maximize
OBJECTIVES: Final = ("throughput", "latency", "balanced")
#: largest difference of forecasts, in logarithms, that counts as equal
_EQUAL: Final = 0.01


@dataclass(frozen=True, slots=True)
class Correction:
    """Factors for forecasts, and half widths of their intervals in logarithms."""

    samples_per_s: float
    latency_s: float
    samples_per_s_width: float
    latency_s_width: float
    runs: int = 0


@dataclass(frozen=True, slots=True)
class Fixed:
    """Settings that the user has fixed; None for an open one."""

    cores: int | None = None
    instances: int | None = None
    batch: int | None = None
    set_size: int | None = None


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration with its forecast."""

    #: Cores of one instance, instances at a time, samples in an inference, inferences in flight of each.
    cores: int
    instances: int
    batch: int
    set_size: int
    #: Lower end, value, and upper end of the 90 % interval.
    samples_per_s: tuple[float, float, float]
    latency_s: tuple[float, float, float]
    #: The part that takes most of the time.
    limit: str


def candidates(card: Card, fixed: Fixed) -> Settings:
    """Return the configurations that fit the cores of a device, with as many instances as fit."""
    rows = []
    for cores in (fixed.cores,) if fixed.cores else range(1, card.cores + 1):
        most = card.cores // cores
        for instances in (fixed.instances,) if fixed.instances else sorted({1, most}):
            if not 1 <= instances <= most:
                continue
            rows += [
                (cores, instances, batch, set_size)
                for batch in ((fixed.batch,) if fixed.batch else _BATCHES)
                for set_size in ((fixed.set_size,) if fixed.set_size else _SET_SIZES)
            ]
    return Settings(*np.array(rows, np.float64).reshape(-1, 4).T)


class Ranking:
    """Forecasts of all candidates, with the factors and widths of intervals of a correction."""

    def __init__(
        self,
        table: OperationTable,
        settings: Settings,
        parameters: Parameters,
        card: Card,
        *,
        precision: str,
        correction: Correction,
    ) -> None:
        self.settings = settings
        self._correction = correction
        found = forecast(table, settings, parameters, card, precision=precision)
        self._samples_per_s = found.samples_per_s * correction.samples_per_s
        self._latency_s = found.latency_s * correction.latency_s
        self._limits = found.limits

    def __len__(self) -> int:
        return len(self.settings.cores)

    def best(self, objective: str, count: int = 3) -> list[Configuration]:
        """Return the best configurations for one of `OBJECTIVES`, which differ in cores or batch."""
        speed, delay = np.log(self._samples_per_s), np.log(self._latency_s)
        # Smaller differences of a forecast have no meaning, so the other quantity determines the order.
        goals: dict[str, tuple[NDArray[np.float64], ...]] = {
            "throughput": (delay, -speed),
            # More inferences in flight would only wait.
            "latency": (-speed, self.settings.set_size, delay),
            "balanced": (delay, delay / 2 - speed),
        }
        *others, first = goals[objective]
        order = np.lexsort((*others, np.floor((first - first.min(initial=0)) / _EQUAL)))
        found: list[Configuration] = []
        seen: set[tuple[float, ...]] = set()
        for at in order:
            key = (self.settings.cores[at], self.settings.batch[at])
            if key not in seen:
                seen.add(key)
                found.append(self.at(int(at)))
            if len(found) == count:
                break
        return found

    def at(self, place: int) -> Configuration:
        """Return one configuration."""
        cores, instances, batch, set_size = (int(values[place]) for values in self.settings)
        return Configuration(
            cores,
            instances,
            batch,
            set_size,
            _interval(self._samples_per_s[place], self._correction.samples_per_s_width),
            _interval(self._latency_s[place], self._correction.latency_s_width),
            LIMITS[self._limits[place]],
        )


def _interval(value: float, width: float) -> tuple[float, float, float]:
    factor = float(np.exp(width))
    return float(value) / factor, float(value), float(value) * factor
