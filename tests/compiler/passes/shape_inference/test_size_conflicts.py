"""A set of sizes compiles if and only if onnxruntime runs the user's model with these sizes."""

import os
import subprocess
import sys
from contextlib import suppress
from itertools import combinations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import engine_version
import qaic
from compiler_oracle import as_call, info, lowered, model_of, node
from operands import ALL_CONSTANT, SCALE, ZERO, filled, integers, of_another_shape, ones
from qaic import _core
from qaic.compiler.passes.shape_inference import size_conflicts
from qaic.compiler.passes.shape_inference.size_conflicts import SizeCheck
from qaic.errors import CompileError
from qaic.options.files.specializations import SpecializationEntry

INT64, BOOL = TensorProto.INT64, TensorProto.BOOL


def _microsoft(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs, outputs, domain="com.microsoft", **attributes)


#: Operator: its nodes from "x" (and "z") to "y", the inputs with symbols, and constants.
CASES = {
    "Add": ([node("Add", ["x", "z"], ["y"])], {"x": ["m", 3], "z": ["n", 3]}, {}),
    "Mul, suffix": ([node("Mul", ["x", "z"], ["y"])], {"x": [2, "m"], "z": ["n"]}, {}),
    "MatMul": ([node("MatMul", ["x", "z"], ["y"])], {"x": [2, "m"], "z": ["n", 3]}, {}),
    "Gemm": ([node("Gemm", ["x", "w", "z"], ["y"])], {"x": ["m", 4], "z": ["n", 3]}, {"w": filled(4, 3)}),
    "Concat": ([node("Concat", ["x", "z"], ["y"], axis=0)], {"x": [2, "m"], "z": [1, "n"]}, {}),
    "Where": (
        [node("Less", ["x", "z"], ["c"]), node("Where", ["c", "x", "z"], ["y"])],
        {"x": ["m"], "z": ["n"]},
        {},
    ),
    "Reshape": ([node("Reshape", ["x", "to"], ["y"])], {"x": ["m", "n"]}, {"to": np.array([2, 3])}),
    "Reshape, rest": ([node("Reshape", ["x", "to"], ["y"])], {"x": ["m", "n"]}, {"to": np.array([2, -1])}),
    "Reshape, computed": (
        [node("Shape", ["z"], ["s"]), node("Reshape", ["x", "s"], ["y"])],
        {"x": ["m", 2], "z": [2, "n"]},
        {},
    ),
    "Expand": (
        [node("Shape", ["z"], ["s"]), node("Expand", ["x", "s"], ["y"])],
        {"x": ["m", 1], "z": ["n", 3]},
        {},
    ),
    "Split": ([node("Split", ["x", "sizes"], ["y", "q"])], {"x": ["m", "n"]}, {"sizes": np.array([2, 1])}),
    "Conv": ([node("Conv", ["x", "w"], ["y"])], {"x": [1, "m", "n", 4]}, {"w": filled(2, 3, 2, 2)}),
    "Conv, groups": (
        [node("Conv", ["x", "w"], ["y"], group=2)],
        {"x": [1, "m", "n", 4]},
        {"w": filled(2, 1, 3, 3)},
    ),
    "ConvTranspose": (
        [node("ConvTranspose", ["x", "w"], ["y"])],
        {"x": [1, "m", "n", 4]},
        {"w": filled(3, 2, 2, 2)},
    ),
    "LayerNormalization": (
        [node("LayerNormalization", ["x", "z"], ["y"])],
        {"x": [2, "m"], "z": ["n"]},
        {},
    ),
    "InstanceNormalization": (
        [node("InstanceNormalization", ["x", "z", "z"], ["y"])],
        {"x": [1, "m", 4], "z": ["n"]},
        {},
    ),
    "PRelu": ([node("PRelu", ["x", "z"], ["y"])], {"x": [2, "m"], "z": ["n"]}, {}),
    "Einsum": ([node("Einsum", ["x", "z"], ["y"], equation="ij,jk->ik")], {"x": [2, "m"], "z": ["n", 2]}, {}),
    "DepthToSpace": (
        [node("DepthToSpace", ["x"], ["y"], blocksize=2)],
        {"x": [1, "m", "n", 2]},
        {},
    ),
    "SpaceToDepth": ([node("SpaceToDepth", ["x"], ["y"], blocksize=2)], {"x": [1, 1, "m", "n"]}, {}),
    "LSTM": (
        [node("LSTM", ["x", "w", "r", "", "", "z"], ["q", "y"], hidden_size=2)],
        {"x": [3, "m", 2], "z": [1, "n", 2]},
        {"w": filled(1, 8, 2), "r": filled(1, 8, 2)},
    ),
    "GRU": (
        [node("GRU", ["x", "w", "r"], ["y"], hidden_size=2)],
        {"x": ["n", 1, "m"]},
        {"w": filled(1, 6, 3), "r": filled(1, 6, 2)},
    ),
    "Gather": ([node("Gather", ["x", "at"], ["y"], axis=1)], {"x": ["m", "n"]}, {"at": np.array([0, 2])}),
    "ScatterND": (
        [node("ScatterND", ["x", "at", "z"], ["y"])],
        {"x": [3, "m"], "z": [1, "n"]},
        {"at": np.array([[1]])},
    ),
    "Squeeze": ([node("Squeeze", ["x", "at"], ["y"])], {"x": ["m", "n"]}, {"at": np.array([0])}),
    "Pad, reflect": (
        [node("Pad", ["x", "at"], ["y"], mode="reflect")],
        {"x": ["m", "n"]},
        {"at": np.array([1, 0, 0, 2])},
    ),
    "AveragePool": (
        [node("AveragePool", ["x"], ["y"], kernel_shape=[3, 2])],
        {"x": [1, 1, "m", "n"]},
        {},
    ),
    "TopK": (
        [node("TopK", ["x", "k"], ["y", "q"])],
        {"x": ["m", "n"]},
        {"k": np.array([3])},
    ),
    "SkipLayerNormalization": (
        [_microsoft("SkipLayerNormalization", ["x", "z", "w"], ["y"])],
        {"x": [1, "m", 4], "z": [1, "n", 4]},
        {"w": filled(4)},
    ),
    "BiasGelu": ([_microsoft("BiasGelu", ["x", "z"], ["y"])], {"x": [2, "m"], "z": ["n"]}, {}),
    "FusedMatMul": ([_microsoft("FusedMatMul", ["x", "z"], ["y"])], {"x": [2, "m"], "z": ["n", 3]}, {}),
}

