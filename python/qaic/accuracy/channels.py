"""Errors of the channels of an output, which one number for the whole output hides.

Boxes in pixels and scores below one share outputs of detectors. The scores can be lost without a trace in the
SQNR of the output.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from qaic.accuracy.decibels import decibels

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

#: channels of an axis at most, and elements of a channel in all samples at least, so that it is judged
_CHANNELS: Final = 512
_ELEMENTS: Final = 4
#: part of the range of an output that a channel must have, so that it is judged
_SHARE: Final = 1e-5
#: part of its largest value that a channel varies by, so that a constant in its place is a loss
_VARYING: Final = 1e-2
#: difference from 1 of a sum that is one but for rounding
_ROUNDING: Final = 1e-3


@dataclass(frozen=True, slots=True)
class ChannelAccuracy:
    """Errors of one channel of an output over all samples.

    Parameters
    ----------
    axis, index
        Which channel of which dimension.
    sqnr_db
        As of an output.
    is_dead
        Whether it is constant where the reference varies.
    """

    axis: int
    index: int
    sqnr_db: float
    is_dead: bool


class Extremes:
    """Smallest and largest finite values of the groups of an array, over all samples."""

    def __init__(self, count: int) -> None:
        self.low = np.full(count, np.inf)
        self.high = np.full(count, -np.inf)

    def add(self, groups: NDArray[np.float64]) -> None:
        """Take an array of shape [groups, elements]."""
        finite = np.isfinite(groups)
        self.low = np.minimum(self.low, np.where(finite, groups, np.inf).min(axis=1))
        self.high = np.maximum(self.high, np.where(finite, groups, -np.inf).max(axis=1))

    def merge(self, later: Extremes) -> None:
        """Take the values of another."""
        self.low = np.minimum(self.low, later.low)
        self.high = np.maximum(self.high, later.high)

    @property
    def ranges(self) -> NDArray[np.float64]:
        """Largest minus smallest value of each group; 0 without values."""
        with np.errstate(invalid="ignore"):
            found: NDArray[np.float64] = np.maximum(self.high - self.low, 0.0)
        return found

    @property
    def sizes(self) -> NDArray[np.float64]:
        """Largest magnitude of the values of each group."""
        found: NDArray[np.float64] = np.maximum(np.abs(self.low), np.abs(self.high))
        return found


class GroupSums:
    """Sums of groups of elements."""

    def __init__(self, count: int) -> None:
        self.elements = 0
        self.reference = Extremes(count)
        self.found = Extremes(count)
        self.signal = np.zeros(count)
        self.noise = np.zeros(count)

    def add(self, reference: NDArray[np.float64], found: NDArray[np.float64]) -> None:
        """Take arrays of shape [groups, elements]."""
        self.elements += reference.shape[1]
        self.reference.add(reference)
        self.found.add(found)
        finite = np.isfinite(reference)
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.where(finite, np.abs(reference - found), 0.0)
            error[np.isnan(error)] = math.inf
            self.signal += np.sum(np.where(finite, reference, 0.0) ** 2, axis=1)
            self.noise += np.sum(error**2, axis=1)

    def merge(self, later: GroupSums) -> None:
        """Take what another has taken."""
        self.elements += later.elements
        self.reference.merge(later.reference)
        self.found.merge(later.found)
        self.signal += later.signal
        self.noise += later.noise

    def dead(self) -> NDArray[np.bool_]:
        """Return for each group whether it is constant where the reference varies."""
        found: NDArray[np.bool_] = (self.found.ranges == 0) & (self.reference.ranges > 0)
        return found


class ChannelSums:
    """Sums of an output and of its channels, along the second and the last dimension."""

    def __init__(self) -> None:
        self._whole = GroupSums(1)
        self._axes: dict[tuple[int, int], GroupSums] = {}
        #: dimensions along which every sample has shares of one
        self._shares: dict[tuple[int, int], bool] = {}

    def add(self, reference: NDArray[Any], found: NDArray[Any]) -> None:
        """Take one sample; both arrays have the same shape, and elements."""
        a, b = reference.astype(np.float64), found.astype(np.float64)
        self._whole.add(a.reshape(1, -1), b.reshape(1, -1))
        for axis in _channel_axes(a.shape):
            count = a.shape[axis]
            key = axis, count
            sums = self._axes.setdefault(key, GroupSums(count))
            sums.add(*(np.moveaxis(array, axis, 0).reshape(count, -1) for array in (a, b)))
            self._shares[key] = self._shares.get(key, True) and _are_shares(a, axis)

    def merge(self, later: ChannelSums) -> None:
        """Take what another has taken."""
        self._whole.merge(later._whole)
        for key, sums in later._axes.items():
            self._axes.setdefault(key, GroupSums(key[1])).merge(sums)
            self._shares[key] = self._shares.get(key, True) and later._shares[key]

    @property
    def is_dead(self) -> bool:
        """Return whether the output is constant where the reference varies."""
        return bool(self._whole.dead()[0])

    def worst(self) -> ChannelAccuracy | None:
        """Find the channel that loses most, a dead one first; None where no channel counts."""
        least = self._whole.reference.ranges[0] * _SHARE

        def judged() -> Iterable[ChannelAccuracy]:
            for (axis, count), sums in self._axes.items():
                # Probabilities of classes are of one kind, however small those of some classes are.
                if sums.elements < _ELEMENTS or self._shares[axis, count]:
                    continue
                dead = sums.dead() & (sums.reference.ranges >= sums.reference.sizes * _VARYING)
                for index in np.flatnonzero((sums.reference.ranges > 0) & (sums.reference.ranges >= least)):
                    sqnr = decibels(float(sums.signal[index]), float(sums.noise[index]))
                    yield ChannelAccuracy(axis, int(index), sqnr, bool(dead[index]))

        return min(judged(), key=lambda item: (not item.is_dead, item.sqnr_db), default=None)


def _channel_axes(shape: tuple[int, ...]) -> Iterator[int]:
    """Yield the dimensions whose elements may be of different kinds."""
    for axis in sorted({min(1, len(shape) - 1), len(shape) - 1}) if shape else ():
        if 1 < shape[axis] <= _CHANNELS and 0 not in shape:
            yield axis


def _are_shares(values: NDArray[np.float64], axis: int) -> bool:
    """Return whether all values along a dimension are positive and have the sum 1."""
    with np.errstate(invalid="ignore", over="ignore"):
        return bool((values >= 0).all() and (np.abs(values.sum(axis=axis) - 1) <= _ROUNDING).all())
