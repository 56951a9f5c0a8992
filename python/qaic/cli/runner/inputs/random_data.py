"""Random inputs for ``qaic-runner``: the same ones in every run, and such that a network can digest them.

Bounded data has no infinities, no huge numbers and no index a table lacks; ``--unbound-random`` has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qaic.rt import BufferDataTypeEnum as Type

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from qaic.cli.runner.network import Binding

_SEED = 0
#: quantized integers are any; what may be an index, a flag or a mask is 0 or 1, which every table has
_INTEGERS = {
    int(Type.BUFFER_DATA_TYPE_INT8Q): (np.int8, -128, 128),
    int(Type.BUFFER_DATA_TYPE_UINT8Q): (np.uint8, 0, 256),
    int(Type.BUFFER_DATA_TYPE_INT16Q): (np.int16, -(2**15), 2**15),
    int(Type.BUFFER_DATA_TYPE_INT32Q): (np.int32, -(2**15), 2**15),
    int(Type.BUFFER_DATA_TYPE_INT32I): (np.int32, 0, 2),
    int(Type.BUFFER_DATA_TYPE_INT64I): (np.int64, 0, 2),
    int(Type.BUFFER_DATA_TYPE_INT8): (np.int8, 0, 2),
}


def generator(*, bounded: bool) -> Callable[[Binding], NDArray[np.uint8]]:
    """Make the function that fills inputs, one after the other."""
    random = np.random.default_rng(_SEED)

    def any_bytes(binding: Binding) -> NDArray[np.uint8]:
        return random.integers(0, 256, binding.nbytes, np.uint8)

    def digestible(binding: Binding) -> NDArray[np.uint8]:
        values: NDArray[np.generic]
        if binding.data_type == int(Type.BUFFER_DATA_TYPE_FLOAT):
            values = random.random(binding.nbytes // 4, np.float32)
        elif binding.data_type == int(Type.BUFFER_DATA_TYPE_FLOAT16):
            values = random.random(binding.nbytes // 2, np.float32).astype(np.float16)
        elif binding.data_type in _INTEGERS:
            dtype, low, high = _INTEGERS[binding.data_type]
            values = random.integers(low, high, binding.nbytes // np.dtype(dtype).itemsize, dtype)
        else:
            values = np.zeros(binding.nbytes, np.uint8)
        return values.view(np.uint8)

    return digestible if bounded else any_bytes
