"""Constant operands of matrix products in blocks of MXFP6."""

import numpy as np
import pytest

from compiler_oracle import info, model_of, node
from single_pass import applied, before, content, ops, skipped

NAME = "compress-weights"
SIDE = 64


def product(nodes=None, dtype=np.float32, shape=(SIDE, SIDE)):
    weight = np.random.default_rng(5).standard_normal(shape).astype(dtype)
    nodes = nodes or [node("MatMul", ["x", "w"], ["y"])]
    return model_of(nodes, [info("x", [2, SIDE])], [info("y", None)], [("w", weight)])


def prepared(proto, **options):
    return before(NAME, proto, convert_to_fp16=True, mxfp6_matmul=True, **options)


def test_weight_of_a_product_is_stored_in_blocks_along_its_sum():
    model, context = prepared(product())
    assert applied(NAME, model, context)
    (name,) = {one.input[1] for one in model.proto.graph.node}
    weight = model.weights[name]
    assert (weight.blocks.encoding, weight.blocks.axis, weight.dims) == ("mxfp6_e2m3", 0, (SIDE, SIDE))
    assert model.facts.shapes[name] == (SIDE, SIDE)


def test_compressing_twice_changes_nothing():
    model, context = prepared(product())
    applied(NAME, model, context)
    found = content(model)
    assert not applied(NAME, model, context)
    assert content(model) == found


def test_transposition_in_front_is_taken_along():
    nodes = [node("Transpose", ["w"], ["t"], perm=[1, 0]), node("MatMul", ["x", "t"], ["y"])]
    model, context = prepared(product(nodes))
    assert applied(NAME, model, context)
    assert ops(model) == ["MatMul"]


def test_one_weight_has_one_set_of_blocks_for_all_readers():
    nodes = [
        node("MatMul", ["x", "w"], ["p"]),
        node("MatMul", ["p", "w"], ["y"]),
    ]
    model, context = prepared(product(nodes))
    assert applied(NAME, model, context)
    assert len({one.input[1] for one in model.proto.graph.node}) == 1


@pytest.mark.parametrize("shape", [(SIDE, 3), (SIDE,)])
def test_small_operands_and_vectors_stay(shape):
    model, context = prepared(product(shape=shape))
    found = content(model)
    assert not applied(NAME, model, context)
    assert content(model) == found


def test_product_in_float32_keeps_its_weight(tmp_path):
    model, context = before(NAME, product(), mxfp6_matmul=True, convert_to_fp16=True)
    context.plan.classes.clear()
    assert not applied(NAME, model, context)


def test_reasons_for_products_that_stay_are_reported():
    (line,) = skipped(NAME, *prepared(product(shape=(SIDE, 3))))
    assert line.endswith(": the matrix has a side below 32")
    assert line.startswith(f"{NAME} left 1 node (first ")