#: Positions of the nodes.
PLACES = ["main", "function", "loop", "scan"]


def _model(case, place):
    nodes, shapes, constants = CASES[case]
    inputs = [info(name, shape) for name, shape in shapes.items()]
    functions = []
    # Later nodes must not hide the result of the operator.
    result = "y"
    if place == "function":
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        read = [*shapes, *constants]
        functions = [helper.make_function("f", "F", read, ["y"], nodes, opsets)]
        nodes = [helper.make_node("F", read, ["result"], domain="f", name="call")]
        result = "result"
    elif place == "loop":
        body = helper.make_graph(
            [*nodes, node("Identity", ["go"], ["go_on"]), node("ReduceSum", ["y"], ["sum"], keepdims=0)],
            "body",
            [info("step", [], INT64), info("go", [], BOOL), info("total", [])],
            [info("go_on", [], BOOL), info("sum", [])],
        )
        nodes = [node("Loop", ["trips", "", "first"], ["result"], body=body)]
        constants = constants | {"trips": np.array(2), "first": np.float32(0)}
        result = "result"
    elif place == "scan":
        body = helper.make_graph(
            [*nodes, node("ReduceSum", ["y"], ["sum"], keepdims=0), node("Add", ["sum", "row"], ["out"])],
            "body",
            [info("row", [])],
            [info("out", [])],
        )
        nodes = [node("Scan", ["rows"], ["result"], body=body, num_scan_inputs=1)]
        constants = constants | {"rows": filled(2)}
        result = "result"
    if result != "y":
        nodes = [*nodes, node("Identity", [result], ["y"])]
    model = model_of(nodes, inputs, [info("y", None)], list(constants.items()), functions=functions)
    for domain in ("f", "com.microsoft"):
        if domain not in {entry.domain for entry in model.opset_import}:
            model.opset_import.append(helper.make_opsetid(domain, 1))
    return model, shapes


