"""The edits with which passes change a graph."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qaic.compiler.ir import graph_edits


def relu(source: str, result: str, name: str = "") -> onnx.NodeProto:
    return helper.make_node("Relu", [source], [result], name=name)


def value(name: str, dims=(2, 3)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)


def chain(*names: str) -> onnx.GraphProto:
    """Relus from each name to the next name."""
    nodes = [relu(source, result) for source, result in pairwise(names)]
    return helper.make_graph(nodes, "net", [value(names[0])], [value(names[-1])])


def choice(source: str) -> onnx.NodeProto:
    """An If whose branches read a value of the outer graph."""
    graphs = {
        branch: helper.make_graph([relu(source, f"{branch}_out")], branch, [], [value(f"{branch}_out")])
        for branch in ("then_branch", "else_branch")
    }
    return helper.make_node("If", ["condition"], ["chosen"], **graphs)


def sizes(described: onnx.ValueInfoProto) -> list[int | str]:
    dims = described.type.tensor_type.shape.dim
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in dims]


@pytest.mark.parametrize("make", [lambda: chain("x", "a", "y").node, lambda: [relu("x", "y")]])
def test_clone_is_equal_and_apart(make):
    graph = onnx.GraphProto(node=make())
    copy = graph_edits.clone(graph)
    assert copy == graph
    copy.node[0].op_type = "Abs"
    assert graph.node[0].op_type == "Relu"


def test_nodes_of_a_graph_can_be_given_back_to_it():
    graph = chain("x", "a", "y")
    made = relu("a", "b")
    graph_edits.set_nodes(graph, (graph.node[0], made, graph.node[1]))
    assert [node.output[0] for node in graph.node] == ["a", "b", "y"]
    graph_edits.set_nodes(graph, reversed(graph.node))
    assert [node.output[0] for node in graph.node] == ["y", "b", "a"]
    made.op_type = "Abs"
    assert {node.op_type for node in graph.node} == {"Relu"}
    graph_edits.set_nodes(graph, ())
    assert not graph.node


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_rule_may_return_any_number_of_other_nodes(count):
    graph = chain("x", "a", "y")
    made = [helper.make_node("Abs", ["x"], [f"b{number}"]) for number in range(count)]
    graph_edits.rewrite_nodes(graph, lambda node: made if node.output[0] == "a" else [node])
    assert [node.output[0] for node in graph.node] == [*(f"b{number}" for number in range(count)), "y"]


def test_nodes_are_removed_by_position_and_the_others_stay_themselves():
    graph = chain("x", "a", "b", "y")
    last = graph.node[2]
    graph_edits.remove_nodes(graph, {1, 0})
    last.op_type = "Abs"
    assert [(node.op_type, node.output[0]) for node in graph.node] == [("Abs", "y")]


def test_inputs_of_a_node_are_replaced():
    node = helper.make_node("Sum", ["a", "b", "c"], ["y", "z"])
    graph_edits.replace_input_with(node, 1, "d")
    assert node.input == ["a", "d", "c"]
    graph_edits.set_inputs(node, [node.input[2], "e"])
    assert node.input == ["c", "e"]
    graph_edits.rename_output(node, 1, "last")
    assert node.output == ["y", "last"]


def test_uses_are_replaced_inside_of_branches_and_definitions_stay():
    nodes = [relu("x", "a"), choice("a"), relu("a", "y")]
    graph_edits.replace_all_uses_with(nodes, {"a": "b"})
    assert nodes[0].output == ["a"]
    assert nodes[2].input == ["b"]
    assert [attribute.g.node[0].input[0] for attribute in nodes[1].attribute] == ["b", "b"]


def test_result_of_a_branch_is_a_use():
    node = choice("a")
    for attribute in node.attribute:
        attribute.g.output[0].name = "a"
    graph_edits.replace_all_uses_with([node], {"a": "b"})
    assert [attribute.g.output[0].name for attribute in node.attribute] == ["b", "b"]


def test_values_are_renamed_where_they_are_made_and_read():
    nodes = [relu("x", "a"), choice("a"), relu("a", "y")]
    graph_edits.rename_values(nodes, {"a": "b", "then_branch_out": "inner"})
    assert (nodes[0].output, nodes[2].input) == (["b"], ["b"])
    branch = next(a.g for a in nodes[1].attribute if a.name == "then_branch")
    assert (branch.node[0].input, branch.node[0].output, branch.output[0].name) == (["b"], ["inner"], "inner")


def test_declarations_of_a_graph_are_renamed():
    graph = chain("x", "a", "y")
    graph_edits.describe_value(graph, value("a"))
    graph_edits.register_initializer(graph, numpy_helper.from_array(np.ones(2, np.float32), "w"))
    graph_edits.rename_declared(graph, {"x": "x1", "a": "a1", "y": "y1", "w": "w1"})
    held = (*graph.input, *graph.value_info, *graph.output, *graph.initializer)
    assert [one.name for one in held] == ["x1", "a1", "y1", "w1"]


def test_outputs_keep_what_is_declared_of_them():
    graph = chain("x", "a", "b", "y")
    graph_edits.describe_value(graph, value("a", [4]))
    graph_edits.set_outputs(graph, ["a", "b", "y"])
    assert [(one.name, sizes(one)) for one in graph.output] == [("a", [4]), ("b", []), ("y", [2, 3])]
    assert not graph.output[1].HasField("type")


def test_inputs_are_added_under_a_name_and_removed_by_it():
    graph = chain("x", "y")
    graph_edits.add_input(graph, graph.input[0], "again")
    graph_edits.add_input(graph, value("z"))
    assert [one.name for one in graph.input] == ["x", "again", "z"]
    assert sizes(graph.input[1]) == [2, 3]
    graph_edits.remove_inputs(graph, {"again", "nothing"})
    assert [one.name for one in graph.input] == ["x", "z"]


def test_shapes_are_declared_permuted_and_cleared():
    described = value("x", ["batch", 3, 4])
    graph_edits.permute_shape(described, (0, 2, 1))
    assert sizes(described) == ["batch", 4, 3]
    graph_edits.clear_dim(described, 1)
    assert sizes(described) == ["batch", "", 3]
    graph_edits.set_shape(described, [1, None])
    assert sizes(described) == [1, ""]
    graph_edits.set_shape(described, [])
    assert described.type.tensor_type.HasField("shape")
    graph_edits.clear_shape(described)
    assert not described.type.tensor_type.HasField("shape")


def test_tensor_gets_other_numbers_under_its_name():
    tensor = numpy_helper.from_array(np.float16([1, 2]), "w")
    graph_edits.set_values(tensor, np.float32([[3, 4, 5]]))
    assert (tensor.name, tensor.data_type, tensor.dims) == ("w", TensorProto.FLOAT, [1, 3])
    graph_edits.set_payload(tensor, TensorProto.INT32, np.int32([6, 7, 8]).tobytes())
    assert (tensor.name, tensor.dims) == ("w", [1, 3])
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), [[6, 7, 8]])


def test_initializers_are_replaced_in_order():
    graph = chain("x", "y")
    for name in "abc":
        graph_edits.register_initializer(graph, numpy_helper.from_array(np.ones(2), "first"), name)
    graph_edits.set_initializers(graph, list(graph.initializer)[::-1])
    assert [tensor.name for tensor in graph.initializer] == ["c", "b", "a"]
    graph_edits.remove_initializers(graph, [1])
    assert [tensor.name for tensor in graph.initializer] == ["c", "a"]


def test_operator_set_is_imported_once():
    model = helper.make_model(chain("x", "y"), opset_imports=[helper.make_opsetid("", 17)])
    for version in (1, 2):
        graph_edits.import_opset(model, "com.microsoft", version)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 17), ("com.microsoft", 1)]


def test_graph_is_replaced_with_its_operator_sets():
    model = helper.make_model(chain("x", "y"), opset_imports=[helper.make_opsetid("", 9)])
    other = helper.make_model(chain("x", "a", "y"), opset_imports=[helper.make_opsetid("", 17)])
    graph_edits.replace_graph(model, other)
    assert (model.graph, model.opset_import) == (other.graph, other.opset_import)


def test_copy_without_names_is_the_same_for_equal_attributes():
    tensors = [numpy_helper.from_array(np.ones(2), name) for name in "ab"]
    first, second = (
        graph_edits.plain(helper.make_attribute("value", tensor, name))
        for tensor, name in zip(tensors, "cd", strict=True)
    )
    assert first.SerializeToString() == second.SerializeToString()
    assert tensors[0].name == "a"
    assert not graph_edits.clone_unnamed(relu("x", "y", "name")).HasField("name")


def test_nodes_that_nothing_reads_are_removed_as_far_as_they_may():
    nodes = [relu("x", "a"), relu("a", "b"), relu("b", "c"), choice("a"), relu("x", "y")]
    graph = helper.make_graph(nodes, "net", [value("x")], [value("y")])
    graph_edits.remove_unused_nodes(graph, ["a", "b", "c", "y"])
    # The branches read `a`, the graph returns `y`, and the If must remain.
    assert [node.output[0] for node in graph.node] == ["a", "chosen", "y"]
    graph_edits.remove_unused_nodes(graph, ["a"], made_elsewhere=["a"])
    assert [node.output[0] for node in graph.node] == ["chosen", "y"]


def test_a_sequence_stays_a_sequence_without_its_shape():
    made = helper.make_tensor_sequence_value_info("s", 1, None)
    expected = made.SerializeToString()
    graph_edits.clear_shape(made)
    assert made.SerializeToString() == expected
