"""How far outputs are from those of the reference: sums over samples, and what is made of them.

Elements that are equal, infinities and NaN included, have no error. Where the reference is finite and the
other value is not, the error is infinite. Elements whose reference is not finite take no part in powers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qaic.accuracy.channels import ChannelSums
from qaic.accuracy.decibels import decibels
from qaic.accuracy.decisions import decisions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from qaic.accuracy.channels import ChannelAccuracy
    from qaic.accuracy.decisions import Decide


@dataclass(frozen=True, slots=True)
class OutputAccuracy:
    """Errors of one output over all samples.

    Parameters
    ----------
    name
        Name of the output.
    elements
        Number of elements that were compared.
    sqnr_db
        Power of the reference over the power of the difference, in dB: infinite where all is equal, minus
        infinity where a value is not finite or the reference is zero; NaN without elements.
    cosine
        Of the angle between all values and those of the reference; NaN where one of them is zero throughout
        or not finite.
    largest_error, mean_error
        Absolute errors.
    largest_relative_error, mean_relative_error
        Errors over the size of the reference, where that is not zero; NaN where it is zero throughout.
    same
        Share of equal decisions: the largest of the last dimension, or a result of the user's function; of
        integers and booleans, equal elements. NaN where the last dimension has one element.
    first_not_finite
        Sample and element, both from 0, of the first value that is infinite or NaN where the reference is
        finite; None where there is none.
    not_finite
        Number of elements that are infinite or NaN in the reference itself, which have no meaning.
    is_dead
        Whether the output is constant where the reference varies.
    worst_channel
        The channel of the second or last dimension that loses most, a dead one first; None where there are no
        channels of four elements in all samples, or of a hundred-thousandth of the range of the output.
    """

    name: str
    elements: int
    sqnr_db: float
    cosine: float
    largest_error: float
    mean_error: float
    largest_relative_error: float
    mean_relative_error: float
    same: float
    first_not_finite: tuple[int, int] | None
    not_finite: int
    is_dead: bool
    worst_channel: ChannelAccuracy | None

    @property
    def is_equal(self) -> bool:
        """True if there is no difference at all."""
        return self.sqnr_db == math.inf


class OutputSums:
    """Sums of one output; `samples` counts what was taken.

    Parameters
    ----------
    name : str
        Name of the output.
    decide : callable, optional
        What it decides.
    """

    def __init__(self, name: str, decide: Decide | None = None) -> None:
        self.name = name
        self._decide = decide
        self.samples = 0
        self._elements = self._not_finite = 0
        self._signal = self._noise = self._power = self._product = 0.0
        self._largest = self._absolute = 0.0
        self._largest_relative = self._relative = 0.0
        self._relatives = 0
        self._decisions = self._equal = 0
        self._first: tuple[int, int] | None = None
        self._channels = ChannelSums()

    def add(self, reference: NDArray[Any], found: NDArray[Any]) -> None:
        """Take one sample; both arrays have the same shape."""
        if reference.shape != found.shape:
            raise ValueError(f"{self.name}: shapes {reference.shape} and {found.shape}")
        count, equal = decisions(self.name, reference, found, self._decide)
        self._decisions += count
        self._equal += equal
        a = reference.astype(np.float64).reshape(-1)
        b = found.astype(np.float64).reshape(-1)
        finite = np.isfinite(a)
        self._not_finite += a.size - int(np.count_nonzero(finite))
        if self._first is None:
            lost = np.flatnonzero(finite & ~np.isfinite(b))
            if lost.size:
                self._first = self.samples, int(lost[0])
        self.samples += 1
        self._elements += a.size
        if not a.size:
            return
        self._channels.add(reference, found)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            error = np.where(same, 0.0, np.abs(a - b))
            error[np.isnan(error)] = math.inf
            self._noise += float(np.sum(error**2))
            self._largest = max(self._largest, float(error.max()))
            self._absolute += float(error.sum())
            sizes = np.abs(a)
            related = finite & (sizes > 0)
            relative = error[related] / sizes[related]
            self._signal += float(np.sum(a[finite] ** 2))
            self._power += float(np.sum(b[finite] ** 2))
            self._product += float(np.sum(a[finite] * b[finite]))
        if relative.size:
            self._largest_relative = max(self._largest_relative, float(relative.max()))
            self._relative += float(relative.sum())
            self._relatives += relative.size

    def merge(self, later: OutputSums) -> None:
        """Take what others have taken, as samples behind those of this one."""
        if self._first is None and later._first is not None:
            self._first = self.samples + later._first[0], later._first[1]
        self.samples += later.samples
        self._elements += later._elements
        self._not_finite += later._not_finite
        self._signal += later._signal
        self._noise += later._noise
        self._power += later._power
        self._product += later._product
        self._absolute += later._absolute
        self._relative += later._relative
        self._relatives += later._relatives
        self._decisions += later._decisions
        self._equal += later._equal
        self._channels.merge(later._channels)
        self._largest = max(self._largest, later._largest)
        self._largest_relative = max(self._largest_relative, later._largest_relative)

    def result(self) -> OutputAccuracy:
        """Make the errors of all samples so far."""
        lengths = math.sqrt(self._signal) * math.sqrt(self._power) if self._power >= 0 else math.nan
        cosine = self._product / lengths if lengths and math.isfinite(lengths) else math.nan
        relatives = self._relatives
        return OutputAccuracy(
            self.name,
            self._elements,
            decibels(self._signal, self._noise) if self._elements else math.nan,
            max(-1.0, min(1.0, cosine)) if math.isfinite(cosine) else math.nan,
            self._largest,
            self._absolute / self._elements if self._elements else math.nan,
            self._largest_relative if relatives else math.nan,
            self._relative / relatives if relatives else math.nan,
            self._equal / self._decisions if self._decisions else math.nan,
            self._first,
            self._not_finite,
            self._channels.is_dead,
            self._channels.worst(),
        )
