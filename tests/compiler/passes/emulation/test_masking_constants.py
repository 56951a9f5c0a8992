"""Masks with the most negative float32 number, in programs that compute in float16."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper

from compiler_oracle import FLOAT, half, info, lowered, model_of, node, run, whole
from qaic.compiler.ir.constants.float16_weights import overflow_warning

LEAST = np.finfo(np.float32).min
LEAST_HALF = np.float32(-65504)
SEQ = 4
WIDTH = 8


def softmax(scores):
    shifted = np.exp(scores.astype(np.float64) - scores.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def disentangled_attention():
    """Attention with a mask that is a product of rows and columns, so padded rows attend to no key."""
    nodes = [
        node("Unsqueeze", ["mask", "one"], ["row"]),
        node("Unsqueeze", ["mask", "two"], ["column"]),
        node("Mul", ["row", "column"], ["pairs"]),
        node("Cast", ["pairs"], ["keep"], to=TensorProto.BOOL),
        node("Not", ["keep"], ["drop"]),
        node("MatMul", ["q", "k"], ["scores"]),
        node("Constant", [], ["least"], value=numpy_helper.from_array(np.float32(LEAST))),
        node("Where", ["drop", "least", "scores"], ["masked"]),
        node("Softmax", ["masked"], ["weights"], axis=-1),
        node("MatMul", ["weights", "v"], ["y"]),
    ]
    return model_of(
        nodes,
        [
            info("mask", [1, SEQ], TensorProto.INT64),
            info("q", [1, SEQ, WIDTH]),
            info("k", [1, WIDTH, SEQ]),
            info("v", [1, SEQ, WIDTH]),
        ],
        [info("y", [1, SEQ, WIDTH]), info("weights", [1, SEQ, SEQ])],
        [("one", np.int64([1])), ("two", np.int64([2]))],
    )


def operands(seed):
    rng = np.random.default_rng(seed)
    return {
        "q": rng.standard_normal((1, SEQ, WIDTH)).astype(np.float32),
        "k": rng.standard_normal((1, WIDTH, SEQ)).astype(np.float32),
        "v": rng.standard_normal((1, SEQ, WIDTH)).astype(np.float32),
    }


@given(st.integers(0, 2**16), st.integers(0, SEQ))
def test_rows_that_are_completely_masked_are_no_nan(seed, length):
    mask = (np.arange(SEQ) < length).astype(np.int64)[None]
    feeds = operands(seed) | {"mask": mask}
    program = lowered(disentangled_attention(), convert_to_fp16=True)
    found = run(whole(program), feeds)
    scores = half(half(feeds["q"]) @ half(feeds["k"]))
    masked = np.where(mask[:, None, :] * mask[:, :, None] == 0, LEAST_HALF, scores)
    weights = half(softmax(masked))
    np.testing.assert_allclose(found["weights"], weights, rtol=2e-3, atol=1e-7)
    np.testing.assert_allclose(found["y"], half(weights @ half(feeds["v"])), rtol=4e-3, atol=4e-3)
    # If a row attends to no key, all keys have the same weight.
    assert (found["weights"][0, length:] == 1 / SEQ).all()


def test_without_clipping_such_rows_are_nan():
    feeds = operands(0) | {"mask": np.int64([[1, 1, 0, 0]])}
    program = lowered(disentangled_attention(), convert_to_fp16=True, clip_fp16_constants=False)
    weights = run(whole(program), feeds)["weights"]
    assert np.isnan(weights[0, 2:]).all()
    assert np.isfinite(weights[0, :2]).all()


def test_it_is_said_once(caplog):
    with caplog.at_level(logging.WARNING):
        program = lowered(disentangled_attention(), convert_to_fp16=True)
        assert run(whole(program), operands(1) | {"mask": np.int64([[1, 0, 0, 0]])})
    assert caplog.messages == []
    assert [item.message for item in overflow_warning(program.overflows)] == [
        "1 constant beyond the range of float16 became the largest finite value "
        "(clip_fp16_constants=False makes them infinite; `openqaic accuracy MODEL --to fp16` shows the "
        "effect on accuracy): 'least' (-3.4e+38, read by 'masked')"
    ]


def filled(shape, value, **more):
    return node(
        "ConstantOfShape",
        [shape],
        ["filled"],
        value=numpy_helper.from_array(np.array([value], np.float32)),
        **more,
    )


@pytest.mark.parametrize("opset", [9, 13, 17, 21])
def test_a_causal_mask_that_is_computed_is_clipped(opset):
    nodes = [
        filled("shape", LEAST),
        node("Mul", ["filled", "upper"], ["causal"]),
        node("Add", ["x", "causal"], ["masked"]),
        node("Softmax", ["masked"], ["y"], axis=1),
    ]
    upper = np.triu(np.ones((SEQ, SEQ), np.float32), 1)
    model = model_of(
        nodes,
        [info("x", [SEQ, SEQ])],
        [info("y", [SEQ, SEQ])],
        [("shape", np.int64([SEQ, SEQ])), ("upper", upper)],
        opset=opset,
    )
    x = np.random.default_rng(3).standard_normal((SEQ, SEQ)).astype(np.float32)
    found = run(whole(lowered(model, convert_to_fp16=True)), {"x": x})["y"]
    expected = half(softmax(half(half(x) + np.where(upper, LEAST_HALF, 0).astype(np.float32))))
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-7)


@given(st.lists(st.floats(width=32), min_size=1, max_size=6), st.floats(width=32))
def test_a_computed_constant_is_what_float16_has_of_it(values, factor):
    table = np.array(values, np.float32)
    model = model_of(
        [node("Mul", ["table", "factor"], ["scaled"]), node("Add", ["scaled", "x"], ["y"])],
        [info("x", [len(values)])],
        [info("y", [len(values)])],
        [("table", table), ("factor", np.float32(factor))],
    )
    with np.errstate(all="ignore"):
        product = table * np.float32(factor)
        expected = half(product)
        expected = np.where(np.isfinite(product) & np.isinf(expected), np.copysign(65504, product), expected)
    found = run(whole(lowered(model, convert_to_fp16=True)), {"x": np.zeros(len(values), np.float32)})["y"]
    np.testing.assert_array_equal(found, expected.astype(np.float32))


def test_a_filling_whose_shape_comes_at_run_time_is_clipped_and_counted():
    model = model_of(
        [filled("shape", LEAST), node("Add", ["x", "filled"], ["y"])],
        [info("x", [3]), info("shape", [1], TensorProto.INT64)],
        [info("y", [3])],
    )
    program = lowered(model, convert_to_fp16=True)
    found = run(whole(program), {"x": np.zeros(3, np.float32), "shape": np.int64([3])})["y"]
    np.testing.assert_array_equal(found, np.full(3, LEAST_HALF))
    assert program.overflows.counts == {"filled": 1}


def test_what_cannot_exceed_the_range_is_not_clipped():
    nodes = [
        node("Sin", ["angles"], ["sines"]),
        filled("shape", -1.0),
        node("Add", ["x", "sines"], ["a"]),
        node("Add", ["a", "filled"], ["y"]),
    ]
    model = model_of(
        nodes,
        [info("x", [2])],
        [info("y", [2])],
        [("angles", np.float32([1e30, 2])), ("shape", np.int64([2]))],
    )
    program = lowered(model, convert_to_fp16=True)
    assert not {"Min", "Max"} & {n.op_type for n in program.model.graph.node}


def test_a_node_in_fp32_reads_the_constant_as_it_is():
    model = model_of(
        [
            filled("shape", LEAST),
            node("Add", ["x", "filled"], ["y"]),
            node("Max", ["x", "filled"], ["z"]),
        ],
        [info("x", [2])],
        [info("y", [2], FLOAT), info("z", [2])],
        [("shape", np.int64([2]))],
    )
    program = lowered(model, convert_to_fp16=True, keep_original_precision_for_nodes=("Add",))
    found = run(whole(program), {"x": np.float32([-np.inf, 1])})
    np.testing.assert_array_equal(found["y"], np.float32([-np.inf, LEAST]))
    np.testing.assert_array_equal(found["z"], np.float32([LEAST_HALF, 1]))
