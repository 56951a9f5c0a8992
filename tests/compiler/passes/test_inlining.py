"""Functions that are expanded, and the pass that expands them."""

import numpy as np
import pytest
from onnx import helper

from compiler_oracle import info
from qaic.compiler.passes.inlining import inline_functions, inline_small_functions
from qaic.errors import CompileError
from single_pass import applied, before, content, ops, outputs

SETS = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]


def nested(body):
    """Build a model with a function in a function; nodes with and without a name call each of them."""
    inner = helper.make_function("local", "Inner", ["a", "b"], ["c"], body, SETS[:1])
    calls = [
        helper.make_node("Inner", ["a", "a"], ["q"], name="squared", domain="local"),
        helper.make_node("Neg", ["q"], ["c"], name="negated"),
    ]
    outer = helper.make_function("local", "Outer", ["a"], ["c"], calls, SETS)
    nodes = [
        helper.make_node("Abs", ["x"], ["m"]),
        helper.make_node("Outer", ["m"], ["y"], name="first", domain="local"),
        helper.make_node("Inner", ["y", "x"], ["z"], domain="local"),
    ]
    graph = helper.make_graph(nodes, "g", [info("x", [2])], [info("z", [2])])
    return helper.make_model(graph, functions=[inner, outer], opset_imports=SETS, ir_version=10)


PRODUCT = [helper.make_node("Mul", ["a", "b"], ["t"], name="product"), helper.make_node("Relu", ["t"], ["c"])]


def test_nodes_are_named_after_the_calls_they_came_from():
    flat = inline_functions(nested(PRODUCT))
    assert not flat.functions
    assert [(node.op_type, node.name) for node in flat.graph.node] == [
        ("Abs", ""),
        ("Mul", "first/squared/product"),
        ("Relu", "first/squared/c"),
        ("Neg", "first/negated"),
        ("Mul", "z/product"),
        ("Relu", "z/c"),
    ]


def test_a_model_without_functions_is_returned_as_it_is():
    model = nested(PRODUCT)
    del model.functions[:]
    assert inline_functions(model) is model


def test_large_functions_and_those_of_the_card_stay():
    body = [helper.make_node("Relu", ["a" if at == 0 else f"t{at - 1}"], [f"t{at}"]) for at in range(99)]
    body.append(helper.make_node("Add", ["t98", "b"], ["c"]))
    flat = inline_small_functions(nested(body))
    assert {function.name for function in flat.functions} == {"Inner"}
    assert "Outer" not in {node.op_type for node in flat.graph.node}


def test_option_expands_all_functions_and_changes_no_result():
    model, context = before("inline-functions", nested(PRODUCT), always_expand_onnx_functions=True)
    x = {"x": np.float32([-2, 3])}
    expected = outputs(model, x)["z"]
    assert applied("inline-functions", model, context)
    assert ops(model) == ["Abs", "Mul", "Relu", "Neg", "Mul", "Relu"]
    np.testing.assert_array_equal(outputs(model, x)["z"], expected)
    found = content(model)
    assert not applied("inline-functions", model, context)
    assert content(model) == found


def test_functions_stay_unless_options_ask():
    model, context = before("inline-functions", nested(PRODUCT))
    assert not applied("inline-functions", model, context)
    assert not applied("inline-for-nodes", model, context)
    assert not applied("inline-fused-functions", model, context)
    assert len(model.proto.functions) == 2


def test_functions_are_expanded_where_a_file_names_nodes(tmp_path):
    file = tmp_path / "precision.yaml"
    file.write_text("FP16NodeInstanceNames: [z]\n")
    options = {"node_precision_info_file": str(file), "convert_to_fp16": False}
    model, context = before("inline-for-nodes", nested(PRODUCT), **options)
    assert applied("inline-for-nodes", model, context)
    assert not model.proto.functions


def test_body_that_does_not_fit_its_calls_is_refused():
    model = nested(PRODUCT)
    model.functions[0].opset_import[0].version = 12
    with pytest.raises(CompileError, match="bodies that cannot be inlined"):
        inline_functions(model)
