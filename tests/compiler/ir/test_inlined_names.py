"""Options that name values inside functions of the model."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from compiler_oracle import half, info, lowered, model_of, node, run, whole
from llm_exports import require
from qaic.cli import compile as compile_tool
from qaic.errors import CompileError
from qaic.options.files.node_precision import NodePrecision

SETS = [helper.make_opsetid("", 17), helper.make_opsetid("layers", 1)]
X = np.float32([300, 0.1])


def layered(calls=2):
    """Build a model of layers in the form of exporters: one function, a call for each layer, and renamed
    results.

    A layer computes ``(x * x * small) / large``. For 300, the first product exceeds float16.
    """
    scale = helper.make_function(
        "layers",
        "Scale",
        ["values"],
        ["scaled"],
        [
            node("Constant", [], ["onnx::Mul_7"], name="Constant_7", value_float=1 / 300),
            node("Mul", ["values", "onnx::Mul_7"], ["scaled"], name="Mul_8"),
        ],
        SETS,
    )
    layer = helper.make_function(
        "layers",
        "DecoderLayer",
        ["hidden"],
        ["hidden_states.3"],
        [
            node("Mul", ["hidden", "hidden"], ["onnx::Scale_5"], name="Mul_5"),
            node("Scale", ["onnx::Scale_5"], ["attn_output"], name="Scale_6", domain="layers"),
            node("Identity", ["attn_output"], ["hidden_states.3"], name="Identity_9"),
        ],
        SETS,
    )
    nodes, value = [], "x"
    for number in range(calls):
        result = f"/layers.{number}/DecoderLayer_output_0"
        name = f"/layers.{number}/DecoderLayer"
        nodes.append(node("DecoderLayer", [value], [result], name=name, domain="layers"))
        value = result
    nodes.append(node("Neg", [value], ["y"], name="/Neg"))
    graph = helper.make_graph(nodes, "net", [info("x", [2])], [info("y", [2])])
    return helper.make_model(graph, functions=[scale, layer], opset_imports=SETS, ir_version=8)


def layer(x, *, square_in_fp32, scale_in_fp32):
    """Compute one layer in float16 except the two nodes."""
    with np.errstate(over="ignore"):
        square = x * x if square_in_fp32 else half(half(x) * half(x))
        scaled = square * np.float32(1 / 300) if scale_in_fp32 else half(half(square) * half(1 / 300))
        return half(scaled)


def result(names, **options):
    lists = NodePrecision((), tuple(names))
    program = lowered(layered(), convert_to_fp16=True, node_precision_info_file=lists, **options)
    return run(whole(program), {"x": X})["y"]


def expected(first, second):
    """Return the result if the layers compute these nodes in float32."""
    with np.errstate(over="ignore"):
        values = layer(X, square_in_fp32="square" in first, scale_in_fp32="scale" in first)
        values = layer(values, square_in_fp32="square" in second, scale_in_fp32="scale" in second)
        return -values


BOTH = ("square", "scale")


@pytest.mark.parametrize(
    ("names", "first", "second"),
    [
        (["onnx::Scale_5", "scaled"], BOTH, BOTH),
        # The caller of an inner function has another name for its result, and so does the caller of that
        # caller.
        (["onnx::Scale_5", "attn_output"], BOTH, BOTH),
        (["/layers.0/DecoderLayer/onnx::Scale_5", "/layers.0/DecoderLayer/Scale_6/scaled"], BOTH, ()),
        (["/layers.1/DecoderLayer/onnx::Scale_5", "/layers.1/DecoderLayer/attn_output"], (), BOTH),
        (["/layers.1/DecoderLayer/Mul_5", "/layers.1/DecoderLayer/Scale_6/Mul_8"], (), BOTH),
        (["Decode_DecoderLayer_0_onnx::Scale_5", "Decode_Scale_0_scaled"], BOTH, ()),
        (["DecoderLayer_1_onnx::Scale_5", "Prefill_Scale_1_scaled"], (), BOTH),
        (["onnx::Scale_5", "/layers.0/DecoderLayer/attn_output"], BOTH, ("square",)),
    ],
)
def test_a_name_inside_a_function_is_that_of_its_values(names, first, second, caplog):
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(result(names), expected(first, second))
    assert caplog.messages == []


def test_what_matches_nothing_is_listed_in_one_warning(caplog):
    names = [
        "onnx::Scale_5",
        "scaled",
        "onnx::Scale_6",
        "/layers.2/DecoderLayer/scaled",
        "Decode_Scale_2_scaled",
    ]
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(result(names), expected(BOTH, BOTH))
    assert caplog.messages == [
        "node_precision_info_file: 3 of 5 names are not the output of a node: "
        "'onnx::Scale_6', '/layers.2/DecoderLayer/scaled', 'Decode_Scale_2_scaled'"
    ]


def test_a_file_of_which_nothing_matches_is_refused_with_a_name_of_a_body():
    with pytest.raises(CompileError, match=r"among 'attn_outpu'.*as 'attn_output'") as caught:
        result(["attn_outpu"])
    assert caught.value.code == "compile.unknown_nodes"


def test_values_that_are_no_nodes_any_more_are_known(caplog):
    """Constants of bodies become initializers before precisions are assigned."""
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(result(["onnx::Mul_7"]), expected((), ()))
    assert caplog.messages == []


#: Operators that the generator of exporters omits.
EXCLUDED = {
    "Constant",
    "Gather",
    "MatMul",
    "Range",
    "Reshape",
    "Shape",
    "Slice",
    "Transpose",
    "CustomRMSNorm",
}


def fp32_file_of(model):
    """List all outputs of the main graph and of the bodies of layers, as the generator of a client does."""
    bodies = [function for function in model.functions if "DecoderLayer" in function.name]
    listed = [
        name
        for nodes in (model.graph.node, *(function.node for function in bodies))
        for found in nodes
        if found.op_type not in EXCLUDED
        for name in found.output
        if name and not name.endswith("_RetainedState") and "MatMul" not in name
    ]
    return list(dict.fromkeys(listed))


def test_the_generated_list_of_a_client_makes_all_of_it_fp32(caplog):
    """The list omits names in bodies of nested functions; the callers' names of results select them."""
    with caplog.at_level(logging.WARNING):
        found = result(fp32_file_of(layered()))
    assert caplog.messages == []
    squared = X * X * np.float32(1 / 300)
    np.testing.assert_array_equal(found, -(squared * squared * np.float32(1 / 300)))


