"""Constants that fit as the operands of operators, and the same constants with other shapes."""

import numpy as np


def filled(*shape):
    return np.full(shape, 0.25, np.float32)


def integers(*values):
    return np.array(values, np.int64)


def ones(*shape):
    return np.ones(shape, np.uint8)


SCALE, ZERO = np.float32(0.5), np.uint8(3)
#: Operator -> constants that fit, and attributes.
ALL_CONSTANT = {
    "Gemm": ([filled(3, 4), filled(4, 5), filled(5)], {}),
    "MatMul": ([filled(2, 3, 4), filled(4, 5)], {}),
    "Conv": ([filled(1, 3, 6, 6), filled(4, 3, 3, 3), filled(4)], {}),
    "ConvTranspose": ([filled(1, 3, 4, 4), filled(3, 2, 3, 3), filled(2)], {}),
    "Gather": ([filled(4, 5), integers(0, 3)], {"axis": 0}),
    "GatherElements": ([filled(3, 4), integers([0, 1], [2, 0])], {}),
    "ScatterND": ([filled(3, 4), integers([0], [2]), filled(2, 4)], {}),
    "Add": ([filled(3, 4), filled(4)], {}),
    "Concat": ([filled(2, 3), filled(4, 3)], {"axis": 0}),
    "Reshape": ([filled(3, 4), integers(2, 6)], {}),
    "Expand": ([filled(3, 1), integers(3, 4)], {}),
    "Tile": ([filled(2, 3), integers(2, 1)], {}),
    "Slice": ([filled(4, 5), integers(0), integers(2), integers(1)], {}),
    "Pad": ([filled(2, 3), integers(0, 1, 0, 1)], {}),
    "Transpose": ([filled(2, 3, 4)], {"perm": [2, 0, 1]}),
    "Split": ([filled(4, 6), integers(2, 2)], {"axis": 0}),
    "Squeeze": ([filled(1, 3, 1), integers(0)], {}),
    "Unsqueeze": ([filled(3, 4), integers(0)], {}),
    "Einsum": ([filled(2, 3, 4), filled(2, 4, 5)], {"equation": "bij,bjk->bik"}),
    "LayerNormalization": ([filled(2, 3, 4), filled(4), filled(4)], {}),
    "BatchNormalization": ([filled(2, 3, 5), *[filled(3)] * 4], {}),
    "PRelu": ([filled(2, 3, 4), filled(3, 1)], {}),
    "LSTM": ([filled(5, 2, 3), filled(1, 16, 3), filled(1, 16, 4), filled(1, 32)], {"hidden_size": 4}),
    "GRU": ([filled(5, 2, 3), filled(1, 12, 3), filled(1, 12, 4), filled(1, 24)], {"hidden_size": 4}),
    "RNN": ([filled(5, 2, 3), filled(1, 4, 3), filled(1, 4, 4), filled(1, 8)], {"hidden_size": 4}),
    "QLinearConv": (
        [ones(1, 3, 6, 6), SCALE, ZERO, ones(4, 3, 3, 3), SCALE, ZERO, SCALE, ZERO],
        {},
    ),
    "MaxUnpool": (
        [filled(1, 1, 2, 2), np.arange(4).reshape(1, 1, 2, 2)],
        {"kernel_shape": [2, 2], "strides": [2, 2]},
    ),
    "ReduceSum": ([filled(3, 4), integers(1)], {}),
    "TopK": ([filled(3, 5), integers(2)], {}),
    "OneHot": ([integers(0, 1, 2), np.int64(3), filled(2)], {}),
    "NonMaxSuppression": ([filled(1, 5, 4), filled(1, 2, 5)], {}),
    "RoiAlign": ([filled(1, 2, 6, 6), filled(2, 4), integers(0, 0)], {}),
    "LRN": ([filled(1, 4, 3, 3)], {"size": 3}),
    "ConvInteger": ([ones(1, 2, 5, 5), ones(3, 2, 3, 3), ZERO], {}),
    "DequantizeLinear": ([ones(3, 4), filled(4), ones(4)], {"axis": 1}),
    "QLinearMatMul": ([ones(3, 4), SCALE, ZERO, ones(4, 5), SCALE, ZERO, SCALE, ZERO], {}),
    "FusedGemm": (
        [filled(2, 4), filled(4, 3), filled(3)],
        {"domain": "com.microsoft", "activation": "Relu"},
    ),
    "Attention": (
        [filled(1, 3, 8), filled(8, 24), filled(24)],
        {"domain": "com.microsoft", "num_heads": 2},
    ),
    "MaxRoiPool": ([filled(1, 2, 6, 6), filled(2, 5)], {"pooled_shape": [2, 2]}),
    "MelWeightMatrix": ([np.int64(4), np.int64(8), np.int64(100), np.float32(0), np.float32(50)], {}),
    "ConstantOfShape": ([integers(2, 3)], {}),
    "Range": ([np.float32(0), np.float32(4), np.float32(1)], {}),
    "MultiHeadAttention": ([filled(1, 3, 8)] * 3, {"domain": "com.microsoft", "num_heads": 2}),
    "RotaryEmbedding": (
        [filled(1, 3, 8), integers(0), filled(4, 4), filled(4, 4)],
        {"domain": "com.microsoft"},
    ),
    "CropAndResize": (
        [filled(1, 2, 6, 6), filled(2, 4), np.int32([0, 0]), np.int32([2, 2])],
        {"domain": "com.microsoft"},
    ),
}


def of_another_shape(array, how, axis):
    """Add, remove or change a dim."""
    array = np.asarray(array)
    if not array.ndim or how == "stacked":
        return np.stack([array] * 2)
    axis %= array.ndim
    if how == "taken":
        return array.take(0, axis)
    if how == "wider":
        return array.reshape(*array.shape, 1)
    return {"longer": np.repeat(array, 2, axis), "shorter": array.take(range(array.shape[axis] - 1), axis)}[
        how
    ]
