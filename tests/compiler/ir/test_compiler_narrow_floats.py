"""Constants of floating-point types that numpy does not have, which releases of onnx read differently."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from compiler_oracle import info, lowered, model_of, node, run, whole
from qaic.compiler.ir.constants.in_graph import dense
from qaic.compiler.ir.elem_types import NARROW_FLOATS, TABLE
from qaic.errors import CompileError


def narrow(elem_type, codes, dims, in_numbers):
    """Build a tensor by hand, with its codes as raw data or as one number each."""
    tensor = TensorProto(name="w", data_type=elem_type, dims=dims)
    if in_numbers:
        tensor.int32_data.extend(codes)
    else:
        tensor.raw_data = np.array(codes, f"<u{TABLE[elem_type][1] // 8}").tobytes()
    return tensor


@given(st.data(), st.sampled_from(sorted(NARROW_FLOATS)), st.booleans())
def test_the_codes_of_a_tensor_are_what_is_read(data, elem_type, in_numbers):
    bits = TABLE[elem_type][1]
    dims = data.draw(st.lists(st.integers(0, 3), max_size=3))
    count = int(np.prod(dims))
    codes = data.draw(st.lists(st.integers(0, 2**bits - 1), min_size=count, max_size=count))
    values = dense(narrow(elem_type, codes, dims, in_numbers))
    assert values.shape == tuple(dims)
    assert values.reshape(-1).view(f"u{bits // 8}").tolist() == codes


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1), st.booleans())
def test_a_bfloat16_is_the_upper_half_of_a_float32(values, in_numbers):
    codes = np.array(values, np.float32).view(np.uint32) >> 16
    read = dense(narrow(TensorProto.BFLOAT16, codes.tolist(), [len(codes)], in_numbers))
    np.testing.assert_array_equal(read.astype(np.float32), (codes << 16).view(np.float32))


@pytest.mark.parametrize("codes", [[], [1], [1, 2, 3]])
def test_a_wrong_number_of_codes_is_an_error(codes):
    with pytest.raises(CompileError, match="'w'"):
        dense(narrow(TensorProto.BFLOAT16, codes, [2], in_numbers=True))


@pytest.mark.parametrize("hardware", ["ai100", "ai200"])
@pytest.mark.parametrize("in_numbers", [False, True])
def test_a_bfloat16_constant_keeps_its_value(hardware, in_numbers):
    """Regression: with onnx 1.18, a decoder's scale of 0.25 was read as the number of its code, 16000."""
    scale = narrow(TensorProto.BFLOAT16, [0x3E80], [], in_numbers)
    nodes = [
        node("Cast", ["x"], ["narrow"], to=TensorProto.BFLOAT16),
        node("Constant", [], ["scale"], value=scale),
        node("Mul", ["narrow", "scale"], ["scaled"]),
        node("Cast", ["scaled"], ["y"], to=TensorProto.FLOAT),
    ]
    program = whole(lowered(model_of(nodes, [info("x", [3])], [info("y", [3])]), aic_hw_version=hardware))
    x = np.float32([1, -2, 12])
    np.testing.assert_array_equal(run(program, {"x": x})["y"], x / 4)
