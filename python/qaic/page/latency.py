"""Data of latency pictures: extremes, percentiles, a histogram, the curve over time."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qaic.errors import InputError
from qaic.support.text import counted, three_digits

#: percentiles that are shown, with their names
PERCENTILES: Final = {"P25": 25.0, "P50": 50.0, "P75": 75.0, "P90": 90.0, "P99": 99.0, "P99.9": 99.9}
# The end of a chart excludes a maximum beyond this many times the usual latency, or the range up to it.
_LONG_TAIL = 4.0


@dataclass(frozen=True)
class Distribution:
    """Statistics of latencies, in seconds.

    ``seconds`` are the latencies in the order of measurement, or None if only statistics are known.
    """

    what: str
    count: int
    minimum: float
    maximum: float
    mean: float
    percentiles: Mapping[str, float]
    seconds: NDArray[np.float64] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, seconds: ArrayLike, *, what: str = "run") -> "Distribution":
        """Reduce latencies. Raises InputError if there are none, or one is negative or no number."""
        values = np.asarray(seconds, np.float64).reshape(-1)
        if not len(values):
            raise InputError("no latencies to draw", code="plot.empty")
        if not (np.isfinite(values) & (values >= 0)).all():
            raise InputError(
                "a latency is negative, infinite or not a number; seconds of 0 or more are expected",
                code="plot.latency",
            )
        return cls(
            what,
            len(values),
            float(values.min()),
            float(values.max()),
            float(values.mean()),
            {name: float(np.percentile(values, rank)) for name, rank in PERCENTILES.items()},
            values,
        )

    @classmethod
    def of_metrics(cls, metrics: Mapping[str, Any]) -> "Distribution":
        """Convert the result of ``Session.get_metrics``.

        Raises InputError if a figure is missing or no number.
        """
        keys = {"P25": "P25", "P50": "P50", "P75": "P75", "P90": "P90", "P99": "P99", "P99.9": "P999"}
        wanted = ["num_of_inferences", "min_latency", "max_latency", "avg_latency", *keys.values()]
        for key in wanted:
            value = metrics.get(key)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise InputError(
                    f"metrics: {key} is {value!r}; a number of at least 0 is expected", code="plot.metrics"
                )
        return cls(
            "run",
            int(metrics["num_of_inferences"]),
            float(metrics["min_latency"]),
            float(metrics["max_latency"]),
            float(metrics["avg_latency"]),
            {name: float(metrics[key]) for name, key in keys.items()},
        )

    @property
    def unit(self) -> tuple[str, float]:
        """The unit that suits most latencies, and the number of units in a second."""
        return unit_of(self.percentiles["P50"] or self.maximum)

    @property
    def top(self) -> float:
        """The end of the charts, in seconds; it excludes a few much slower values."""
        usual = self.percentiles["P99"]
        return self.maximum if self.maximum <= _LONG_TAIL * usual else 2 * usual

    @property
    def counted(self) -> str:
        """The number of measurements, such as ``5 runs``."""
        return counted(self.count, self.what)

    def text(self, seconds: float) -> str:
        """Return a latency in that unit."""
        name, per_second = self.unit
        return f"{three_digits(seconds * per_second)} {name}"

    def rows(self) -> list[tuple[str, float]]:
        """Names and seconds of all figures, from the minimum to the maximum."""
        return [("min", self.minimum), *self.percentiles.items(), ("max", self.maximum), ("mean", self.mean)]


def unit_of(seconds: float) -> tuple[str, float]:
    """Return the unit that suits a latency, and the number of units in a second."""
    for name, per_second in (("s", 1.0), ("ms", 1e3)):
        if seconds * per_second >= 1:
            return name, per_second
    return "us", 1e6


@dataclass(frozen=True)
class Histogram:
    """Counts between edges, in seconds; ``above`` is how many are beyond the last edge."""

    edges: NDArray[np.float64]
    counts: NDArray[np.int64]
    above: int


def histogram(seconds: NDArray[np.float64], bins: int) -> Histogram:
    """Count latencies in at most ``bins`` intervals of a round width.

    A few much slower latencies are counted separately; otherwise all others would be in one bar.
    """
    least, most = float(seconds.min()), float(seconds.max())
    usual = float(np.percentile(seconds, 99))
    tail = most > usual + _LONG_TAIL * max(usual - least, usual * 0.05)
    top = usual + (usual - least) * 0.25 if tail else most
    width = _round_up((top - least) / max(1, bins - 2) if top > least else max(least, 1e-9) * 0.1)
    first = math.floor(least / width)
    last = max(math.floor(top / width) + 1, first + 1)
    edges = np.arange(first, last + 1, dtype=np.float64) * np.float64(width)
    # By rounding, the smallest may be below its edge, and the largest above.
    place = np.clip(np.floor(seconds / width).astype(np.int64) - first, 0, None)
    inside = place < len(edges) - 1 if tail else np.ones(len(seconds), bool)
    place = np.minimum(place, len(edges) - 2)
    counts = np.bincount(place[inside], minlength=len(edges) - 1)
    return Histogram(edges, counts, int(np.count_nonzero(~inside)))


def _round_up(width: float) -> float:
    power = 10.0 ** math.floor(math.log10(width))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= width * (1 - 1e-9))


@dataclass(frozen=True)
class Curve:
    """Latencies in the order of measurement, reduced to columns, in seconds."""

    first: NDArray[np.int64]
    minimum: NDArray[np.float64]
    middle: NDArray[np.float64]
    maximum: NDArray[np.float64]


def curve(seconds: NDArray[np.float64], columns: int) -> Curve:
    """Reduce latencies to columns of as many neighbors as needed, each with minimum, median and maximum."""
    count = min(columns, len(seconds))
    first = np.arange(count) * len(seconds) // count
    groups = np.split(seconds, first[1:])
    return Curve(
        first,
        np.minimum.reduceat(seconds, first),
        np.array([np.median(group) for group in groups]),
        np.maximum.reduceat(seconds, first),
    )


_BARS = 20


def latency_text(distribution: Distribution, *, width: int = 80) -> str:
    """Return statistics, and a histogram if the latencies are known, in lines of ``width`` characters."""
    return "\n".join(_lines(distribution, width))


def _lines(distribution: Distribution, width: int) -> Iterator[str]:
    yield f"Latency of {distribution.counted}"
    rows = [(name, distribution.text(seconds)) for name, seconds in distribution.rows()]
    size = max(len(text) for _, text in rows)
    yield from (f"  {name:<6} {text:>{size}}" for name, text in rows)
    if distribution.seconds is None:
        return
    bars = histogram(distribution.seconds, _BARS)
    unit, per_second = distribution.unit
    edges = [f"{edge * per_second:.{edge_digits(bars.edges, per_second)}f}" for edge in bars.edges]
    labels = [f"{low} - {high} {unit}" for low, high in pairwise(edges)]
    counts = bars.counts.tolist()
    if bars.above:
        labels.append(f"more than {edges[-1]} {unit}")
        counts.append(bars.above)
    label_size = max(map(len, labels))
    count_size = len(str(max(counts)))
    room = max(8, width - label_size - count_size - 6)
    yield ""
    for label, count in zip(labels, counts, strict=True):
        # A count that is not zero has a mark.
        bar = "#" * max(round(count * room / max(counts)), 1 if count else 0)
        yield f"  {label:>{label_size}}  {count:>{count_size}}  {bar}".rstrip()


def edge_digits(edges: NDArray[np.float64], per_second: float) -> int:
    """Return the number of digits for which neighboring edges of bars differ."""
    width = float(edges[1] - edges[0]) * per_second
    digits = 0
    while digits < 9 and abs(round(width * 10**digits) - width * 10**digits) > 1e-6 * width * 10**digits:
        digits += 1
    return digits
