"""Errors of the engine during loading and running name the node, not positions in the engine's sources."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import qaic
from compiler_oracle import info, model_of, node
from qaic import accuracy
from qaic.compiler.diagnostics.messages import engine_reason
from qaic.errors import CompileError, InferenceError

INT32 = TensorProto.INT32
BEFORE = node("Relu", ["x"], ["r"])
BRANCH = {"nodes_treeids": [0], "nodes_nodeids": [0], "nodes_featureids": [0], "nodes_modes": ["BRANCH_LEQ"]}
TREE = {
    **BRANCH,
    "nodes_values": [0.5],
    "nodes_truenodeids": [1],
    "nodes_falsenodeids": [2],
    "target_treeids": [0],
    "target_nodeids": [1],
    "target_ids": [0],
    "target_weights": [1.0],
}
REFUSED = {
    "a divisor of zero": ("Div", [node("Div", ["i", "zero"], ["y"])], "division by zero"),
    "a remainder of zero": ("Mod", [node("Mod", ["i", "zero"], ["y"])], "division by zero"),
    "constants alone": (
        "Div",
        [node("Div", ["one", "zero"], ["y"]), node("Add", ["i", "y"], ["z"])],
        "division by zero",
    ),
    "a tree without its leaves": (
        "TreeEnsembleRegressor",
        [node("TreeEnsembleRegressor", ["r"], ["y"], domain="ai.onnx.ml", n_targets=1, **TREE)],
        "a branch to node 1",
    ),
    "an unknown mode": (
        "Resize",
        [node("Resize", ["r", "", "scales"], ["y"], mode="nearest", nearest_mode="no")],
        "is not supported",
    ),
}


def program(nodes):
    constants = [
        ("zero", np.int32(0)),
        ("one", np.int32(1)),
        ("scales", np.float32([1, 2])),
    ]
    return model_of(
        [BEFORE, *nodes],
        [info("x", [2, 3]), info("i", [4], INT32)],
        [info(nodes[-1].output[0], None, INT32 if nodes[-1].op_type in {"Add", "Div", "Mod"} else 1)],
        constants,
        opset=17,
    )


def compile_integers(model):
    qaic.compile(model, convert_to_quantize=True)


def judge_float16(model):
    samples = [{"x": np.ones((2, 3), np.float32), "i": np.ones(4, np.int32)}]
    accuracy.compare(model, to="fp16", samples=samples)


@pytest.mark.parametrize("use", [qaic.Session, compile_integers, judge_float16])
@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("name", ["", "mine"])
def test_a_refusal_of_the_engine_names_the_node(what, name, use):
    op_type, nodes, reason = REFUSED[what]
    nodes = [type(one).FromString(one.SerializeToString()) for one in nodes]
    nodes[0].name = name
    with pytest.raises(CompileError) as caught:
        use(program(nodes))
    said = str(caught.value)
    assert caught.value.code == "compile.engine_refused"
    assert f"node '{name or 'y'}' ({op_type})" in said
    assert reason in said
    assert "onnxruntime" not in said


def test_a_division_by_zero_in_a_function_is_refused():
    body = [node("Div", ["a", "zero"], ["b"])]
    zero = helper.make_node("Constant", [], ["zero"], value_int=0)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    function = helper.make_function("local", "Halve", ["a"], ["b"], [zero, *body], sets)
    call = helper.make_node("Halve", ["i"], ["y"], domain="local")
    kind = TensorProto.INT64
    graph = helper.make_graph([call], "g", [info("i", [4], kind)], [info("y", [4], kind)])
    model = helper.make_model(graph, functions=[function], opset_imports=sets, ir_version=8)
    with pytest.raises(CompileError, match="division by zero"):
        qaic.Session(model)


@pytest.mark.virtual_card("a failing operator ends the channel of a card with all inferences in flight")
@pytest.mark.parametrize("op_type", ["Div", "Mod"])
@pytest.mark.parametrize("name", ["", "mine"])
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_a_division_by_zero_while_running_names_the_node(op_type, name, dtype):
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    division = node(op_type, ["a", "b"], ["y"])
    division.name = name
    model = model_of([division], [info("a", [3], kind), info("b", [3], kind)], [info("y", [3], kind)], [])
    with qaic.Session(model) as session:
        with pytest.raises(InferenceError, match=f"Name:'{name or 'y'} .integer division by zero"):
            session.run({"a": dtype([1, 2, 3]), "b": dtype([1, 0, 1])})
        assert session.run({"a": dtype([4, 2, 3]), "b": dtype([2, 1, 3])})["y"].tolist() in (
            [2, 2, 1],
            [0, 0, 0],
        )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Exception during initialization: /src/ops.h:256 "
            "onnxruntime::Div<T>::Div(const onnxruntime::OpKernelInfo&) [with T = int] b[i] != 0 was false. "
            "Integer division by zero\n",
            "Integer division by zero",
        ),
        (
            "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Exception during initialization: "
            "onnxruntime::Texts::Locale::Locale(const std::string&)::<lambda()> Failed to construct locale",
            "Failed to construct locale",
        ),
        (
            "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Swish(24) node",
            "Could not find an implementation for Swish(24) node",
        ),
        (
            "[ONNXRuntimeError] : 1 : FAIL : Node (n) Op (Mul) [ShapeInferenceError] Incompatible dims.",
            "Incompatible dims",
        ),
        ("", "no reason is given"),
    ],
)
def test_reasons_have_no_places_of_sources(text, reason):
    assert engine_reason(RuntimeError(text)) == reason
