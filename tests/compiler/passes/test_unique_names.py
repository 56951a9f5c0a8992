"""Each name belongs to one value, even in branches that never run together."""

import numpy as np
import onnx
from onnx import helper

from compiler_oracle import info, model_of, node
from qaic.compiler.ir.graph_walk import all_graphs
from single_pass import applied, before, content, outputs

NAME = "unique-names"


def branches(inner="t"):
    """Build an If whose branches use one name for two values, and read one value of the outer graph."""
    made = {
        "then_branch": [node("Relu", ["x"], [inner]), node("Add", [inner, "x"], ["result"])],
        "else_branch": [node("Neg", ["x"], [inner]), node("Mul", [inner, "x"], ["result"])],
    }
    graphs = {
        name: helper.make_graph(nodes, name, [], [info("result", [2])], []) for name, nodes in made.items()
    }
    nodes = [node("If", ["c"], ["y"], **graphs)]
    return model_of(nodes, [info("c", [], onnx.TensorProto.BOOL), info("x", [2])], [info("y", [2])])


def defined(model):
    return [name for graph in all_graphs(model.proto.graph) for one in graph.node for name in one.output]


def test_each_value_has_a_name_of_its_own_and_the_results_stay():
    model, context = before(NAME, branches())
    feeds = [{"c": np.array(choice), "x": np.float32([-2, 3])} for choice in (False, True)]
    expected = [outputs(model, given)["y"] for given in feeds]
    assert len(set(defined(model))) < len(defined(model))
    applied(NAME, model, context)
    assert len(set(defined(model))) == len(defined(model))
    assert "y" in defined(model)
    for given, result in zip(feeds, expected, strict=True):
        np.testing.assert_array_equal(outputs(model, given)["y"], result)


def test_names_that_are_unique_stay():
    model, context = before(NAME, branches())
    applied(NAME, model, context)
    found = content(model)
    applied(NAME, model, context)
    assert content(model) == found


def test_model_without_branches_is_left_alone():
    proto = model_of([node("Relu", ["x"], ["y"])], [info("x", [2])], [info("y", [2])])
    model, context = before(NAME, proto)
    found = content(model)
    applied(NAME, model, context)
    assert content(model) == found
