"""Shapes that a model computes from shapes, in ways that onnx does not follow."""

import numpy as np
import pytest

from compiler_oracle import FLOAT, info, lowered, model_of, node, run, whole
from qaic.compiler.ir.shape_arithmetic import computed_node
from qaic.errors import CompileError


def halved(reader):
    """A Reshape to half the number of columns; the sizes are computed in floats."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Cast", ["s"], ["f"], to=FLOAT),
        node("Mul", ["f", "factors"], ["g"]),
        node("Cast", ["g"], ["sizes"], to=7),
        node("Reshape", ["x", "sizes"], ["r"]),
        reader,
    ]
    return model_of(nodes, [info("x", [3, 4])], [info("y", None)], [("factors", np.float32([2, 0.5]))])


def test_the_shape_of_an_output_is_computed_like_the_engine_does():
    model = halved(node("Relu", ["r"], ["y"]))
    program = lowered(model)
    assert [spec.dims for spec in program.outputs] == [(6, 2)]
    feeds = {"x": np.float32(np.arange(12).reshape(3, 4) - 5)}
    assert np.array_equal(run(whole(program), feeds)["y"], run(model, feeds)["y"])


def test_inner_values_of_unknown_rank_are_not_taken_for_scalars():
    program = lowered(halved(node("ReduceMean", ["r"], ["y"], axes=[1])))
    assert [spec.dims for spec in program.outputs] == [(6, 1)]


@pytest.mark.parametrize("name", ["", "places"])
def test_a_shape_that_depends_on_data_is_refused_with_the_node_it_depends_on(name):
    nodes = [node("Relu", ["x"], ["r"]), node("NonZero", ["r"], ["n"]), node("Cast", ["n"], ["y"], to=FLOAT)]
    nodes[1].name = name
    found = rf"only known when the program runs, from node '{name or 'n'}' \(NonZero\) on"
    with pytest.raises(CompileError, match=found):
        lowered(model_of(nodes, [info("x", [3, 4])], [info("y", None)]))


@pytest.mark.parametrize(("attributes", "shape"), [({"axes": [0]}, (1, 2)), ({}, None)])
def test_unsqueeze_without_axes_has_no_value(attributes, shape):
    made = computed_node(node("Unsqueeze", ["x"], ["y"], **attributes), {"x": np.array([1, 6])}, 11)
    assert (None if made is None else made.shape) == shape