@given(st.lists(st.sampled_from(BOTH), unique=True), st.lists(st.sampled_from(BOTH), unique=True))
def test_names_of_one_call_leave_the_other_alone(first, second):
    inner = {"square": "onnx::Scale_5", "scale": "Scale_6/scaled"}
    names = [
        f"/layers.{number}/DecoderLayer/{inner[part]}"
        for number, parts in enumerate((first, second))
        for part in parts
    ]
    # The list contains a constant, so the file always lists a node.
    np.testing.assert_array_equal(result([*names, "onnx::Mul_7"]), expected(first, second))


def test_further_outputs_from_inside_of_functions_are_named_after_their_calls():
    program = lowered(
        layered(), extra_output_tensors=("onnx::Scale_5", "/layers.1/DecoderLayer/Scale_6/scaled")
    )
    names = [spec.name for spec in program.outputs]
    # The result of a layer is a value of the main graph and keeps its name.
    assert names == [
        "y",
        "/layers.0/DecoderLayer/onnx::Scale_5",
        "/layers.1/DecoderLayer/onnx::Scale_5",
        "/layers.1/DecoderLayer/Scale_6/scaled",
    ]
    found = run(whole(program), {"x": X})
    first = X * X * np.float32(1 / 300)
    np.testing.assert_array_equal(found["/layers.0/DecoderLayer/onnx::Scale_5"], X * X)
    np.testing.assert_array_equal(found["/layers.1/DecoderLayer/onnx::Scale_5"], first * first)
    np.testing.assert_array_equal(found["y"], -found["/layers.1/DecoderLayer/Scale_6/scaled"])
    # Values of the main graph keep their names.
    result_of_first = lowered(layered(), extra_output_tensors=("/layers.0/DecoderLayer/hidden_states.3",))
    assert [spec.name for spec in result_of_first.outputs] == ["y", "/layers.0/DecoderLayer_output_0"]


def test_outputs_and_precisions_may_name_one_value():
    lists = NodePrecision((), ("onnx::Scale_5",))
    program = lowered(
        layered(),
        convert_to_fp16=True,
        node_precision_info_file=lists,
        extra_output_tensors=("onnx::Scale_5",),
    )
    found = run(whole(program), {"x": X})
    np.testing.assert_array_equal(found["/layers.0/DecoderLayer/onnx::Scale_5"], X * X)


def test_a_model_is_cut_at_a_value_inside_of_a_function():
    program = lowered(layered(), output_node_names=("/layers.0/DecoderLayer/onnx::Scale_5",))
    assert [spec.name for spec in program.outputs] == ["/layers.0/DecoderLayer/onnx::Scale_5"]
    assert [item.op_type for item in program.model.graph.node] == ["Mul"]
    with pytest.raises(CompileError, match="'onnx::Scale_6'"):
        lowered(layered(), output_node_names=("onnx::Scale_6",))
    with pytest.raises(CompileError, match="'onnx::Scale_6'"):
        lowered(layered(), extra_output_tensors=("onnx::Scale_6",))


