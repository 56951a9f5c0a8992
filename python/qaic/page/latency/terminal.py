"""Latencies in a terminal: figures and a histogram of plain characters."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from qaic.page.latency.distribution import histogram

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from qaic.page.latency.distribution import Distribution

_BARS = 20


def latency_text(distribution: Distribution, *, width: int = 80) -> str:
    """Return figures, and a histogram where the latencies are known, in lines of ``width`` characters."""
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
    edges = [f"{edge * per_second:.{_digits(bars.edges, per_second)}f}" for edge in bars.edges]
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
        # What was seen at all is seen here.
        bar = "#" * max(round(count * room / max(counts)), 1 if count else 0)
        yield f"  {label:>{label_size}}  {count:>{count_size}}  {bar}".rstrip()


def _digits(edges: NDArray[np.float64], per_second: float) -> int:
    """How many digits the width of a bar needs, so that neighboring edges differ."""
    width = float(edges[1] - edges[0]) * per_second
    digits = 0
    while digits < 9 and abs(round(width * 10**digits) - width * 10**digits) > 1e-6 * width * 10**digits:
        digits += 1
    return digits
