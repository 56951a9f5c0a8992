"""Options that name values inside functions."""

import pytest
from onnx import helper

from compiler_oracle import info
from qaic.errors import QaicError
from single_pass import applied, before, content

NAME = "translate-names"
SETS = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]


def called():
    body = [helper.make_node("Abs", ["a"], ["t"]), helper.make_node("Relu", ["t"], ["b"])]
    function = helper.make_function("local", "F", ["a"], ["b"], body, SETS[:1])
    nodes = [helper.make_node("F", [a], [b], name=f"call{b}", domain="local") for a, b in ("xm", "my")]
    graph = helper.make_graph(nodes, "net", [info("x", [2])], [info("y", [2])])
    return helper.make_model(graph, functions=[function], opset_imports=SETS, ir_version=10)


def prepared(tmp_path, *values):
    file = tmp_path / "precision.yaml"
    file.write_text(f"FP16NodeInstanceNames: [{', '.join(values)}]\n")
    return before(NAME, called(), node_precision_info_file=str(file), convert_to_fp16=False)


@pytest.mark.parametrize(("value", "count"), [("t", 2), ("callm/t", 1), ("F_1_t", 1), ("m", 1)])
def test_names_become_those_of_the_expanded_graph(tmp_path, value, count):
    model, context = prepared(tmp_path, value)
    found = content(model)
    applied(NAME, model, context)
    named = context.options.node_precision_info_file.fp16
    computed = {name for node in model.proto.graph.node for name in node.output}
    assert len(named) == count
    assert set(named) <= computed
    assert content(model) == found


def test_name_of_no_value_is_refused(tmp_path):
    model, context = prepared(tmp_path, "nothing")
    with pytest.raises(QaicError, match="nothing"):
        applied(NAME, model, context)
