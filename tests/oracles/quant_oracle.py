"""Reduced-precision arithmetic in numpy, independent of the implementation."""

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
        # Uses exact fractions, because the library's log2 would round.
        exact, power = Fraction(float(np.float32(scale))), math.floor(math.log2(float(np.float32(scale)))) - 1
        while Fraction(2) ** power < exact:
            power += 1
        return np.float32(2.0**power), 0
    from_min, from_max = qmin - minimum / scale, qmax - maximum / scale
    error_min, error_max = abs(qmin) + abs(minimum / scale), abs(qmax) + abs(maximum / scale)
    offset = from_min if error_min < error_max else from_max
    if abs(maximum + minimum) <= min(np.finfo(np.float32).eps, scale):
        offset = 0.0
    offset = min(max(offset, qmin), qmax)
    return np.float32(scale), int(math.copysign(math.floor(abs(offset) + 0.5), offset))


def quantize(values, scale, offset, precision="Int8"):
    """Rounds the float32 sum half to even and clips it. ``scale`` and ``offset`` broadcast."""
    qmin, qmax = LEVELS[precision]
    with np.errstate(over="ignore", invalid="ignore"):
        total = values.astype(np.float32) / np.float32(scale) + np.asarray(offset, np.float32)
    total = np.where(np.isnan(total), -np.inf, total)
    return np.clip(np.rint(total).astype(np.float64), qmin, qmax).astype(DTYPES[precision])


def dequantize(levels, scale, offset):
    """The difference is exact, the product is a float32."""
    difference = levels.astype(np.int64) - np.asarray(offset, np.int64)
    with np.errstate(over="ignore"):
        return np.float32(scale) * difference.astype(np.float32)


# OCP Microscaling v1.0: fraction bits, exponent of the largest element, smallest normal exponent, largest
# magnitude.
MX = {"mxfp6_e2m3": (3, 2, 0, 7.5), "mxfp6_e3m2": (2, 4, -2, 28.0), "mxint8": (6, 0, 0, 127 / 64)}
BLOCK_BYTES = {"mxfp6_e2m3": 25, "mxfp6_e3m2": 25, "mxint8": 33}


