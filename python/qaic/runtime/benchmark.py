"""Arguments and results of ``Session.run_benchmark``."""

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qaic.errors import OptionConflictError, OptionError
from qaic.runtime.shapes import ShapeDict, allowed_shapes, default_shapes

_DEFAULT_INFERENCES: Final = 40
_LARGEST_COUNT: Final = 2**64 - 1


class BenchmarkResult(NamedTuple):
    """Results of ``Session.run_benchmark``."""

    inf_completed: int
    inf_rate: float
    """Inferences per second."""
    inf_time: int
    """Microseconds."""
    batch_size: int


def checked_count(num_inferences: int | None, inf_time: float | None) -> int | None:
    """Return the number of inferences, or None if a time was given.

    Raises OptionConflictError if both were given, and OptionError if a number is out of range.
    """
    if num_inferences is not None and inf_time is not None:
        raise OptionConflictError("num_inferences and inf_time exclude each other", code="benchmark.conflict")
    if inf_time is None and num_inferences is None:
        num_inferences = _DEFAULT_INFERENCES
    if num_inferences is not None and not 1 <= num_inferences <= _LARGEST_COUNT:
        raise OptionError(
            f"num_inferences is {num_inferences}; 1 to {_LARGEST_COUNT} is expected", code="benchmark.count"
        )
    if inf_time is not None and not 0 < inf_time < math.inf:
        raise OptionError(
            f"inf_time is {inf_time}; a positive, finite number of seconds is expected", code="benchmark.time"
        )
    return num_inferences


def random_inputs(inputs: ShapeDict, network: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return inputs for a program: floats in [0, 1); integers 0 or 1, which most models accept as indices.

    `network` is the network descriptor, which contains the combinations of shapes.
    """
    generator = np.random.default_rng(0)
    shapes = default_shapes({name: shape for name, (shape, _) in inputs.items()}, allowed_shapes(network))

    def values(name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
        shape = shapes[name]
        drawn = generator.random(shape) if dtype.kind == "f" else generator.integers(0, 2, shape)
        return drawn.astype(dtype)

    return {name: values(name, dtype) for name, (_, dtype) in inputs.items()}
