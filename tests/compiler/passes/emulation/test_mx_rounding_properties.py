"""MXINT8 in a graph, compared with numpy code that follows the text of the format."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

import session_models
from qaic import _core
from qaic.compiler.passes.emulation import mxint8
from qaic.errors import CompileError

FLOAT = onnx.TensorProto.FLOAT
BLOCK = 32


def oracle(x):
    """Return the rounded values of an array with at least one dimension."""
    lead, size = x.shape[:-1], x.shape[-1]
    count = -(-size // BLOCK)
    blocks = np.zeros((*lead, count * BLOCK), np.float64)
    blocks[..., :size] = x
    blocks = blocks.reshape(*lead, count, BLOCK)
    broken = ~np.isfinite(blocks).all(-1, keepdims=True)
    magnitude = np.where(broken, 0, np.abs(blocks)).max(-1, keepdims=True)
    exponent = np.clip(np.frexp(magnitude)[1] - 1, -127, 127)
    exponent = np.where(magnitude == 0, -127, exponent)
    # The type computes its own power of two, so this code is independent of the code under test.
    scale = (exponent + 127).astype(np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    steps = np.clip(np.rint(np.where(broken, 0, blocks) / scale * 64), -127, 127)
    decoded = np.where(broken, np.nan, steps / 64 * scale).astype(np.float32)
    return decoded.reshape(*lead, count * BLOCK)[..., :size]


def session_of(build, shape, opset):
    graph = helper.make_graph([], "net", [helper.make_tensor_value_info("x", FLOAT, shape)], [])
    graph.node.append(helper.make_node("Identity", [build(graph)], ["y"]))
    result = "y"
    graph.output.append(helper.make_tensor_value_info(result, FLOAT, shape))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model)
    return session_models.engine(model)


def run(build, x, opset=17):
    return session_of(build, [None] * x.ndim, opset).run(None, {"x": x})[0]


numbers = st.one_of(
    st.floats(width=32),
    st.floats(-2, 2, width=32),
    st.sampled_from([0.0, -0.0, 1.984375, 1.9921875, 2**-149, 2**-126, 2**-127, 3.4028235e38, 7.9]),
    st.builds(
        lambda m, e: float(np.ldexp(np.float32(m), e)), st.floats(1, 2, width=32), st.integers(-149, 126)
    ),
)


@st.composite
def tensors(draw):
    shape = (*draw(st.lists(st.integers(1, 3), max_size=2)), draw(st.integers(1, 70)))
    finite = draw(st.booleans())
    pool = np.float32(draw(st.lists(numbers, min_size=1, max_size=12)))
    if finite:
        pool = np.where(np.isfinite(pool), pool, np.float32(1))
    seed = draw(st.integers(0, 2**32 - 1))
    return np.random.default_rng(seed).choice(pool, shape).astype(np.float32)


def given_shape(x, known):
    return {"all": x.shape, "last": (*[-1] * (x.ndim - 1), x.shape[-1]), "none": None}[known]


@settings(max_examples=150, deadline=None)
@given(tensors(), st.sampled_from(["all", "last", "none"]), st.sampled_from([13, 17, 18, 21]))
def test_rounding_is_that_of_the_format(x, known, opset):
    shape = given_shape(x, known)
    out = run(lambda g: mxint8.append_mxint8_rounding(g, "x", opset=opset, shape=shape), x, opset=opset)
    np.testing.assert_array_equal(out, oracle(x))


@settings(max_examples=150, deadline=None)
@given(tensors())
def test_rounding_is_that_of_the_device(x):
    out = run(lambda g: mxint8.append_mxint8_rounding(g, "x", opset=17, shape=x.shape), x)
    np.testing.assert_array_equal(out, _core.mx_decode(_core.mx_encode(x, "mxint8"), x.shape, "mxint8"))


@given(st.lists(st.integers(0, 5), max_size=2), st.integers(0, 100))
def test_stored_shape_counts_the_bytes(lead, last):
    shape = (*lead, last)
    stored = _core.mx_encode(np.zeros(shape, np.float32), "mxint8")
    assert np.prod(mxint8.packed_shape(shape)) == len(stored)


def test_vector_of_the_specification():
    x = np.zeros((1, 32), np.float32)
    x[0, :8] = [1, -0.3, 0.07, 3.9, -2.2, 0.001, 0.5, -3.3]
    out = run(lambda g: mxint8.append_mxint8_rounding(g, "x", opset=17, shape=x.shape), x)
    np.testing.assert_array_equal(out[0, :8], [1, -0.3125, 0.0625, 3.90625, -2.1875, 0, 0.5, -3.3125])


def test_scalar_is_a_block_of_one():
    x = np.float32(0.3)
    out = run(lambda g: mxint8.append_mxint8_rounding(g, "x", opset=17, shape=()), np.array(x))
    np.testing.assert_array_equal(out, oracle(x.reshape(1))[0])


@pytest.mark.parametrize("shape", [(0, 5), (2, 0)])
def test_tensor_without_elements(shape):
    x = np.zeros(shape, np.float32)
    out = run(lambda g: mxint8.append_mxint8_rounding(g, "x", opset=17, shape=shape), x)
    assert out.shape == shape


def test_old_operator_set_is_refused_by_number():
    graph = helper.make_graph([], "net", [], [])
    with pytest.raises(CompileError, match=r"'x'.*operator set 12.*at least 13") as caught:
        mxint8.append_mxint8_rounding(graph, "x", opset=12)
    assert caught.value.code == "compile.unsupported_opset"
