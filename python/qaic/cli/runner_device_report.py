"""The block ``Device Performance:`` of ``qaic-runner``: what the device measured (stats-profiling §6.2).

The form is the vendor's, blanks at the ends of lines included, for scripts that take it apart.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_SAMPLES = "ProfilingSamples"
_CELL = 15


class Figure:
    """Mean, extremes and population standard deviation of numbers that come one by one."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.least = math.inf
        self.most = -math.inf
        self._squares = 0.0

    def add(self, value: float) -> None:
        """Count one more number. Welford's update: exact also for small deviations of large numbers."""
        self.count += 1
        difference = value - self.mean
        self.mean += difference / self.count
        self._squares += difference * (value - self.mean)
        self.least = min(self.least, value)
        self.most = max(self.most, value)

    @property
    def deviation(self) -> float:
        """Population standard deviation."""
        return math.sqrt(self._squares / self.count)


class DeviceReport:
    """What the device measured of some inferences.

    Parameters
    ----------
    function
        Number of the program in the run.
    """

    def __init__(self, function: int = 0) -> None:
        self._function = function
        self._samples: dict[int | None, int] = {}
        self._figures: dict[str, dict[int | None, Figure]] = {}

    def add(self, measured: Mapping[str, float | None], device: int | None = None) -> None:
        """Count one inference.

        Parameters
        ----------
        measured
            Metrics by name, in the order of the rows; ``None`` is one that was not measured.
        device
            Which device of a program over several; ``None`` for a program's only one.
        """
        self._samples[device] = self._samples.get(device, 0) + 1
        for metric, value in measured.items():
            figures = self._figures.setdefault(metric, {})
            if value is not None:
                figures.setdefault(device, Figure()).add(value)

    def lines(self) -> list[str]:
        """Lines of the block; none when nothing was measured."""
        if not self._samples:
            return []
        return [
            "Device Performance: ",
            "--- Cumulative Device Metrics Report ---",
            *_table(
                ("Metric", "Value", "Unit"),
                [
                    (self._name(_SAMPLES, device), str(count), "Samples")
                    for device, count in self._samples.items()
                ],
            ),
            "--- Aggregated Device Metrics Report ---",
            *_table(("Metric", "Avg", "Min", "Max", "Std"), self._rows()),
        ]

    def _rows(self) -> list[tuple[str, ...]]:
        rows = []
        for metric, figures in self._figures.items():
            for device, figure in figures.items():
                numbers = (figure.mean, figure.least, figure.most, figure.deviation)
                rows.append((self._name(metric, device), *(f"{number:.3f}" for number in numbers)))
        return rows

    def _name(self, metric: str, device: int | None) -> str:
        place = "" if device is None else f"_Dev_{device}"
        return f"{metric}{place}_Func_{self._function}"


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    width = max(len(row[0]) for row in (header, *rows)) + 1
    return [
        "".join(
            [f"{row[0]},".ljust(width)]
            + [f"{cell},".ljust(_CELL) for cell in row[1:-1]]
            + [row[-1].ljust(_CELL)]
        )
        for row in (header, *rows)
    ]
