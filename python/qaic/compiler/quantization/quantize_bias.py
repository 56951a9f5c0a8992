"""Bias of integer kernels: an int32 at the scale of the accumulator.

A kernel adds the bias to sums of products, so it has to be at scale input x weight. The precision option
states what the numbers are rounded to before that; where an int32 cannot hold them, the weight gets a larger
step.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from qaic import _core
from qaic.compiler.ir.quantization import QuantizedBias
from qaic.compiler.quantization.parameters import QuantParamsChooser

_INT32_MAX: Final = 2**31 - 1
#: product of scales that a float32 holds with all its digits, whichever way it is rounded
_SMALLEST: Final = 2.0**-125
#: largest scale
_LARGEST: Final = 2.0**127


def quantize_bias(
    bias: npt.NDArray[np.float32],
    input_scale: float,
    weight_scales: npt.NDArray[np.float32],
    parameters: QuantParamsChooser,
    *,
    integer_kernel: bool,
) -> QuantizedBias:
    """Quantize a bias.

    `bias` has one finite float per output channel, `weight_scales` one for all or one per output channel. The
    float kernels of 16-bit quantization take a bias of any scale, so that without `integer_kernel` a scale
    per tensor need not be raised. Returns as many scales as there are weight scales.
    """
    data = np.float64(np.float32(input_scale))
    # Kernels multiply their sums by this product, as a float32: as zero it would swallow the bias, too.
    raised = np.maximum(weight_scales.astype(np.float64), _SMALLEST / data).astype(np.float32)
    bias_scales = _product(data, raised)
    groups = [bias] if len(weight_scales) == 1 else [bias[i : i + 1] for i in range(len(bias))]
    exact = bias.astype(np.float64)
    per_channel = len(groups) > 1
    eight_bits = parameters.bias_precision == "Int8"
    for index, group in enumerate(groups):
        low, high = min(0.0, float(group.min(initial=0))), max(0.0, float(group.max(initial=0)))
        if low == high:
            continue
        wanted, offset = parameters.constant(low, high, parameters.bias_precision)
        if bias_scales[index] >= wanted:
            continue
        largest = max(-low, high)
        if eight_bits:
            levels = _core.quantize_tensor(group, wanted, offset, "Int8").astype(np.float64) - offset
            decoded = np.float64(np.float32(wanted)) * levels
            start = index if per_channel else 0
            exact[start : start + len(group)] = decoded
            largest = float(np.abs(decoded).max())
        # A scale may be as small as the least float32, so nothing is divided by it before this.
        if largest <= _INT32_MAX * float(bias_scales[index]) and (eight_bits or not per_channel):
            continue
        if not integer_kernel and (eight_bits or not per_channel):
            bias_scales[index] = wanted
            continue
        step, _ = parameters.constant(low, high, "Int32")
        raised[index] = min(step / data, _LARGEST)
        bias_scales[index] = _product(data, raised[index])
    levels = np.rint(exact / bias_scales)
    values = np.clip(levels, -_INT32_MAX, _INT32_MAX).astype(np.int32)
    return QuantizedBias(values, bias_scales.astype(np.float32), raised)


def _product(data: np.float64, weights: npt.NDArray[np.float32] | np.float32) -> npt.NDArray[np.float64]:
    """Multiply scales as float32 does, without infinity."""
    exact = np.minimum(data * np.asarray(weights, np.float64), _LARGEST)
    return exact.astype(np.float32).astype(np.float64)
