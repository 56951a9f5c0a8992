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

#: exponents of the smallest and of the largest octave; smaller and larger sizes are counted there
LEAST_EXPONENT: Final = -32
MOST_EXPONENT: Final = 31
#: bins: zeros, the octaves, what is not finite
BINS: Final = MOST_EXPONENT - LEAST_EXPONENT + 3


class Histograms:
    """Counts of values.

    Parameters
    ----------
    elements : sequence of int
        How many elements there are of the value of each node: those of the reference, then those of the
        deployed program.
    """

    def __init__(self, elements: Sequence[int]) -> None:
        self._rows = {row: at for at, row in enumerate(np.flatnonzero(elements).tolist())}
        lines = np.arange(2 * len(self._rows))
        counts = np.repeat([count for count in elements if count], 2) if self._rows else lines
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