def mx_blocks(values):
    """Blocks along the last axis as float64, with a padded last block: [rows, blocks, 32]."""
    rows = values.reshape(-1, values.shape[-1] if values.ndim else 1).astype(np.float64)
    padded = np.pad(rows, [(0, 0), (0, -rows.shape[1] % 32)])
    return padded.reshape(rows.shape[0], padded.shape[1] // 32, 32)


def mx_round(values, name):
    """Rounds each element to the nearest element of its block's grid, half to even, in float64."""
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


def calibrate(counts, minimum, maximum, method, schema, precision="Int8", percentile=100.0):
    """The range that a calibration selects."""
    counts = counts.astype(np.float64)
    if method == "None" or minimum == maximum or not counts.sum():
        return minimum, maximum
    whole = adjusted_range(minimum, maximum, schema, precision)
    symmetric = schema in SCHEMAS[1::2] or (schema == "symmetric_with_uint8" and minimum < 0)
    if method == "KLMinimization":
        return _glow_windows(counts, minimum, maximum, whole, symmetric)
    if method == "KLMinimizationV2":
        return _symmetric_windows(counts, minimum, maximum)
    if method == "Percentile":
        return _percentile(counts, minimum, maximum, symmetric, percentile)
    return _least_error(counts, minimum, maximum, whole, symmetric, precision, 3 if method == "SQNR" else 1)


def rebin(counts, minimum, maximum, low, high, bins):
    """Counts over another range, distributed in proportion, with integer cumulative sums."""
    if (low, high, bins) == (minimum, maximum, counts.size):
        return counts
    edges = np.linspace(minimum, maximum, counts.size + 1)
    running = np.interp(np.linspace(low, high, bins + 1), edges, np.concatenate([[0], np.cumsum(counts)]))
    return np.diff(np.rint(running))


def smoothed(counts):
    zeros = counts == 0
    if zeros.all():
        return counts
    taken = 1e-4 * zeros.sum() / (~zeros).sum()
    return counts if taken >= 1 else np.where(zeros, 1e-4, counts - taken)


def divergence(counts, start, end, groups):
    p = counts[start:end].copy()
    p[0], p[-1] = counts[: start + 1].sum(), counts[end - 1 :].sum()
    q = np.zeros_like(p)
    merged = p.size // groups
    for group in range(groups):
        part = slice(group * merged, p.size if group == groups - 1 else (group + 1) * merged)
        if (p[part] != 0).any():
            q[part] = np.where(p[part] != 0, counts[start:end][part].sum() / (p[part] != 0).sum(), 0)
    p, q = smoothed(p), smoothed(q)
    with np.errstate(divide="ignore", invalid="ignore"):
        p, q = p / p.sum(), q / q.sum()
        return np.where(p == 0, 0, p * np.log(p / q)).sum()


def _glow_windows(counts, minimum, maximum, whole, symmetric):
    counts = rebin(counts, minimum, maximum, *whole, counts.size)
    start, end = 0, counts.size
    best, window = np.inf, None
    while end - start >= 255:
        value = divergence(counts, start, end, 255)
        if value < best:
            best, window = value, (start, end)
        lost = [
            counts[start] + counts[end - 1],
            counts[start] + counts[start + 1],
            counts[end - 2] + counts[end - 1],
        ]
        drop = [(1, 1), (2, 0), (0, 2)][0 if symmetric else int(np.argmin(lost))]
        start, end = start + drop[0], end - drop[1]
    if window is None:
        return minimum, maximum
    edges = np.linspace(*whole, counts.size + 1)
    low, high = edges[window[0]], edges[window[1]]
    if symmetric:
        ratio = whole[0] / whole[1]
        low, high = min(low, ratio * high), max(high, low / ratio)
    return low, high


def _symmetric_windows(counts, minimum, maximum):
    extent = max(abs(minimum), abs(maximum))
    half = (counts.size + 1) // 2
    counts = rebin(counts, minimum, maximum, -extent, extent, 2 * half)
    sides = list(range(64, half + 1))
    values = [divergence(counts, half - side, half + side, 128) for side in sides]
    values = np.where(np.isnan(values), np.inf, values)
    if not sides or np.isinf(values.min()):
        return minimum, maximum
    threshold = sides[int(np.argmin(values))] / half * extent
    return max(minimum, -threshold), min(maximum, threshold)


def _percentile(counts, minimum, maximum, symmetric, percentile):
    if percentile == 100:
        return minimum, maximum
    edges = np.linspace(minimum, maximum, counts.size + 1)
    if symmetric:
        extent = max(abs(minimum), abs(maximum))
        running = np.concatenate([[0], np.cumsum(counts)])
        ends = np.linspace(0, extent, counts.size + 1)[1:]
        inside = np.interp(ends, edges, running) - np.interp(-ends, edges, running)
        threshold = ends[np.argmax(inside >= counts.sum() * percentile / 100 - 1e-6)]
        return max(minimum, -threshold), min(maximum, threshold)
    tail = counts.sum() * (100 - percentile) / 200
    lower = int(np.argmax(np.cumsum(counts) > tail))
    upper = counts.size - int(np.argmax(np.cumsum(counts[::-1]) > tail))
    return edges[lower], edges[upper]


def range_error(counts, minimum, maximum, chosen, precision, clipping):
    """The weighted error power of the values at bin centers, with the parameters of a range."""
    qmin, qmax = LEVELS[precision]
    edges = np.linspace(minimum, maximum, counts.size + 1)
    centers = (edges[1:] + edges[:-1]) / 2
    scale, offset = parameters(*chosen, "asymmetric", precision)
    levels = np.clip(np.rint(centers / float(scale)) + offset, qmin, qmax)
    error = centers - float(scale) * (levels - offset)
    low, high = float(scale) * (qmin - offset), float(scale) * (qmax - offset)
    weight = np.where((centers < low) | (centers > high), clipping, 1)
    return (counts * weight * error**2).sum()


def candidate_ranges(whole, symmetric, precision):
    qmin, qmax = LEVELS[precision]
    widest = (whole[1] - whole[0]) / (qmax - qmin)
    if symmetric:
        return [(qmin * k / 100 * widest, qmax * k / 100 * widest) for k in range(1, 102)]
    starts = np.linspace(-(qmax - qmin), 0, 21)
    ranges = [
        (max(k / 16 * widest * start, whole[0]), min(k / 16 * widest * (start + qmax - qmin), whole[1]))
        for k in range(1, 18)
        for start in starts
    ]
    return [*(each for each in ranges if each[0] < each[1]), whole]


def _least_error(counts, minimum, maximum, whole, symmetric, precision, clipping):
    ranges = candidate_ranges(whole, symmetric, precision)
    errors = [range_error(counts, minimum, maximum, each, precision, clipping) for each in ranges]
    return ranges[int(np.argmin(errors))]
