"""Known ranges of a model's tensors.

A tensor has either a measured range with a histogram, or parameters that a file fixed. Keys are the names of
tensors in the float graph, that is before anything is lowered.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
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
    channel_axis
        Axis of these channels in the constant, negative from the end; None where the file does not state it.
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
    channel_axis: int | None = None
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
        """True if a file fixed the parameters, so that neither schema nor calibration decides."""
        return self.scale is not None or self.channel_scales is not None


@dataclass(slots=True)
class CalibrationProfile:
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
