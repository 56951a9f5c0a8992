"""Reduced-precision arithmetic in numpy, written from compile-options §4.2-4.4 and §5.3 alone."""

import math
from fractions import Fraction

import numpy as np

LEVELS = {"Int8": (-128, 127), "Int16": (-32768, 32767), "Int32": (-(2**29), 2**29 - 1)}
DTYPES = {"Int8": np.int8, "Int16": np.int16, "Int32": np.int32}
SCHEMAS = ["asymmetric", "symmetric", "symmetric_with_uint8", "symmetric_with_power2_scale"]


def adjusted_range(minimum, maximum, schema, precision="Int8"):
    """Steps 1 and 2."""
    qmin, qmax = LEVELS[precision]
    minimum, maximum = min(float(minimum), 0.0), max(float(maximum), 0.0)
    if schema == "asymmetric" or (schema == "symmetric_with_uint8" and minimum == 0):
        return minimum, maximum
    rmin, rmax = minimum / qmin, maximum / qmax
    return (minimum, rmin * qmax) if rmin > rmax else (rmax * qmin, maximum)


def parameters(minimum, maximum, schema, precision="Int8"):
    """Steps 1, 2, 4 and 5: (float32 scale, offset)."""
    qmin, qmax = LEVELS[precision]
    minimum, maximum = adjusted_range(minimum, maximum, schema, precision)
    scale = (maximum - minimum) / (qmax - qmin)
    if np.float32(scale) == 0:
        minimum, maximum, scale = 0.0, 0.0, 0.1
    if schema == "symmetric_with_power2_scale":
        # Through exact fractions, where the library's log2 would round.
        exact, power = Fraction(float(np.float32(scale))), math.floor(math.log2(float(np.float32(scale)))) - 1
        while Fraction(2) ** power < exact:
            power += 1
        return np.float32(2.0**power), 0
    from_min, from_max = qmin - minimum / scale, qmax - maximum / scale
    error_min, error_max = abs(qmin) + abs(minimum / scale), abs(qmax) + abs(maximum / scale)
    offset = from_min if error_min < error_max else from_max
    if abs(maximum + minimum) <= np.finfo(np.float32).eps:
        offset = 0.0
    offset = min(max(offset, qmin), qmax)
    return np.float32(scale), int(math.copysign(math.floor(abs(offset) + 0.5), offset))


def quantize(values, scale, offset, precision="Int8"):
    """Rounds the float32 sum half to even and clips. ``scale`` and ``offset`` broadcast."""
    qmin, qmax = LEVELS[precision]
    with np.errstate(over="ignore", invalid="ignore"):
        total = values.astype(np.float32) / np.float32(scale) + np.asarray(offset, np.float32)
    total = np.where(np.isnan(total), -np.inf, total)
    return np.clip(np.rint(total).astype(np.float64), qmin, qmax).astype(DTYPES[precision])


def dequantize(levels, scale, offset):
    """The difference exact, the product a float32."""
    difference = levels.astype(np.int64) - np.asarray(offset, np.int64)
    with np.errstate(over="ignore"):
        return np.float32(scale) * difference.astype(np.float32)


# Fraction bits, exponent of the largest element, least normal exponent, largest magnitude (§5.3).
MX = {"mxfp6_e2m3": (3, 2, 0, 7.5), "mxfp6_e3m2": (2, 4, -2, 28.0), "mxint8": (6, 0, 0, 127 / 64)}
BLOCK_BYTES = {"mxfp6_e2m3": 25, "mxfp6_e3m2": 25, "mxint8": 33}


def mx_blocks(values):
    """Blocks along the last axis as float64, the last one of a row padded: [rows, blocks, 32]."""
    rows = values.reshape(-1, values.shape[-1] if values.ndim else 1).astype(np.float64)
    padded = np.pad(rows, [(0, 0), (0, -rows.shape[1] % 32)])
    return padded.reshape(rows.shape[0], padded.shape[1] // 32, 32)


def mx_round(values, name):
    """Each element to the nearest one of its block's grid, half to even, in float64."""
    fraction, largest_exponent, least, largest = MX[name]
    if not values.size:
        return values
    blocks = mx_blocks(values)
    extent = np.abs(blocks).max(axis=-1, keepdims=True)
    poisoned = ~np.isfinite(extent)
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = np.frexp(np.where(poisoned | (extent == 0), 2.0**-200, extent))[1] - 1
        shared = np.exp2(np.clip(exponent - largest_exponent, -127, 127))
        elements = np.where(poisoned, 0, blocks / shared)
        own = np.frexp(elements)[1] - 1
        step = np.exp2(np.where(elements == 0, least, np.maximum(own, least)) - fraction)
        if name == "mxint8":
            step = 1 / 64
        rounded = np.clip(np.rint(elements / step) * step, -largest, largest) * shared
    rounded = np.where(poisoned, np.nan, rounded).astype(np.float32)
    rows = rounded.reshape(rounded.shape[0], -1)
    return rows[:, : values.shape[-1] if values.ndim else 1].reshape(values.shape)
