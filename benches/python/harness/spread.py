"""Repeated measurements of one quantity, and their text: median with minimum and maximum."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_SCALES = {
    "s": ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "B": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")),
    "B/s": ((1e9, "GB/s"), (1e6, "MB/s")),
    "/s": ((1, "/s"),),
    "x": ((1, "x"),),
}


@dataclass(frozen=True)
class Spread:
    """Values of one quantity in a unit of ``_SCALES``; the median can be an estimate from another source."""

    median: float
    low: float
    high: float
    unit: str

    @classmethod
    def of(cls, values: Iterable[float], unit: str) -> Spread:
        """Compute median, minimum and maximum."""
        listed = sorted(values)
        return cls(statistics.median(listed), listed[0], listed[-1], unit)

    def inverted(self, amount: float, unit: str) -> Spread:
        """Convert the time for an amount to a rate."""
        return Spread(amount / self.median, amount / self.high, amount / self.low, unit)

    def __str__(self) -> str:
        """Write three digits, all in the unit of the median."""
        scales = _SCALES[self.unit]
        scale, name = next((pair for pair in scales if abs(self.median) >= pair[0]), scales[-1])
        # Budgets near 1 are in hundredths; another digit shows whether a ratio meets its budget.
        is_fine = self.unit == "x" and self.median >= 0.1 and self.high < 2
        digits = (lambda value: f"{value:.3f}") if is_fine else digits3
        median, low, high = (digits(value / scale) for value in (self.median, self.low, self.high))
        joint = "" if name == "/s" else " "
        return f"{median}{joint}{name} [{low} - {high}]"


def digits3(value: float) -> str:
    """Write a number with about three digits; tiny numbers with one, because only their magnitude matters."""
    size = abs(value)
    if size >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    if size >= 100 or value == 0:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 else f"{float(f'{value:.1g}'):.6f}".rstrip("0")


def ratios(ours: Iterable[float], other: Iterable[float]) -> Spread:
    """Compare neighboring batches, which ran under the same conditions."""
    return Spread.of([a / b for a, b in zip(ours, other, strict=True)], "x")
