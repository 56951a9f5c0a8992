"""Versions of operator sets: lowered if this changes nothing, otherwise unchanged."""

import onnx
import pytest
from onnx import defs, helper

from compiler_oracle import info, node
from qaic.compiler.frontend.check_model import lower_opset_version


def stamped(op, version, *, domain="", ir_version=onnx.IR_VERSION, functions=()):
    graph = helper.make_graph([node(op, ["x"], ["y"])], "net", [info("x", [2])], [info("y", [2])])
    imports = [helper.make_opsetid(domain, version), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version, functions=functions)


def stamps(model):
    lower_opset_version(model)
    return model.ir_version, [entry.version for entry in model.opset_import]


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_newest_stamps_become_the_oldest_that_mean_the_same(domain):
    newest = defs.onnx_opset_version()
    since = defs.get_schema("Relu", newest, "").since_version
    assert stamps(stamped("Relu", newest, domain=domain)) == (10, [max(22, since), 1])


def test_operator_that_changed_late_keeps_its_version():
    newest = defs.onnx_opset_version()
    late = [s for s in defs.get_all_schemas() if s.domain == "" and s.since_version > 22 and not s.deprecated]
    assert late
    for schema in late:
        assert stamps(stamped(schema.name, newest))[1][0] == schema.since_version


@pytest.mark.parametrize(("ir_version", "version"), [(4, 7), (8, 17), (10, 22)])
def test_older_stamps_are_left_alone(ir_version, version):
    assert stamps(stamped("Relu", version, ir_version=ir_version)) == (ir_version, [version, 1])


def test_operators_in_nested_graphs_count():
    newest = defs.onnx_opset_version()
    late = max(
        (s for s in defs.get_all_schemas() if s.domain == "" and not s.deprecated),
        key=lambda s: s.since_version,
    )
    branch = helper.make_graph([node(late.name, [], ["z"])], "branch", [], [info("z", [2])])
    model = stamped("Relu", newest)
    model.graph.node.append(node("If", ["c"], ["r"], then_branch=branch, else_branch=branch))
    assert stamps(model)[1][0] == late.since_version


def test_operators_in_functions_count():
    newest = defs.onnx_opset_version()
    late = max(
        (s for s in defs.get_all_schemas() if s.domain == "" and not s.deprecated),
        key=lambda s: s.since_version,
    )
    imports = [helper.make_opsetid("", newest)]
    for op, version in (("Relu", 22), (late.name, late.since_version)):
        function = helper.make_function("local", "F", ["a"], ["b"], [node(op, ["a"], ["b"])], imports)
        model = stamped("Relu", newest, functions=[function])
        assert stamps(model) == (10, [version, 1])
        assert [entry.version for entry in model.functions[0].opset_import] == [version]
