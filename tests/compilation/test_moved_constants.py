"""Constants of every size that the engine's optimizer permutes or reshapes."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

import qaic
import session_models

#: From one element to 1 MiB; constants of 1 KiB or more are outside the graph.
SIZES = [1, 64, 255, 256, 300, 4096, 1 << 18]

RNG = np.random.default_rng(31)


def positive(*shape):
    return (RNG.random(shape) + 0.5).astype(np.float32)


def sandwich(perm, middle):
    """Put a node that reads the constant ``k`` between a Transpose and its inverse."""
    return [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("Transpose", ["a"], ["t"], perm=list(perm)),
        middle,
        helper.make_node("Transpose", ["m"], ["y"], perm=np.argsort(perm).tolist()),
    ]


def differs(nodes, x, constants, output="y"):
    """Run a model with openqaic and in unoptimized onnxruntime; return the largest relative difference."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, x.shape)],
        [helper.make_tensor_value_info(output, 1, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    expected = session_models.engine(model, optimize=False).run([output], {"x": x})[0]
    with qaic.Session(model) as session:
        found = np.array(session.run({"x": x})[output])
    assert found.shape == expected.shape
    return float((np.abs(found - expected) / np.abs(expected).max()).max())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", ["Add", "Div", "Max", "PRelu"])
def test_constant_between_transposes(size, op):
    nodes = sandwich((0, 2, 3, 1), helper.make_node(op, ["t", "k"], ["m"]))
    assert differs(nodes, positive(1, size, 2, 1), {"k": positive(size)}) < 1e-5


@pytest.mark.parametrize("size", [15, 16, 40, 512])
def test_square_constant_whose_shape_does_not_tell(size):
    nodes = sandwich((0, 2, 1), helper.make_node("Mul", ["t", "k"], ["m"]))
    assert differs(nodes, positive(1, size, size), {"k": positive(size, size)}) < 1e-5


def test_constant_with_a_reader_on_each_side():
    nodes = sandwich((0, 2, 1), helper.make_node("Mul", ["t", "k"], ["m"]))
    nodes.insert(1, helper.make_node("Mul", ["a", "k"], ["b"]))
    nodes[2] = helper.make_node("Transpose", ["b"], ["t"], perm=[0, 2, 1])
    assert differs(nodes, positive(1, 30, 30), {"k": positive(30, 30)}) < 1e-5


def test_constant_of_a_concatenation():
    nodes = sandwich((0, 2, 1), helper.make_node("Concat", ["t", "k"], ["m"], axis=2))
    assert differs(nodes, positive(1, 20, 30), {"k": positive(1, 30, 20)}) < 1e-5


def test_constant_that_is_an_output_too():
    nodes = sandwich((1, 0), helper.make_node("Mul", ["t", "k"], ["m"]))
    constants = {"k": positive(20, 30)}
    assert differs(nodes, positive(30, 20), constants) < 1e-5
    assert differs(nodes, positive(30, 20), constants, output="k") < 1e-5
