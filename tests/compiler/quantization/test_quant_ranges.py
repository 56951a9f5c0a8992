"""Scales, offsets and quantized tensors, compared with numpy and onnxruntime."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnxruntime.quantization import quant_utils

import quant_oracle as oracle
from qaic import _core
from qaic.errors import InputError, OptionError

finite = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.floats(-10, 10, width=32),
    st.floats(-(2.0**-20), 2.0**-20, width=32),
    st.sampled_from([0.0, -0.0, 1e-45, -1e-45, 1e-38, 1.0, -1.0, 3.4028234663852886e38]),
)
schemas = st.sampled_from(oracle.SCHEMAS)
precisions = st.sampled_from(list(oracle.LEVELS))


@st.composite
def ranges(draw):
    return sorted((draw(finite), draw(finite)))


@given(ranges(), schemas, precisions)
def test_parameters_are_those_of_the_specification(ends, schema, precision):
    scale, offset = _core.quant_range(*ends, schema, precision)
    assert (np.float32(scale), offset) == oracle.parameters(*ends, schema, precision)
    assert scale == np.float32(scale) > 0


@given(ranges(), schemas)
def test_the_range_can_be_represented(ends, schema):
    scale, offset = _core.quant_range(*ends, schema, "Int8")
    low, high = oracle.dequantize(np.array([-128, 127], np.int8), scale, offset).astype(np.float64)
    # Rounding the offset loses half a step. A range symmetric within epsilon and a step gets offset 0.
    slack = 0.51 * scale + min(np.finfo(np.float32).eps, scale) / 2
    assert low - slack <= ends[0]
    assert ends[1] <= high + slack


def random_ranges(seed):
    random = np.random.default_rng(seed)
    for _ in range(3000):
        ends = random.normal(random.normal(), 1, 2) * 10 ** random.uniform(-3, 3)
        yield np.sort(ends).astype(np.float32)


def test_parameters_equal_those_of_onnxruntime_where_the_definitions_agree():
    for low, high in random_ranges(0):
        zero, scale = quant_utils.compute_scale_zp(low, high, *map(np.int8, (-128, 127)), symmetric=False)
        ours, offset = _core.quant_range(float(low), float(high), "asymmetric", "Int8")
        assert offset == int(zero)
        # Older releases divide by 255 in another precision.
        np.testing.assert_array_max_ulp(np.float32(ours), np.float32(scale), maxulp=1)


@pytest.mark.skipif(
    not hasattr(quant_utils, "snap_zero_point_to_uint8"), reason="this onnxruntime has no such range"
)
def test_the_restricted_asymmetric_range_of_onnxruntime_is_symmetric_with_uint8():
    for low, high in random_ranges(1):
        if high <= 0:
            continue
        zero, scale = quant_utils.snap_zero_point_to_uint8(low, high)
        ours, offset = _core.quant_range(float(low), float(high), "symmetric_with_uint8", "Int8")
        assert offset + 128 == int(zero)
        assert ours == pytest.approx(float(scale), rel=1e-6)


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 5), min_size=0, max_size=4))
    count = int(np.prod(shape, dtype=int))
    special = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-45, 1e38, 0.5, 1.5, 2.5]
    values = st.one_of(st.sampled_from(special), st.floats(width=32), st.floats(-300, 300, width=32))
    return np.array(draw(st.lists(values, min_size=count, max_size=count)), np.float32).reshape(shape)


scales = st.one_of(st.sampled_from([0.5, 1.0, 0.1, 1e-45]), st.floats(2**-100, 2**100, width=32))


@given(tensors(), scales, st.integers(-128, 127), precisions)
def test_one_scale_for_a_tensor(values, scale, offset, precision):
    levels = _core.quantize_tensor(values, scale, offset, precision)
    expected = oracle.quantize(values, scale, offset, precision)
    assert (levels.dtype, levels.shape) == (expected.dtype, values.shape)
    np.testing.assert_array_equal(levels, expected)


@given(st.data(), precisions)
def test_a_scale_for_each_channel(data, precision):
    values = data.draw(tensors().filter(lambda array: array.ndim > 0))
    axis = data.draw(st.integers(-values.ndim, values.ndim - 1))
    channels = values.shape[axis]
    scale = np.array(data.draw(st.lists(scales, min_size=channels, max_size=channels)), np.float32)
    offset = np.array(data.draw(st.lists(st.integers(-9, 9), min_size=channels, max_size=channels)), np.int32)
    along = [-1 if dim == axis % values.ndim else 1 for dim in range(values.ndim)]
    levels = _core.quantize_tensor(values, scale, offset, precision, axis)
    wide = scale.reshape(along), offset.reshape(along)
    np.testing.assert_array_equal(levels, oracle.quantize(values, *wide, precision))


@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_a_tensor_larger_than_any_piece_of_the_work(axis):
    values = np.random.default_rng(2).normal(0, 30, (37, 65, 71)).astype(np.float32)
    if axis is None:
        scale, offset = np.float32(0.3), 5
        wide = scale, offset
    else:
        scale = np.linspace(0.1, 1, values.shape[axis], dtype=np.float32)
        offset = 0
        wide = scale.reshape([-1 if dim == axis else 1 for dim in range(3)]), 0
    levels = _core.quantize_tensor(values, scale, offset, "Int8", axis)
    np.testing.assert_array_equal(levels, oracle.quantize(values, *wide))


def test_what_cannot_be_quantized_is_refused_by_name():
    array = np.zeros((2, 3), np.float32)
    with pytest.raises(InputError, match=r"axis 0 of shape .*: found 3 scales") as caught:
        _core.quantize_tensor(array, np.ones(3), 0, "Int8", 0)
    assert caught.value.code == "quant.parameters"
    with pytest.raises(InputError, match="2 scales without an axis"):
        _core.quantize_tensor(array, np.ones(2), 0, "Int8")
    with pytest.raises(InputError, match="axis 2 of a tensor with 2 dimensions"):
        _core.quantize_tensor(array, np.ones(2), 0, "Int8", 2)
    with pytest.raises(InputError, match="3 offsets for 2 scales"):
        _core.quantize_tensor(array, np.ones(2), np.zeros(3, int), "Int8", 0)
    with pytest.raises(InputError, match=r"scale 0; a finite number above zero"):
        _core.quantize_tensor(array, 0.0, 0, "Int8")
    for wrong in (array.astype(np.float64), array[:, ::2], [1.0]):
        with pytest.raises(InputError, match="a C-contiguous float32 array is expected") as caught:
            _core.quantize_tensor(wrong, 1.0, 0, "Int8")
        assert caught.value.code == "quant.array"
    with pytest.raises(OptionError, match='precision is "int8"; one of Int8, Int16, Int32'):
        _core.quantize_tensor(array, 1.0, 0, "int8")
    with pytest.raises(OptionError, match='schema is "affine"; one of asymmetric'):
        _core.quant_range(0, 1, "affine", "Int8")
    for ends in [(1, 0), (np.nan, 1), (0, np.inf)]:
        with pytest.raises(InputError, match="two finite numbers in order") as caught:
            _core.quant_range(*ends, "asymmetric", "Int8")
        assert caught.value.code == "quant.range"