def _runs(model, shapes, sizes, dtype=np.float32):
    """Run the user's model in onnxruntime; its optimizer would remove nodes that cannot run."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    feeds = {
        name: np.full([sizes.get(dim, dim) for dim in shape], 0.25).astype(dtype)
        for name, shape in shapes.items()
    }
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        session.run(None, feeds)
    except Exception:  # noqa: BLE001 - the engine has no exception type of its own
        return False
    return True


SIZES = st.fixed_dictionaries({"m": st.integers(1, 4), "n": st.integers(1, 4)})


@settings(max_examples=25)
@example("SkipLayerNormalization", "main", {"m": 1, "n": 1}, {"m": 1, "n": 2})
@example("BiasGelu", "main", {"m": 1, "n": 1}, {"m": 1, "n": 2})
@given(st.sampled_from(sorted(CASES)), st.sampled_from(PLACES), SIZES, SIZES)
def test_a_set_compiles_if_and_only_if_the_engine_runs_the_model(case, place, first, second):
    model, shapes = _model(case, place)
    sets = [sizes for at, sizes in enumerate((first, second)) if sizes not in (first, second)[:at]]
    entries = tuple(SpecializationEntry(f"set{at}", sizes) for at, sizes in enumerate(sets))
    runs = [_runs(model, shapes, sizes) for sizes in sets]
    if all(runs):
        lowered(model, network_specialization_config=entries)
        return
    with pytest.raises(CompileError) as caught:
        lowered(model, network_specialization_config=entries)
    error = caught.value
    assert error.code == "compile.contradicting_sizes"
    wrong = runs.index(False)
    assert f"specialization 'set{wrong}'" in str(error)
    assert f"'m' = {sets[wrong]['m']}" in str(error) or f"'n' = {sets[wrong]['n']}" in str(error)
    assert "opset" not in error.hints[0]
    for symbol, size in error.context["needed"].items():
        assert _runs(model, shapes, sets[wrong] | {symbol: size}), (symbol, size)


@settings(max_examples=25)
@example("MatMul", "branch", {"m": 1, "n": 2})
@example("Add", "branch in a function", {"m": 2, "n": 3})
@example("Concat", "branch in a loop", {"m": 2, "n": 3})
@given(
    st.sampled_from(sorted(CASES)),
    st.sampled_from(["branch", "branch in a function", "branch in a loop", "loop in a branch"]),
    SIZES,
)
def test_a_conflict_in_a_branch_has_the_words_of_another(case, place, sizes):
    """A model in which one branch fits compiles if the engine loads it, because the other branch may never
    run.
    """
    inner = "loop" if "loop in" in place else "main"
    model, shapes = _model(case, inner)
    other = helper.make_graph(
        [node("Constant", [], ["none"], value_float=0.0)], "else", [], [info("none", [])]
    )
    nodes = [*model.graph.node, node("ReduceSum", ["y"], ["total_of_y"], keepdims=0)]
    then = helper.make_graph(nodes, "then", [], [info("total_of_y", [])])
    nodes = [node("If", ["is_chosen"], ["chosen"], then_branch=then, else_branch=other)]
    constants = [(tensor.name, onnx.numpy_helper.to_array(tensor)) for tensor in model.graph.initializer]
    functions = []
    if place == "branch in a function":
        read = [*shapes, *(name for name, _ in constants), "is_chosen"]
        functions = [helper.make_function("f", "F", read, ["chosen"], nodes, model.opset_import)]
        nodes = [helper.make_node("F", read, ["chosen"], domain="f", name="call")]
    elif place == "branch in a loop":
        nodes.append(node("Identity", ["go"], ["go_on"]))
        given_values = [info("step", [], INT64), info("go", [], BOOL)]
        body = helper.make_graph(nodes, "body", given_values, [info("go_on", [], BOOL), info("chosen", [])])
        nodes = [node("Loop", ["times", ""], ["rows"], body=body)]
        nodes.append(node("ReduceSum", ["rows"], ["chosen"], keepdims=0))
        constants.append(("times", np.array(2)))
    nodes.append(node("Identity", ["chosen"], ["out"]))
    inputs = [*(info(name, shape) for name, shape in shapes.items()), info("is_chosen", [], BOOL)]
    whole = model_of(nodes, inputs, [info("out", [])], constants, functions=functions)
    whole.opset_import.append(helper.make_opsetid("f", 1))
    try:
        lowered(whole, onnx_define_symbol=sizes)
    except CompileError as refused:
        error = refused
    else:
        return
    assert error.code == "compile.contradicting_sizes"
    assert not _runs(model, shapes, sizes)
    assert "sizes that do not fit: " in str(error)
    for symbol, size in error.context["needed"].items():
        assert _runs(model, shapes, sizes | {symbol: size}), (symbol, size)


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("place", ["graph", "function"])
def test_a_branch_that_the_engine_refuses_has_the_words_of_the_main_graph(depth, place):
    def chosen(nodes, result, level):
        branches = [
            helper.make_graph(nodes, "then", [], [info(result, None)]),
            helper.make_graph([node("Identity", ["x"], ["e"])], "else", [], [info("e", None)]),
        ]
        return [node("If", ["c"], [f"r{level}"], then_branch=branches[0], else_branch=branches[1])]

    nodes = [helper.make_node("Mul", ["x", "z"], ["t"], name="mine")]
    for level in range(depth):
        nodes = chosen(nodes, nodes[-1].output[0], level)
    nodes.append(node("Identity", [nodes[-1].output[0]], ["y"]))
    inputs = [info("x", ["m", 4]), info("z", ["n", 4]), info("c", [], BOOL)]
    model = model_of(nodes, inputs, [info("y", None)])
    with pytest.raises(CompileError) as caught:
        lowered(as_call(model) if place == "function" else model, onnx_define_symbol={"m": 2, "n": 3})
    _, words = str(caught.value).splitlines()[0].split(" (Mul): ")
    assert words == (
        "found sizes that do not fit: 'x' is [2, 4], 'z' is [3, 4] (Incompatible dimensions), "
        "with 'm' = 2, 'n' = 3, expected 'm' = 1 or 'n' = 2"
    )


def test_each_call_of_a_function_is_checked_with_its_own_operands():
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("f", "F", ["p", "q"], ["r"], [node("Add", ["p", "q"], ["r"])], opsets)
    calls = [
        helper.make_node("F", given, [made], domain="f", name=made)
        for given, made in ((["x", "x"], "same"), (["same", "same"], "again"), (["again", "z"], "y"))
    ]
    model = model_of(calls, [info("x", ["m"]), info("z", ["n"])], [info("y", None)], functions=[function])
    model.opset_import.append(helper.make_opsetid("f", 1))
    lowered(model, onnx_define_symbol={"m": 2, "n": 1})
    with pytest.raises(CompileError, match="'y/r'"):
        lowered(model, onnx_define_symbol={"m": 2, "n": 3})


@pytest.mark.skipif(not engine_version.is_newest(), reason="the oracle, onnxruntime 1.22, ends the process")
@settings(max_examples=30)
@given(
    operator=st.sampled_from(sorted(ALL_CONSTANT)),
    place=st.sampled_from(["constants", "computed", "function"]),
    operand=st.integers(0, 7),
    how=st.sampled_from(["stacked", "taken", "wider", "longer", "shorter"]),
    axis=st.integers(0, 3),
)
@example(operator="ConstantOfShape", place="computed", operand=0, how="stacked", axis=0)
@example(operator="Reshape", place="constants", operand=1, how="wider", axis=0)
@example(operator="Reshape", place="constants", operand=1, how="taken", axis=0)
@example(operator="Transpose", place="computed", operand=0, how="stacked", axis=0)
@example(operator="Slice", place="computed", operand=2, how="longer", axis=0)
@example(operator="Squeeze", place="computed", operand=0, how="stacked", axis=0)
@example(operator="ReduceSum", place="constants", operand=1, how="taken", axis=0)
@example(operator="NonMaxSuppression", place="constants", operand=1, how="taken", axis=0)
@example(operator="OneHot", place="constants", operand=2, how="longer", axis=0)
@example(operator="Attention", place="constants", operand=1, how="wider", axis=0)
@example(operator="MaxRoiPool", place="constants", operand=1, how="longer", axis=1)
@example(operator="MelWeightMatrix", place="constants", operand=0, how="stacked", axis=0)
@example(operator="ConstantOfShape", place="constants", operand=0, how="taken", axis=0)
@example(operator="Range", place="constants", operand=0, how="stacked", axis=0)
@example(operator="MultiHeadAttention", place="constants", operand=1, how="longer", axis=0)
@example(operator="RotaryEmbedding", place="constants", operand=2, how="longer", axis=0)
@example(operator="RotaryEmbedding", place="constants", operand=0, how="wider", axis=0)
@example(operator="CropAndResize", place="constants", operand=1, how="longer", axis=0)
def test_constants_that_contradict_each_other_are_refused_before_they_are_folded(
    operator, place, operand, how, axis
):
    arrays, attributes = ALL_CONSTANT[operator]
    arrays = list(map(np.asarray, arrays))
    at = operand % len(arrays)
    arrays[at] = of_another_shape(arrays[at], how, axis)
    # Operators of the engine can end the process for operands without elements.
    assume(arrays[at].size or "domain" not in attributes)
    names = [f"k{number}" for number in range(len(arrays))]
    nodes = []
    if place == "computed":
        nodes = [node("Identity", [name], [f"{name}_read"]) for name in names]
    read = [made.output[0] for made in nodes] or names
    results = ["r", "more"] if operator in {"Split", "TopK"} else ["r"]
    nodes += [
        helper.make_node(operator, read, results, name="mine", **attributes),
        node("Cast", ["r"], ["f"], to=1),
        node("ReduceSum", ["f"], ["s"], keepdims=0),
        node("Add", ["x", "s"], ["y"]),
    ]
    model = model_of(nodes, [info("x", [2])], [info("y", [2])], list(zip(names, arrays, strict=True)))
    if "domain" in attributes:
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    if place == "function":
        model = as_call(model)
    if _runs(model, {"x": [2]}, {}):
        lowered(model)
        return
    with pytest.raises(CompileError) as caught:
        lowered(model)
    assert caught.value.code == "compile.contradicting_sizes"
    assert caught.value.context["node"] == ("y/mine" if place == "function" else "mine")
    # The operands of Range are squeezed.
    name = "'r/squeeze'" if operator == "Range" and place != "function" else repr(read[at])
    assert f"{name} is {list(arrays[at].shape)}" in str(caught.value)


def _held(made, place):
    """Put a node into a nested graph that declares its outputs."""
    if place not in {"branch", "loop", "scan"}:
        return [made]
    inner = [
        made,
        node("Cast", ["r"], ["c"], to=TensorProto.FLOAT),
        node("ReduceSum", ["c"], ["s"], keepdims=0),
    ]
    result = info("s", [])
    if place == "branch":
        other = [node("ReduceSum", ["x"], ["o"], keepdims=0)]
        graphs = {
            "then_branch": helper.make_graph(inner, "then", [], [result]),
            "else_branch": helper.make_graph(other, "else", [], [info("o", [])]),
        }
        return [
            node("ReduceSum", ["x"], ["t"], keepdims=0),
            node("Cast", ["t"], ["b"], to=TensorProto.BOOL),
            node("If", ["b"], ["r"], **graphs),
        ]
    if place == "scan":
        body = helper.make_graph(inner, "body", [info("row", [])], [result])
        return [node("Scan", ["x"], ["r"], body=body, num_scan_inputs=1)]
    inner.append(node("Identity", ["go"], ["on"]))
    inputs = [info("i", [], INT64), info("go", [], BOOL)]
    body = helper.make_graph(inner, "body", inputs, [info("on", [], BOOL), result])
    once = helper.make_node("Constant", [], ["once"], value_int=1)
    return [once, node("Loop", ["once", ""], ["r"], body=body)]


@pytest.mark.parametrize(
    "place", ["constants", "computed", "input", "branch", "loop", "scan", "function", "branch, input"]
)
@pytest.mark.parametrize(
    "operator",
    [*("Conv", "ConvInteger", "ConvTranspose", "Einsum", "GRU", "LSTM", "MaxUnpool", "QLinearConv", "RNN")],
)
def test_operands_of_another_rank_end_no_process(operator, place):
    """Inference of onnx 1.18 and onnxruntime 1.22 reads beyond the dims of an operand."""
    arrays, attributes = ALL_CONSTANT[operator]
    texts = []
    for at, array in enumerate(map(np.asarray, arrays)):
        for how, axis in (("stacked", 0), ("taken", 0), ("taken", 1), ("wider", 0), ("scalar", 0)):
            given = [*arrays]
            given[at] = array.reshape(-1)[0] if how == "scalar" else of_another_shape(array, how, axis)
            names = [f"k{number}" for number in range(len(given))]
            read = [f"{name}_read" for name in names] if place == "computed" else names
            nodes = [node("Identity", [name], [f"{name}_read"]) for name in names if place == "computed"]
            made = helper.make_node(operator, read, ["r"], name="mine", **attributes)
            nodes += _held(made, place.partition(",")[0])
            nodes.append(node("Cast", ["r"], ["y"], to=TensorProto.FLOAT))
            constants = dict(zip(names, map(np.asarray, given), strict=True))
            inputs = [info("x", [2])]
            if "input" in place:
                changed = constants.pop(names[at])
                kind = helper.np_dtype_to_tensor_dtype(changed.dtype)
                inputs = [info("x", [2]), info(names[at], changed.shape, kind)]
            if place != "input":
                nodes.append(node("Neg", ["x"], ["z"]))
            outputs = [info("y", None), *([] if place == "input" else [info("z", [2])])]
            model = model_of(nodes, inputs, outputs, constants.items())
            try:
                lowered(as_call(model) if place == "function" else model)
            except CompileError as error:
                texts.append(str(error))
    assert all("mine'" in text for text in texts), texts
    assert len(texts) >= len([array for array in arrays if np.ndim(array) >= 3])


#: Operands and attributes of experts with packed matrices, which the engine packs when it loads them.
PACKED_EXPERTS = (
    [
        *(filled(3, 64), filled(3, 4), ones(4, 32, 32), filled(4, 32), filled(4, 32)),
        *(ones(4, 64, 16), filled(4, 64)),
    ],
    {"k": 2, "expert_weight_bits": 4, "activation_type": "silu"},
)


@pytest.mark.parametrize("place", ["constants", "inputs", "function"])
@pytest.mark.parametrize("at", [2, 3, 5, 6])
def test_matrices_and_scales_of_experts_of_other_shapes_end_no_process(at, place, tmp_path):
    arrays, attributes = PACKED_EXPERTS
    array = arrays[at]
    forms = [of_another_shape(array, how, axis) for how, axis in (("stacked", 0), ("taken", 0), ("taken", 1))]
    for changed in (*forms, array.reshape(-1), array.reshape(-1)[0], array[:0], array[:, :0], None):
        values = {f"k{position}": value for position, value in enumerate(arrays)}
        names = ["" if changed is None and name == f"k{at}" else name for name in values]
        values[f"k{at}"] = np.asarray(array if changed is None else changed)
        nodes = [_microsoft("QMoE", names, ["r"], name="mine", **attributes), node("Neg", ["r"], ["y"])]
        types = {name: helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in values.items()}
        moved = [*values] if place == "inputs" else ["k0"]
        inputs = [info(name, values[name].shape, types[name]) for name in moved]
        constants = [pair for pair in values.items() if pair[0] not in moved]
        model = model_of(nodes, inputs, [info("y", [3, 64])], constants)
        model = as_call(model) if place == "function" else model
        with pytest.raises(CompileError, match=r"mine'|Whole"):
            qaic.compile(model, output_dir=tmp_path / "program")


#: Operators that read their operands for other reasons -> operands and attributes.
LEFT_OUT = {
    **{name: case for name, case in ALL_CONSTANT.items() if "domain" not in case[1]},
    "Col2Im": ([filled(1, 4, 4), integers(4, 4), integers(2, 2)], {}),
    "DFT": ([filled(1, 4, 2), np.int64(4), np.int64(1)], {}),
    "STFT": ([filled(1, 8, 1), np.int64(4), filled(4), np.int64(4)], {}),
    "FusedConv": ([filled(1, 3, 4, 4), filled(2, 3, 1, 1)], {"domain": "com.microsoft"}),
}


@pytest.mark.parametrize("place", ["constants", "inputs"])
@pytest.mark.parametrize("operator", LEFT_OUT)
def test_nodes_without_some_operands_compile_or_are_refused(operator, place):
    arrays, attributes = LEFT_OUT[operator]
    count = len(arrays)
    for kept in {range(count)[:end] for end in range(count)} | {*combinations(range(count), count - 1)}:
        for length in {len(kept), count}:
            names = [f"k{at}" if at in kept else "" for at in range(length)]
            given = {f"k{at}": np.asarray(arrays[at]) for at in kept if at < length}
            inputs = [info("x", [2])]
            if place == "inputs":
                types = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in given.items()}
                inputs += [info(name, array.shape, types[name]) for name, array in given.items()]
            nodes = [
                helper.make_node(operator, names, ["r"], name="mine", **attributes),
                node("Cast", ["r"], ["y"], to=TensorProto.FLOAT),
                node("Neg", ["x"], ["z"]),
            ]
            constants = {} if place == "inputs" else given
            model = model_of(nodes, inputs, [info("y", None), info("z", [2])], constants.items())
            model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
            with suppress(CompileError):
                lowered(model)


@pytest.mark.parametrize("operands", [["x", "w"], ["x"], ["x", ""]])
def test_operators_of_other_domains_are_not_those_of_the_engine(operands):
    made = helper.make_node("FusedConv", operands, ["y"], domain="my")
    model = model_of([made], [info("x", [2, 3]), info("w", [2])], [info("y", [2, 3])])
    model.opset_import.append(helper.make_opsetid("my", 1))
    assert SizeCheck().find(model) is None


@pytest.mark.parametrize(
    ("equation", "reason"),
    [
        ({}, "Required attribute 'equation' is missing"),
        ({"equation": b"\xff,ij->i"}, "which do not fit '\ufffd,ij->i'"),
        ({"equation": [1, 2]}, "equation"),
        ({"equation": "ij,ij->i"}, ""),
    ],
)
def test_equations_of_any_form_are_refused_with_their_reason(equation, reason):
    made = helper.make_node("Einsum", ["x", "z"], ["y"], name="mine", **equation)
    model = model_of([made], [info("x", [2, 3]), info("z", [2, 3])], [info("y", None)])
    if not reason:
        lowered(model)
        return
    with pytest.raises(CompileError) as caught:
        lowered(model)
    assert reason in str(caught.value)


@pytest.mark.parametrize("shape", [np.zeros((0, 3), np.int64), np.ones((1, 1), np.int64), np.int64(1)])
def test_a_shape_of_other_dims_than_one_is_refused(shape):
    model = model_of(
        [node("Reshape", ["x", "s"], ["y"])], [info("x", [1])], [info("y", None)], [("s", shape)]
    )
    with pytest.raises(CompileError, match=f"a shape of {np.ndim(shape)} dims, expected 1"):
        lowered(model)


@pytest.mark.parametrize("attributes", [{"bits": 3}, {"bits": 5}, {"block_size": 8}])
def test_attributes_that_the_engine_refuses_are_no_conflict(attributes, tmp_path):
    given = {"K": 32, "N": 8, "bits": 4, "block_size": 32} | attributes
    blocks = 32 // given["block_size"]
    packed = np.zeros((8, blocks, given["block_size"] * given["bits"] // 8), np.uint8)
    constants = [("b", packed), ("s", np.ones(8 * blocks, np.float32))]
    nodes = [_microsoft("MatMulNBits", ["x", "b", "s"], ["y"], name="mine", **given)]
    model = model_of(nodes, [info("x", [2, 32])], [info("y", [2, 8])], constants)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    if _runs(model, {"x": [2, 32]}, {}):
        # The older engine has such blocks.
        qaic.compile(model, output_dir=tmp_path / "program")
        return
    with pytest.raises(CompileError, match="node 'mine'") as caught:
        qaic.compile(model, output_dir=tmp_path / "program")
    assert caught.value.code == "compile.engine_refused"


#: Operator of the engine -> operands, attributes, forms of both that it refuses or accepts, and a word in the
#: message.
ENGINE_FORMS = {
    "Attention": (
        [filled(1, 3, 8), filled(8, 24), filled(24)],
        {"num_heads": 2},
        [{"do_rotary": 1}, {"num_heads": 0}, {"num_heads": -2}, {"unidirectional": 1}],
        [{"num_heads": 3}, {"qkv_hidden_sizes": [8, 8, 6]}],
    ),
    "MultiHeadAttention": (
        [filled(1, 3, 8)] * 3,
        {"num_heads": 2},
        [{"num_heads": 0}, {"unidirectional": 1}, {"scale": 0.5}],
        [{"num_heads": 3}],
    ),
    "RotaryEmbedding": (
        [filled(1, 3, 8), integers(0), filled(4, 4), filled(4, 4)],
        {},
        [{"rotary_embedding_dim": 2}, {"interleaved": 1}],
        [{"num_heads": 3}, {"num_heads": 2, "rotary_embedding_dim": 2}],
    ),
    "FusedGemm": (
        [filled(2, 4), filled(4, 3), filled(3)],
        {"activation": "Relu"},
        [{"activation": "Unknown"}, {"activation": "LeakyRelu"}],
        [{"transA": 1}],
    ),
    "FusedConv": (
        [filled(1, 3, 4, 4), filled(2, 3, 1, 1)],
        {"activation": "Relu"},
        [{"activation": "Unknown"}, {"activation": "Clip"}, {"auto_pad": "UNKNOWN"}, {"dilations": [0, 0]}],
        [{"group": 3}, {"group": 0}, {"strides": [1]}, {"kernel_shape": [2, 2]}],
    ),
    "FusedMatMul": (
        [filled(2, 3), filled(3, 2)],
        {},
        [{"alpha": 0.5}],
        [{"transA": 1}, {"transBatchA": 1}],
    ),
    "QGemm": ([ones(2, 3), SCALE, ZERO, ones(3, 4), SCALE, ZERO], {}, [{"alpha": 2.0}], [{"transA": 1}]),
    "QAttention": (
        [ones(1, 3, 8), ones(8, 24), filled(24), SCALE, SCALE],
        {"num_heads": 2},
        [{"num_heads": 0}, {"unidirectional": 1}],
        [{"num_heads": 3}],
    ),
    "MoE": (
        [*(filled(3, 8), filled(3, 4), filled(4, 16, 8), filled(4, 16), filled(4, 8, 16))],
        {"k": 2},
        [{"k": 4}, {"k": 5}, {"k": 0}, {"activation_type": "unknown"}],
        [],
    ),
    "QMoE": (*PACKED_EXPERTS, [{"k": 4}, {"k": 5}, {"k": -1}, {"expert_weight_bits": 3}], []),
    "QLinearAveragePool": (
        [ones(1, 1, 4, 4), SCALE, ZERO, SCALE, ZERO],
        {"kernel_shape": [2, 2]},
        [{"auto_pad": "UNKNOWN"}],
        [{"kernel_shape": [2]}, {"kernel_shape": [5, 5]}],
    ),
    "GridSample": (
        [filled(1, 1, 4, 4), filled(1, 2, 2, 2)],
        {},
        [{"mode": "unknown"}, {"padding_mode": "unknown"}, {"align_corners": 1}],
        [],
    ),
}


@pytest.mark.parametrize(
    ("operator", "more", "is_about_sizes"),
    [
        (operator, more, is_about_sizes)
        for operator, (_, _, others, sizes) in ENGINE_FORMS.items()
        for is_about_sizes, forms in ((False, [{}, *others]), (True, sizes))
        for more in forms
    ],
)
def test_forms_of_engine_operators_compile_if_and_only_if_they_run(operator, more, is_about_sizes, tmp_path):
    arrays, attributes, *_ = ENGINE_FORMS[operator]
    constants = {f"k{at}": value for at, value in enumerate(arrays) if at}
    first = info("k0", arrays[0].shape, helper.np_dtype_to_tensor_dtype(arrays[0].dtype))
    made = _microsoft(operator, ["k0", *constants], ["r"], **attributes | more)
    made.name = "mine"
    nodes = [made, node("Cast", ["r"], ["y"], to=TensorProto.FLOAT)]
    model = model_of(nodes, [first], [info("y", None)], constants.items())
    if _runs(model, {"k0": arrays[0].shape}, {}, arrays[0].dtype):
        qaic.compile(model, output_dir=tmp_path / "program")
        return
    with pytest.raises(CompileError) as caught:
        qaic.compile(model, output_dir=tmp_path / "program")
    assert caught.value.code == f"compile.{'contradicting_sizes' if is_about_sizes else 'engine_refused'}"
    assert f"node 'mine' ({operator})" in str(caught.value)


@pytest.mark.parametrize("first", [1, 0])
def test_operators_of_the_engine_are_not_asked_about_nothing(first):
    """The engine ends the process for these shapes."""
    constants = [("a", filled(first, 3, 4)), ("b", filled(0, 3, 4)), ("w", filled(4))]
    nodes = [_microsoft("SkipLayerNormalization", ["a", "b", "w"], ["s"]), node("Identity", ["x"], ["y"])]
    model = model_of(nodes, [info("x", [2])], [info("y", [2]), info("s", None)], constants)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    SizeCheck().find(onnx.shape_inference.infer_shapes(model))


@pytest.mark.parametrize("options", [{}, {"convert_to_fp16": True}, {"convert_to_quantize": True}])
def test_the_error_names_node_symbol_given_and_needed(options):
    nodes = [node("Concat", ["p", "q"], ["k"], axis=1), helper.make_node("Mul", ["k", "mask"], ["y"])]
    inputs = [info("p", ["b", "past"]), info("q", ["b", "s"]), info("mask", ["b", "past + s"])]
    sizes = {"b": 1, "past": 3, "s": 1, "past + s": 7}
    with pytest.raises(CompileError) as caught:
        lowered(model_of(nodes, inputs, [info("y", ["b", "past + s"])]), onnx_define_symbol=sizes, **options)
    assert str(caught.value).startswith(
        "node 'y' (Mul): found sizes that do not fit: 'k' is [1, 4], 'mask' is [1, 7] "
        "(Incompatible dimensions), "
        "with 'b' = 1, 'past' = 3, 's' = 1, 'past + s' = 7, expected 'past' = 6 or 's' = 4 or 'past + s' = 4"
    )
    assert caught.value.context["needed"] == {"past": 6, "s": 4, "past + s": 4}


def test_sizes_that_the_model_fixes_have_another_fix():
    model = model_of([node("Add", ["x", "z"], ["y"])], [info("x", [2]), info("z", [3])], [info("y", [3])])
    with pytest.raises(CompileError, match="node 'y'") as caught:
        lowered(model)
    assert caught.value.hints == ("the model fixes these sizes; export it with sizes that fit",)


@pytest.mark.parametrize("group", [0, -1, 3])
def test_groups_that_a_convolution_cannot_have_are_refused(group):
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], group=group)]
    model = model_of(nodes, [info("x", [1, 4, 5, 5])], [info("y", None)], [("w", filled(4, 4, 1, 1))])
    with pytest.raises(CompileError, match=f"group {group} does not divide 4 output channels"):
        lowered(model)


def test_a_negative_number_of_elements_is_refused_with_its_node():
    outputs = [info("y", None), info("at", None, INT64)]
    model = model_of(
        [node("TopK", ["x", "k"], ["y", "at"])], [info("x", [3, 5])], outputs, [("k", np.array([-1]))]
    )
    with pytest.raises(CompileError, match=r"node 'y' \(TopK\): found .*negative"):
        lowered(model)


def test_sizes_of_dynamic_inputs_are_checked_together():
    """Outputs follow from the names of symbols, although most pairs of inner sizes contradict each other."""
    inputs = [info("x", [2, "m"]), info("z", ["n", 3])]
    model = model_of([node("MatMul", ["x", "z"], ["y"])], inputs, [info("y", [2, 3])])
    with pytest.raises(CompileError, match="specialization 'm=") as caught:
        lowered(model, dynamic_shape_input=("x", "z"), onnx_define_symbol={"m": 6, "n": 6})
    assert caught.value.code == "compile.contradicting_sizes"


def test_float16_and_large_operands_are_no_conflict():
    """Nodes that have no kernel in the engine, or that take too long to run, are not refused."""
    half = TensorProto.FLOAT16
    nodes = [
        node("LayerNormalization", ["x", "g"], ["n"]),
        node("Gemm", ["n", "w", "g"], ["y"], transB=1),
    ]
    constants = [("g", np.ones(256, np.float16)), ("w", np.ones((256, 256), np.float16))]
    lowered(model_of(nodes, [info("x", [1 << 15, 256], half)], [info("y", [1 << 15, 256], half)], constants))


@pytest.mark.parametrize("depth", [1, 30])
@pytest.mark.parametrize("sets", [1, 5, 40])
def test_the_check_asks_the_engine_once_for_nodes_that_are_alike(depth, sets, monkeypatch):
    """At most 16 sets of sizes are checked, each in one pass over the nodes."""
    counts = {"_answer": 0, "_is_asked": 0, "_refused": 0}

    def counting(name):
        original = getattr(size_conflicts, name)

        def counted(*arguments, **keywords):
            counts[name] += 1
            return original(*arguments, **keywords)

        monkeypatch.setattr(size_conflicts, name, counted)

    for name in counts:
        counting(name)
    values = ["x", *(f"v{at}" for at in range(3 * depth))]
    nodes = []
    for at in range(depth):
        first, second, third, fourth = values[3 * at : 3 * at + 4]
        nodes += [
            node("LayerNormalization", [first, "scale"], [second]),
            node("PRelu", [second, "scale"], [third]),
            node("Clip", [third, "low"], [fourth]),
        ]
    constants = [("scale", filled(4)), ("low", np.float32(-1))]
    model = model_of(nodes, [info("x", ["m", 4])], [info(values[-1], ["m", 4])], constants)
    lowered(model, dynamic_shape_input=("x",), onnx_define_symbol={"m": sets})
    checked = min(sets, 16)
    # Each node is visited once for each set.
    assert counts.pop("_is_asked") <= 3 * depth * checked
    assert counts == {"_answer": 3 * checked, "_refused": 0}


def test_the_check_of_sizes_does_not_import_the_package_of_the_engine(tmp_path):
    """The package would load a second copy of the engine, of 45 MB."""
    nodes = [
        node("Gemm", ["x", "w", "b"], ["v0"]),
        node("Expand", ["v0", "to"], ["v1"]),
        node("Clip", ["v1", "low"], ["y"]),
    ]
    constants = [("w", filled(4, 3)), ("b", filled(3)), ("to", np.array([2, 1, 3])), ("low", np.float32(0))]
    onnx.save(model_of(nodes, [info("x", [1, 4])], [info("y", None)], constants), tmp_path / "m.onnx")
    script = "import sys, qaic; qaic.compile(sys.argv[1]); sys.exit('onnxruntime' in sys.modules)"
    asked = [sys.executable, "-c", script, tmp_path / "m.onnx"]
    subprocess.run(asked, check=True, cwd=tmp_path, env={**os.environ, "QAIC_CACHE_DIR": str(tmp_path / "c")})


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "complex64", "string"])
def test_a_trial_has_inputs_of_types_of_programs_only(dtype):
    with pytest.raises(ValueError, match=dtype):
        _core.try_model(b"", [("x", dtype, [1], b"\0" * 8)], ["y"])


def test_a_trial_returns_the_code_and_the_reason_of_the_engine():
    model = model_of(
        [node("Add", ["x", "z"], ["y"])], [info("x", ["m"]), info("z", ["n"])], [info("y", None)]
    )
    content, one = model.SerializeToString(), np.float32(1).tobytes()
    assert _core.try_model(content, None, ()) is None
    assert _core.try_model(content, [("x", "float32", [2], one), ("z", "float32", [2], one)], ["y"]) is None
    code, reason = _core.try_model(content, [("x", "float32", [2], one), ("z", "float32", [3], one)], ["y"])
    assert code
    assert "Add" in reason
    code, reason = _core.try_model(b"no model", None, ())
    assert code
    assert reason
