import logging

import numpy as np
import pytest
from onnx import TensorProto, helper

from compiler_oracle import info, lowered, model_of, node, run, whole
from qaic.errors import CompileError


def chain():
    return model_of(
        [
            node("Add", ["a", "w"], ["sum"], name="adder"),
            node("Relu", ["sum"], ["positive"]),
            node("Mul", ["positive", "b"], ["product"]),
            node("Neg", ["sum"], ["negative"]),
        ],
        [info("a", [2]), info("b", [2])],
        [info("product", [2]), info("negative", [2])],
        [("w", np.array([1, -5], np.float32))],
    )


def test_inner_tensors_become_outputs_and_what_they_do_not_need_goes():
    program = lowered(chain(), output_node_names=("positive",))
    assert [spec.name for spec in program.inputs] == ["a"]
    assert [held.op_type for held in program.model.graph.node] == ["Add", "Relu"]
    np.testing.assert_array_equal(run(whole(program), {"a": np.zeros(2, np.float32)})["positive"], [1, 0])


def test_outputs_keep_the_order_of_the_model_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING, "qaic.compiler"):
        program = lowered(chain(), output_node_names=("sum", "negative", "product"))
    assert [spec.name for spec in program.outputs] == ["product", "negative", "sum"]
    assert "order of the model" in caplog.text


def test_all_outputs_in_order_change_nothing(caplog):
    program = lowered(chain(), output_node_names=("product", "negative"))
    assert [spec.name for spec in program.outputs] == ["product", "negative"]
    assert not caplog.records


@pytest.mark.parametrize(
    ("name", "hint"), [("adder", "its results are 'sum'"), ("positve", "'positive'"), ("zzz", "'product'")]
)
def test_unknown_names_are_refused_with_the_next_best(name, hint):
    with pytest.raises(CompileError) as caught:
        lowered(chain(), output_node_names=(name,))
    assert caught.value.code == "compile.unknown_output"
    assert hint in " ".join(caught.value.hints)


def test_what_branches_read_stays():
    then = helper.make_graph([node("Add", ["kept", "kept"], ["t"])], "then", [], [info("t", [1])])
    other = helper.make_graph([node("Neg", ["kept"], ["o"])], "else", [], [info("o", [1])])
    model = model_of(
        [
            node("Abs", ["x"], ["kept"]),
            node("If", ["c"], ["y"], then_branch=then, else_branch=other),
            node("Exp", ["x"], ["z"]),
        ],
        [info("c", [], TensorProto.BOOL), info("x", [1])],
        [info("y", [1]), info("z", [1])],
    )
    program = lowered(model, output_node_names=("y",))
    assert {held.op_type for held in program.model.graph.node} == {"Abs", "If"}
    result = run(whole(program), {"c": np.array(True), "x": np.array([-3], np.float32)})
    np.testing.assert_array_equal(result["y"], [6])
