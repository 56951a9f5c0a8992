import numpy as np
import pytest
from onnx import helper

import qaic
from qaic.cli.qpc.diff import graph_of

SETS = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]


def nested(body):
    inner = helper.make_function("local", "Inner", ["a", "b"], ["c"], body, SETS[:1])
    outer = helper.make_function(
        "local",
        "Outer",
        ["a"],
        ["c"],
        [
            helper.make_node("Inner", ["a", "a"], ["q"], name="squared", domain="local"),
            helper.make_node("Neg", ["q"], ["c"], name="negated"),
        ],
        SETS,
    )
    nodes = [
        helper.make_node("Abs", ["x"], ["m"]),
        helper.make_node("Outer", ["m"], ["y"], name="first", domain="local"),
        helper.make_node("Inner", ["y", "x"], ["z"], domain="local"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [value("x", 1, [2])], [value("z", 1, [2])])
    return helper.make_model(graph, functions=[inner, outer], opset_imports=SETS, ir_version=10)


@pytest.mark.parametrize("always", [True, False])
def test_the_option_expands_functions_and_changes_no_result(always):
    qpc = qaic.compile(
        nested([helper.make_node("Mul", ["a", "b"], ["c"])]), always_expand_onnx_functions=always
    )
    found = graph_of(qpc)
    assert bool(found.functions) is not always
    assert ("Outer" in {node.op_type for node in found.graph.node}) is not always
    x = np.float32([-2, 3])
    with qaic.Session(qpc.path) as session:
        np.testing.assert_array_equal(session.run({"x": x})["z"], -x * x * x)
