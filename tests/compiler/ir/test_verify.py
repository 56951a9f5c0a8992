"""A value has one origin: an input, an initializer, a weight or one node."""

import pytest
from onnx import TensorProto, helper, numpy_helper

from qaic.compiler.ir.constants.weights import MemoryRange, Weight
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.verify import InvalidModelError, verify


def values(*names):
    return [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in names]


def graph(made, inner=None):
    """A graph with the input x, the initializer c and the weight w; its second node computes a value."""
    nodes = [helper.make_node("Relu", ["x"], ["a"])]
    if inner is None:
        nodes.append(helper.make_node("Relu", ["a"], [made]))
    else:
        body = helper.make_graph(
            [helper.make_node("Relu", ["a"], ["b"]), helper.make_node("Relu", ["b"], [made])],
            "body",
            [],
            values(made),
            [numpy_helper.from_array(numpy_helper.to_array(one()), inner)],
        )
        nodes.append(helper.make_node("If", ["cond"], ["y"], then_branch=body, else_branch=body))
    inputs = [*values("x"), helper.make_tensor_value_info("cond", TensorProto.BOOL, [])]
    return helper.make_graph(nodes, "g", inputs, values("a"), [one()])


def one():
    return helper.make_tensor("c", TensorProto.FLOAT, [1], [1.0])


def checked(proto, weights=()):
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)])
    held = {name: Weight(name, TensorProto.FLOAT, (1,), MemoryRange(bytes(4))) for name in weights}
    verify(Model(model, held), "a pass")


def test_a_value_that_is_made_once_is_sound():
    checked(graph("b"), ["w"])
    checked(graph("b2", inner="d"), ["w"])


@pytest.mark.parametrize("name", ["x", "c", "w", "a"])
def test_a_value_of_two_origins_is_refused(name):
    with pytest.raises(InvalidModelError, match=f"'{name}' is (both an input and computed|computed twice)"):
        checked(graph(name), ["w"])


@pytest.mark.parametrize("name", ["b", "d"])
def test_a_value_of_two_origins_in_a_body_is_refused(name):
    with pytest.raises(InvalidModelError, match=f"'{name}' is (both an input and computed|computed twice)"):
        checked(graph(name, inner="d"))


def test_a_function_does_not_make_its_inputs():
    model = helper.make_model(graph("b"), opset_imports=[helper.make_opsetid("", 17)])
    node = helper.make_node("Relu", ["p"], ["p"])
    model.functions.append(
        helper.make_function("f", "F", ["p"], ["p"], [node], [helper.make_opsetid("", 17)])
    )
    with pytest.raises(InvalidModelError, match="'p' is both an input and computed"):
        verify(Model(model, {}), "a pass")
