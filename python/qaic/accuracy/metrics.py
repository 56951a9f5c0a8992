"""Errors of outputs: sums over samples, and the metrics that follow from them.

Equal elements, including infinities and NaN, have no error. If only the reference is finite, the error is
infinite. Powers do not include elements whose reference is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qaic.accuracy.decisions import Decide, decisions


def decibels(signal: float, noise: float) -> float:
    """Convert two powers to a ratio in dB: infinite without noise, minus infinity without signal."""
    if noise == 0:
        return math.inf
    if not math.isfinite(noise) or signal <= 0:
        return -math.inf
    return 10 * (math.log10(signal) - math.log10(noise)) if math.isfinite(signal) else math.nan


def decibel_text(value: float) -> str:
    """Return a ratio as text for people."""
    if math.isnan(value):
        return "not known"
    if math.isinf(value):
        return "no error" if value > 0 else "not finite"
    return f"{value:.1f} dB"


def json_value(value: object) -> object:
    """Return a result as a JSON value: NaN becomes None, infinities become ``"inf"`` and ``"-inf"``."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dict):
        return {name: json_value(item) for name, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf" if value > 0 else "-inf"
    return list(value) if isinstance(value, tuple) else value


#: exponents of the smallest and the largest octave, which also count smaller and larger values
LEAST_EXPONENT: Final = -32
MOST_EXPONENT: Final = 31
#: bins: zeros, the octaves, values that are not finite
BINS: Final = MOST_EXPONENT - LEAST_EXPONENT + 3


class Histograms:
    """Counts of values.

    `elements` contains the number of elements of each node's value: of the reference, then of the deployed
    program.
    """

    def __init__(self, elements: Sequence[int]) -> None:
        self._rows = {row: at for at, row in enumerate(np.flatnonzero(elements).tolist())}
        lines = np.arange(2 * len(self._rows))
        counts = np.repeat([count for count in elements if count], 2) if self._rows else lines
        #: row of the counts for each element; each value has two rows
        self._lines = np.repeat(lines, counts)
        self._counts = np.zeros((len(lines), BINS), np.int64)

    def add(self, values: NDArray[np.float32]) -> None:
        """Add the elements of one run."""
        places = self._lines * BINS + _bins(values.reshape(-1))
        self._counts += np.bincount(places, minlength=self._counts.size).reshape(self._counts.shape)

    def of(self, row: int) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Return the counts of a row, of the reference and of the deployed program; None without any."""
        at = self._rows.get(row)
        return None if at is None else (self._counts[2 * at], self._counts[2 * at + 1])


def _bins(values: NDArray[np.float32]) -> NDArray[np.int64]:
    _, exponents = np.frexp(values)
    octaves = np.clip(exponents - 1, LEAST_EXPONENT, MOST_EXPONENT) - LEAST_EXPONENT + 1
    found: NDArray[np.int64] = np.where(values == 0, 0, octaves).astype(np.int64)
    found[~np.isfinite(values)] = BINS - 1
    return found


#: most channels of a judged axis, and fewest elements that are not 0 of a judged channel in all samples
_CHANNELS: Final = 512
_ELEMENTS: Final = 4
#: smallest range of a judged channel, as a part of the range of the output
_SHARE: Final = 1e-5
#: smallest variation of a channel, relative to its largest value, for which a constant result is a loss
_VARYING: Final = 1e-2
#: largest difference from 1 of a sum that is 1 except for rounding
_ROUNDING: Final = 1e-3


@dataclass(frozen=True, slots=True)
class ChannelAccuracy:
    """Errors of one channel of an output over all samples.

    Parameters
    ----------
    axis, index
        Dimension, and index of the channel in it.
    sqnr_db
        As for an output.
    is_dead
        True if the channel is constant where the reference varies.
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
        """Add an array of shape [groups, elements]."""
        finite = np.isfinite(groups)
        self.low = np.minimum(self.low, np.where(finite, groups, np.inf).min(axis=1))
        self.high = np.maximum(self.high, np.where(finite, groups, -np.inf).max(axis=1))

    def merge(self, later: Extremes) -> None:
        """Add the values of another object."""
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
        #: numbers of elements that are not 0, which is the usual value behind a Relu
        self.elements = np.zeros(count, np.int64)
        self.reference = Extremes(count)
        self.found = Extremes(count)
        self.signal = np.zeros(count)
        self.noise = np.zeros(count)

    def add(self, reference: NDArray[np.float64], found: NDArray[np.float64]) -> None:
        """Add arrays of shape [groups, elements]."""
        self.elements += np.count_nonzero(reference, axis=1)
        self.reference.add(reference)
        self.found.add(found)
        finite = np.isfinite(reference)
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.where(finite, np.abs(reference - found), 0.0)
            error[np.isnan(error)] = math.inf
            self.signal += np.sum(np.where(finite, reference, 0.0) ** 2, axis=1)
            self.noise += np.sum(error**2, axis=1)

    def merge(self, later: GroupSums) -> None:
        """Add the values of another object."""
        self.elements += later.elements
        self.reference.merge(later.reference)
        self.found.merge(later.found)
        self.signal += later.signal
        self.noise += later.noise

    def dead(self) -> NDArray[np.bool_]:
        """Return True for each group that is constant although the reference varies."""
        found: NDArray[np.bool_] = (self.found.ranges == 0) & (self.reference.ranges > 0)
        return found


class ChannelSums:
    """Sums of an output and of its channels, along the second and the last dimension."""

    def __init__(self) -> None:
        self._whole = GroupSums(1)
        self._axes: dict[tuple[int, int], GroupSums] = {}
        #: dimensions along which the values of every sample are shares that sum to 1
        self._shares: dict[tuple[int, int], bool] = {}

    def add(self, reference: NDArray[Any], found: NDArray[Any]) -> None:
        """Add one sample; both arrays have the same shape, with at least one element."""
        a, b = reference.astype(np.float64), found.astype(np.float64)
        self._whole.add(a.reshape(1, -1), b.reshape(1, -1))
        for axis in _channel_axes(a.shape):
            count = a.shape[axis]
            key = axis, count
            sums = self._axes.setdefault(key, GroupSums(count))
            sums.add(*(np.moveaxis(array, axis, 0).reshape(count, -1) for array in (a, b)))
            self._shares[key] = self._shares.get(key, True) and _are_shares(a, axis)

    def merge(self, later: ChannelSums) -> None:
        """Add the values of another object."""
        self._whole.merge(later._whole)
        for key, sums in later._axes.items():
            self._axes.setdefault(key, GroupSums(key[1])).merge(sums)
            self._shares[key] = self._shares.get(key, True) and later._shares[key]

    @property
    def is_dead(self) -> bool:
        """Return True if the output is constant although the reference varies."""
        return bool(self._whole.dead()[0])

    @property
    def _least(self) -> float:
        """Smallest range of a channel that matters."""
        return float(self._whole.reference.ranges[0]) * _SHARE

    def constant(self) -> dict[tuple[int, int], NDArray[np.bool_]]:
        """Return True for each channel that is constant although the reference varies, by dimension."""
        # Probabilities of classes are of one kind, even if some are small; they are not judged.
        kinds = {key: sums for key, sums in self._axes.items() if not self._shares[key]}
        return {
            key: sums.dead()
            & (sums.reference.ranges >= np.maximum(self._least, sums.reference.sizes * _VARYING))
            for key, sums in kinds.items()
        }

    def worst(self) -> ChannelAccuracy | None:
        """Find the channel that loses most, dead channels first; None if no channel is judged."""

        def judged() -> Iterable[ChannelAccuracy]:
            for key, dead in self.constant().items():
                sums = self._axes[key]
                ranges = sums.reference.ranges
                for index in np.flatnonzero(
                    (ranges > 0) & (ranges >= self._least) & (sums.elements >= _ELEMENTS)
                ):
                    sqnr = decibels(float(sums.signal[index]), float(sums.noise[index]))
                    yield ChannelAccuracy(key[0], int(index), sqnr, bool(dead[index]))

        return min(judged(), key=lambda item: (not item.is_dead, item.sqnr_db), default=None)


def _channel_axes(shape: tuple[int, ...]) -> Iterator[int]:
    """Yield the dimensions whose elements may be of different kinds."""
    for axis in sorted({min(1, len(shape) - 1), len(shape) - 1}) if shape else ():
        if 1 < shape[axis] <= _CHANNELS and 0 not in shape:
            yield axis


def _are_shares(values: NDArray[np.float64], axis: int) -> bool:
    """Return True if all values along a dimension are positive and their sum is 1."""
    with np.errstate(invalid="ignore", over="ignore"):
        return bool((values >= 0).all() and (np.abs(values.sum(axis=axis) - 1) <= _ROUNDING).all())


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
        Power of the reference over the power of the difference, in dB: infinite if all elements are equal,
        minus infinity if a value is not finite or the reference is zero; NaN without elements.
    cosine
        Cosine of the angle between all values and those of the reference; NaN if all values of one are zero,
        or a value is not finite.
    largest_error, mean_error
        Absolute errors.
    largest_relative_error, mean_relative_error
        Errors divided by the magnitude of the reference, if it is not zero; NaN if all elements are zero.
    same
        Share of equal decisions: the index of the largest value of the last dimension, or a result of the
        user's function. For integers and booleans, equal elements. NaN if the last dimension has one element.
    first_not_finite
        Sample and element, both from 0, of the first value that is infinite or NaN although the reference is
        finite; None if there is none.
    not_finite
        Number of elements that are infinite or NaN in the reference itself, which have no meaning.
    is_dead
        True if the output is constant although the reference varies.
    constant_channels
        Number of channels of one of these dimensions that are constant although the reference varies.
    worst_channel
        The channel of the second or last dimension that loses most, dead channels first; None if no channel
        has four elements that are not 0 in all samples and a hundred-thousandth of the range of the output.
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
    constant_channels: int
    worst_channel: ChannelAccuracy | None

    @property
    def is_equal(self) -> bool:
        """True if there is no difference at all."""
        return self.sqnr_db == math.inf


class OutputSums:
    """Sums of one output; `samples` is the number of added samples.

    `name` is the name of the output; `decide` returns its decision.
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
        """Add one sample; both arrays have the same shape."""
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
        """Add the samples of other objects after those of this one."""
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
        """Return the errors over all samples so far."""
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
            max((int(dead.sum()) for dead in self._channels.constant().values()), default=0),
            self._channels.worst(),
        )
