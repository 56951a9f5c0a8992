"""A wrong element type or shape that a pass writes is found, at any place in the model."""

import dataclasses

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import session_models
from qaic.compiler.ir.constants.weights import MemoryRange, Weight
from qaic.compiler.ir.model import Pass
from qaic.compiler.ir.verify import InvalidModelError
from qaic.compiler.pipeline import VERIFY_VARIABLE, run_passes
from single_pass import STEPS, before

INFERRED = next(at for at, step in enumerate(STEPS) if step.name == "survey-types")


def branches():
    """A graph with the inner value a, the result b of a branch, the constant c and the output y."""
    body = {
        side: helper.make_graph(
            [
                helper.make_node(op, ["a"], [f"{side}_inner"]),
                helper.make_node("Neg", [f"{side}_inner"], [side]),
            ],
            side,
            [],
            [helper.make_tensor_value_info(side, TensorProto.FLOAT, [2, 3])],
        )
        for side, op in (("then_branch", "Relu"), ("else_branch", "Abs"))
    }
    return session_models.model(
        [
            helper.make_node("Add", ["x", "c"], ["a"]),
            helper.make_node("If", ["cond"], ["b"], **body),
            helper.make_node("Identity", ["b"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, [2, 3]), ("cond", TensorProto.BOOL, [])],
        [("y", TensorProto.FLOAT, [2, 3])],
        {"c": np.ones((2, 3), np.float32)},
    )


def described(graph, name, elem_type=TensorProto.FLOAT, dims=(2, 3)):
    graph.value_info.append(helper.make_tensor_value_info(name, elem_type, dims))


def value_type(model):
    described(model.proto.graph, "a", TensorProto.INT32)


def value_shape(model):
    described(model.proto.graph, "a", dims=(3, 2))


def value_rank(model):
    described(model.proto.graph, "a", dims=(6,))


def nested_type(model):
    described(model.proto.graph.node[1].attribute[0].g, "else_branch_inner", TensorProto.INT8)


def nested_shape(model):
    described(model.proto.graph.node[1].attribute[0].g, "else_branch_inner", dims=(2, 4))


def output_type(model):
    model.proto.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16


def output_shape(model):
    model.proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 4


def input_shape(model):
    for dim in model.proto.graph.input[0].type.tensor_type.shape.dim:
        dim.dim_value = 1


def constant_shape(model):
    (tensor,) = model.proto.graph.initializer
    tensor.CopyFrom(numpy_helper.from_array(np.ones((1, 2, 3), np.float32), "c"))


def weight_type(model):
    del model.proto.graph.initializer[:]
    data = np.ones((2, 3), np.float16).tobytes()
    model.weights["c"] = Weight("c", TensorProto.FLOAT16, (2, 3), MemoryRange(data))


def node(model):
    model.proto.graph.node[0].op_type = "Equal"


def fact_type(model):
    model.facts.types["a"] = TensorProto.INT64


def fact_shape(model):
    model.facts.shapes["a"] = (2, 1)


def specialized_type(model):
    described(model.specialized[0].graph, "a", TensorProto.BOOL)


def specialized_shape(model):
    described(model.specialized[0].graph, "b", dims=(2,))


def interface_type(model):
    outputs = (dataclasses.replace(model.outputs[0], elem_type=TensorProto.INT8),)
    model.known = dataclasses.replace(model.known, outputs=outputs)


def interface_shape(model):
    outputs = (dataclasses.replace(model.outputs[0], dims=(3, 2)),)
    model.known = dataclasses.replace(model.known, outputs=outputs)


MISTAKES = {
    value_type: "'a' is int32 in the graph; inference gives float32",
    value_shape: "'a' has the dims (3, 2) in the graph; inference gives (2, 3)",
    value_rank: "'a' has the dims (6,) in the graph; inference gives (2, 3)",
    nested_type: "'else_branch_inner' is int8 in the graph; inference gives float32",
    nested_shape: "'else_branch_inner' has the dims (2, 4) in the graph; inference gives (2, 3)",
    output_type: "'y' is float16 in the graph; inference gives float32",
    output_shape: "'y' has the dims (2, 4) in the graph; inference gives (2, 3)",
    input_shape: "'x' has the dims (2, 3) in the facts; inference gives (1, 1)",
    constant_shape: "'c' has the dims (2, 3) in the facts; inference gives (1, 2, 3)",
    weight_type: "'c' is float32 in the facts; inference gives float16",
    node: "'a' is float32 in the facts; inference gives bool",
    fact_type: "'a' is int64 in the facts; inference gives float32",
    fact_shape: "'a' has the dims (2, 1) in the facts; inference gives (2, 3)",
    specialized_type: "'a' is bool in a specialized graph; inference gives float32",
    specialized_shape: "'b' has the dims (2,) in a specialized graph; inference gives (2, 3)",
    interface_type: "'y' is int8 in the interface; inference gives float32",
    interface_shape: "'y' has the dims (3, 2) in the interface; inference gives (2, 3)",
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_pass_that_writes_a_wrong_type_or_shape_is_found(mistake):
    model, context = before("merge-equal-nodes", branches())
    run_passes([Pass("do-nothing", lambda _model, _context: False)], model, context)

    def broken(model, _):
        model.facts.shapes  # noqa: B018 - collected by the passes that need them
        mistake(model)
        return True

    with pytest.raises(InvalidModelError, match="after the pass 'break-it'") as caught:
        run_passes([Pass("break-it", broken)], model, context)
    assert MISTAKES[mistake] in str(caught.value)


def test_the_graph_of_the_mistakes_is_valid():
    onnx.checker.check_model(branches(), full_check=True)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_onnx_does_not_judge_models_of_users(mistake, monkeypatch):
    monkeypatch.delenv(VERIFY_VARIABLE)
    model, context = before("merge-equal-nodes", branches(), enable_debug=True)
    mistake(model)
    run_passes([Pass("change-nothing", lambda _model, _context: True)], model, context)
