"""Histograms of values by powers of two, of the reference and of the deployed program.

Bins are the octaves of sizes, which is what formats of floats have: the first bin is of zeros, the last of
infinity and NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from qaic.accuracy.observed import Elements

#: exponents of the smallest and of the largest octave; smaller and larger sizes are counted there
LEAST_EXPONENT: Final = -32
MOST_EXPONENT: Final = 31
#: bins: zeros, the octaves, what is not finite
BINS: Final = MOST_EXPONENT - LEAST_EXPONENT + 3


class Histograms:
    """Counts of values.

    Parameters
    ----------
    elements : sequence of Elements
        Where the elements of each value are.
    """

    def __init__(self, elements: Sequence[Elements]) -> None:
        self._rows = {item.row: at for at, item in enumerate(elements)}
        lines = np.arange(2 * len(elements))
        counts = np.repeat([item.count for item in elements], 2) if elements else lines
        #: line of counts of every element: two for each value
        self._lines = np.repeat(lines, counts)
        self._counts = np.zeros((len(lines), BINS), np.int64)

    def add(self, values: NDArray[np.float32]) -> None:
        """Take the elements of one run."""
        places = self._lines * BINS + _bins(values.reshape(-1))
        self._counts += np.bincount(places, minlength=self._counts.size).reshape(self._counts.shape)

    def of(self, row: int) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Return the counts of a row, of the reference and of the deployed program; None without any."""
        at = self._rows.get(row)
        return None if at is None else (self._counts[2 * at], self._counts[2 * at + 1])


def _bins(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the bin of each value."""
    _, exponents = np.frexp(values)
    octaves = np.clip(exponents - 1, LEAST_EXPONENT, MOST_EXPONENT) - LEAST_EXPONENT + 1
    found: NDArray[np.int64] = np.where(values == 0, 0, octaves).astype(np.int64)
    found[~np.isfinite(values)] = BINS - 1
    return found
