"""What is known about the values of a model's tensors (compile-options §3.4).

A tensor has either a measured range with a histogram, or parameters that a file fixed. Keys are the names of
tensors in the float graph, that is before anything is lowered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from qaic.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class TensorProfile:
    """Values of one tensor.

    Parameters
    ----------
    minimum, maximum
        Smallest and largest value seen; of fixed parameters the smallest and largest value they represent.
    histogram
        float32 counts in equal bins over [minimum, maximum]; None where there are none.
    scale, offset
        Parameters that a file fixed for the whole tensor: real = scale * (q - offset), q signed. Both or
        neither.
    channel_scales, channel_offsets
        float32 and int32 parameters that a file fixed for each channel of a constant; both or neither.
    bits
        Width of q where parameters are fixed.
    """

    minimum: float
    maximum: float
    histogram: NDArray[np.float32] | None = None
    scale: float | None = None
    offset: int | None = None
    channel_scales: NDArray[np.float32] | None = None
    channel_offsets: NDArray[np.int32] | None = None
    bits: int = 8

    def __eq__(self, other: object) -> bool:
        """Compare by content."""
        return isinstance(other, TensorProfile) and all(
            np.array_equal(getattr(self, name), getattr(other, name))
            if isinstance(getattr(self, name), np.ndarray)
            else getattr(self, name) is getattr(other, name) or getattr(self, name) == getattr(other, name)
            for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]  # holds arrays

    @property
    def is_fixed(self) -> bool:
        """Whether a file fixed the parameters, so that neither schema nor calibration decides."""
        return self.scale is not None or self.channel_scales is not None


@dataclass(slots=True)
class Profile:
    """Values of the tensors of one model.

    Parameters
    ----------
    tensors
        By name of the tensor in the float graph. Constants appear only where a file fixed their parameters.
    graph_hash
        64-bit hash of the graph the values belong to.
    precisions
        Tensors whose producers a file keeps in a float precision, ``"fp16"`` or ``"fp32"``.
    """

    tensors: dict[str, TensorProfile] = field(default_factory=dict)
    graph_hash: int = 0
    precisions: dict[str, str] = field(default_factory=dict)


def resample(
    histogram: NDArray[np.float32], old: tuple[float, float], new: tuple[float, float], bins: int
) -> NDArray[np.float32]:
    """Spread the counts of a histogram over equal bins of another range.

    Parameters
    ----------
    histogram
        float32 counts in equal bins over `old`.
    old, new
        Ranges; `new` contains `old`.
    bins
        Number of bins over `new`.

    Returns
    -------
    numpy.ndarray
        float32; each old bin is shared out in proportion to its overlap. The sum stays the same but for
        rounding.
    """
    counts = histogram.astype(np.float64)
    if new[1] <= new[0]:
        made = np.zeros(bins)
        made[0] = counts.sum()
        return made.astype(np.float32)
    if old[1] <= old[0]:
        made = np.zeros(bins)
        place = (old[0] - new[0]) / (new[1] - new[0]) * bins
        made[min(int(place), bins - 1)] = counts.sum()
        return made.astype(np.float32)
    # Cumulative mass is linear inside a bin, so new bins are differences of it at their edges.
    edges = np.linspace(old[0], old[1], counts.size + 1)
    mass = np.concatenate([[0.0], np.cumsum(counts)])
    at = np.interp(np.linspace(new[0], new[1], bins + 1), edges, mass)
    spread: NDArray[np.float32] = np.diff(at).astype(np.float32)
    return spread


def merge_tensors(profiles: Iterable[TensorProfile]) -> TensorProfile:
    """Join what several runs saw of one tensor (compile-options §3.4).

    Raises
    ------
    ValueError
        Parameters are fixed, which do not add up.
    """
    given = list(profiles)
    if any(profile.is_fixed for profile in given):
        message = "fixed parameters cannot be merged"
        raise ValueError(message)
    low = min(profile.minimum for profile in given)
    high = max(profile.maximum for profile in given)
    if any(profile.histogram is None for profile in given):
        return TensorProfile(low, high)
    bins = max(profile.histogram.size for profile in given if profile.histogram is not None)
    total = np.zeros(bins, np.float64)
    for profile in given:
        assert profile.histogram is not None  # noqa: S101  # returned above
        total += resample(profile.histogram, (profile.minimum, profile.maximum), (low, high), bins)
    return TensorProfile(low, high, total.astype(np.float32))


def merge(profiles: Iterable[Profile]) -> Profile:
    """Join profiles of one model: histograms are rescaled to the union of their ranges and added.

    Raises
    ------
    OptionError
        They are of different graphs, or one has fixed parameters.
    """
    given = list(profiles)
    hashes = {profile.graph_hash for profile in given}
    if len(hashes) > 1:
        raise OptionError(
            "profiles of different models cannot be merged: their graph hashes are "
            + ", ".join(f"0x{value:016x}" for value in sorted(hashes)),
            code="profile.mixed_models",
        )
    names = dict.fromkeys(name for profile in given for name in profile.tensors)
    merged = Profile(graph_hash=hashes.pop() if hashes else 0)
    for name in names:
        parts = [profile.tensors[name] for profile in given if name in profile.tensors]
        if any(part.is_fixed for part in parts) and len(parts) > 1:
            raise OptionError(
                f"tensor {name!r} has fixed parameters in one profile; only measured ranges can be merged",
                code="profile.fixed",
                context={"tensor": name},
            )
        merged.tensors[name] = parts[0] if len(parts) == 1 else merge_tensors(parts)
    return merged
