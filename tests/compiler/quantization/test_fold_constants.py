"""Operands that a model computes from constants become constants."""

import numpy as np
import pytest

from compiler_oracle import info, model_of, node
from qaic.compiler.quantization.prepare import read_result
from qaic.errors import CompileError
from single_pass import applied, before, content, ops, outputs

NAME = "fold-constants"
OPTIONS = {"convert_to_quantize": True}


def transposed(*, extra=(), results=("y",)):
    nodes = [node("Transpose", ["w"], ["t"], perm=[1, 0]), node("MatMul", ["x", "t"], ["y"]), *extra]
    weight = np.random.default_rng(6).standard_normal((4, 3), np.float32)
    return model_of(nodes, [info("x", [2, 3])], [info(name, None) for name in results], [("w", weight)])


def test_computed_operand_becomes_a_constant_of_its_name():
    model, context = before(NAME, transposed(), **OPTIONS)
    x = {"x": np.random.default_rng(7).standard_normal((2, 3), np.float32)}
    expected = outputs(model, x)["y"]
    assert applied(NAME, model, context)
    assert ops(model) == ["MatMul"]
    assert model.weights["t"].dims == (3, 4)
    np.testing.assert_array_equal(outputs(model, x)["y"], expected)


def test_folding_twice_changes_nothing():
    model, context = before(NAME, transposed(), **OPTIONS)
    applied(NAME, model, context)
    found = content(model)
    assert not applied(NAME, model, context)
    assert content(model) == found


def test_value_that_is_an_output_stays_computed():
    model, context = before(NAME, transposed(results=("y", "t")), **OPTIONS)
    assert not applied(NAME, model, context)


def test_nothing_random_is_folded():
    nodes = [node("RandomNormal", [], ["r"], shape=[3, 4]), node("MatMul", ["x", "r"], ["y"])]
    model, context = before(NAME, model_of(nodes, [info("x", [2, 3])], [info("y", [2, 4])]), **OPTIONS)
    assert not applied(NAME, model, context)


@pytest.mark.parametrize("program", [b"", b"not a model"])
def test_nodes_that_the_engine_cannot_compute_are_refused(program):
    with pytest.raises(CompileError, match="constant 't'"):
        list(read_result(program, (), "t", 4))