def test_products_inside_of_functions_keep_their_weights(caplog):
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    dense = helper.make_function(
        "layers",
        "Dense",
        ["a", "w"],
        ["b"],
        [node("MatMul", ["a", "w"], ["onnx::Out_2"], name="MatMul_1"), node("Relu", ["onnx::Out_2"], ["b"])],
        SETS[:1],
    )
    calls = [
        node("Dense", ["x", "w0"], ["h"], name="one", domain="layers"),
        node("Dense", ["h", "w1"], ["y"], name="two", domain="layers"),
    ]
    model = model_of(
        calls,
        [info("x", [1, 64])],
        [info("y", [1, 64])],
        [("w0", weight), ("w1", weight.T)],
        functions=[dense],
    )
    model.opset_import.append(SETS[1])
    kept = {}
    with caplog.at_level(logging.WARNING):
        for excluded in ((), ("onnx::Out_2",), ("two/onnx::Out_2",), ("one/MatMul_1",)):
            program = lowered(model, mxfp6_matmul=True, exclude_mxfp6_matmul=excluded)
            held = sorted(program.weights.values(), key=lambda weight: weight.name)
            kept[excluded] = [weight.blocks is None for weight in held]
    assert kept == {
        (): [False, False],
        ("onnx::Out_2",): [True, True],
        ("two/onnx::Out_2",): [False, True],
        ("one/MatMul_1",): [True, False],
    }
    # Without a remaining product, there is nothing to compress, and a warning reports this.
    assert [text.split(":")[0] for text in caplog.messages] == ["mxfp6_matmul"]


def norm_function():
    """A normalization function that represents an operator of the card; the compiler rewrites its body."""
    body = [
        node("Constant", [], ["two"], value_float=2.0),
        node("Pow", ["a", "two"], ["squares"]),
        node("ReduceMean", ["squares"], ["mean"], axes=[-1], keepdims=1),
        node("Constant", [], ["epsilon_value"], value_float=1e-5),
        node("Add", ["mean", "epsilon_value"], ["shifted"]),
        node("Sqrt", ["shifted"], ["root"]),
        node("Div", ["a", "root"], ["normalized"]),
        node("Mul", ["normalized", "w"], ["b"]),
    ]
    return helper.make_function(
        "com.qti.aisw.onnx", "CustomRMSNorm", ["a", "w"], ["b"], body, SETS[:1], attributes=["epsilon"]
    )


def test_values_of_an_operator_of_the_card_are_that_operator(caplog):
    calls = [
        node("CustomRMSNorm", ["x", "w"], ["n"], name="norm", domain="com.qti.aisw.onnx", epsilon=1e-5),
        node("Mul", ["n", "n"], ["y"]),
    ]
    model = model_of(
        calls,
        [info("x", [1, 2])],
        [info("y", [1, 2])],
        [("w", np.float32([3000, 1]))],
        functions=[norm_function()],
    )
    model.opset_import.append(helper.make_opsetid("com.qti.aisw.onnx", 1))
    with caplog.at_level(logging.WARNING):
        lists = NodePrecision((), ("squares", "y"))
        program = lowered(model, convert_to_fp16=True, node_precision_info_file=lists)
    assert caplog.messages == []
    x = np.float32([[1, 1e-3]])
    found = run(whole(program), {"x": x})["y"]
    normalized = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-5)) * np.float32([3000, 1])
    np.testing.assert_allclose(found, normalized * normalized, rtol=1e-5)


def test_equal_nodes_of_two_precisions_stay_two():
    """Operations on masks are the same in every layer, and run once if their precision is also the same."""
    gather = helper.make_function(
        "com.qualcomm.cloud",
        "CtxGather",
        ["data", "i"],
        ["rows"],
        [node("GatherND", ["data", "i"], ["rows"])],
        SETS[:1],
    )
    nodes = [
        node("Mul", ["x", "x"], ["a"]),
        node("Mul", ["x", "x"], ["b"]),
        node("Concat", ["a", "b"], ["both"], axis=0),
        node("CtxGather", ["both", "i"], ["y"], name="g", domain="com.qualcomm.cloud"),
    ]
    model = model_of(
        nodes, [info("x", [1])], [info("y", [2])], [("i", np.int64([[0], [1]]))], functions=[gather]
    )
    model.opset_import.append(helper.make_opsetid("com.qualcomm.cloud", 1))
    lists = NodePrecision((), ("b", "both", "y"))
    program = lowered(model, convert_to_fp16=True, node_precision_info_file=lists)
    found = run(whole(program), {"x": np.float32([300])})["y"]
    np.testing.assert_array_equal(found, np.float32([np.inf, 90000]))


@pytest.mark.parametrize("of_bodies", [True, False])
def test_the_list_of_an_export_with_functions(of_bodies, tmp_path, capsys):
    export = require("llama-sub")
    model = onnx.load(export.model, load_external_data=False)
    names = fp32_file_of(model)
    if of_bodies:
        names = [
            name for name in names if name not in {out for found in model.graph.node for out in found.output}
        ]
    file = tmp_path / "npi.yaml"
    file.write_text(yaml.safe_dump({"FP32NodeInstanceNames": names}))
    assert len(names) > 50
    out = f"-aic-binary-dir={tmp_path / 'qpc'}"
    assert compile_tool.main([*export.flags, f"-node-precision-info={file}", out]) == 0
    assert "node_precision_info_file" not in capsys.readouterr().err
