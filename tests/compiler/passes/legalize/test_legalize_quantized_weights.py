"""Casts to 4-bit integers, for which some supported engines have no kernel."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from compiler_oracle import info, lowered, model_of, node, run, whole
from qaic.errors import CompileError

UINT4, INT4, UINT8, INT8 = TensorProto.UINT4, TensorProto.INT4, TensorProto.UINT8, TensorProto.INT8


def kept(values, elem_type):
    """Return integers that are truncated to four bits."""
    lowest = values & 15
    return lowest - 16 * (lowest > 7) if elem_type == INT4 else lowest


@given(
    st.sampled_from([UINT4, INT4]),
    st.sampled_from([UINT8, INT8, TensorProto.INT32]),
    st.sampled_from(["graph", "function", "branch"]),
)
def test_casts_keep_the_lowest_four_bits(elem_type, source, place):
    values = np.arange(-128, 128) if source != UINT8 else np.arange(256)
    values = values.astype(helper.tensor_dtype_to_np_dtype(source))
    cast = node("Cast", ["x"], ["narrow"], to=elem_type)
    functions, calls, inputs = [], [cast], [info("x", [256], source)]
    result = "narrow"
    if place == "function":
        body = helper.make_function("local", "F", ["x"], ["narrow"], [cast], [helper.make_opsetid("", 21)])
        functions, calls = [body], [helper.make_node("F", ["x"], ["narrow"], domain="local")]
    elif place == "branch":
        graphs = {
            f"{name}_branch": helper.make_graph([cast], name, [], [info("narrow", [256], elem_type)])
            for name in ("then", "else")
        }
        calls, result = [node("If", ["go"], ["chosen"], **graphs)], "chosen"
        inputs.append(info("go", [], TensorProto.BOOL))
    calls.append(node("Cast", [result], ["y"], to=TensorProto.INT32))
    outputs = [info("y", [256], TensorProto.INT32)]
    program = whole(lowered(model_of(calls, inputs, outputs, opset=21, functions=functions)))
    feeds = {"x": values} | ({"go": np.array(True)} if place == "branch" else {})
    np.testing.assert_array_equal(run(program, feeds)["y"], kept(values.astype(np.int64), elem_type))


@pytest.mark.parametrize("elem_type", [UINT4, INT4])
@pytest.mark.parametrize("size", [3, 4096])
@pytest.mark.parametrize("form", ["initializer", "constant"])
def test_constants_of_four_bits_stay_operands_of_the_same_type(elem_type, size, form):
    """Small constants are in the graph, large ones are not. An odd number of values ends with half a byte."""
    low = 0 if elem_type == UINT4 else -8
    values = np.random.default_rng(0).integers(low, low + 16, size)
    tensor = helper.make_tensor("w", elem_type, [size], values.tolist())
    nodes = [node("Constant", [], ["w"], value=tensor)] if form == "constant" else []
    nodes += [
        node("Cast", ["x"], ["zero"], to=elem_type),
        node("DequantizeLinear", ["w", "scale", "zero"], ["y"]),
    ]
    initializers = [("scale", np.float32(0.5))] + ([] if nodes[0].op_type == "Constant" else [tensor])
    model = model_of(nodes, [info("x", [], TensorProto.INT32)], [info("y", [size])], initializers, opset=21)
    found = run(whole(lowered(model)), {"x": np.array(2, np.int32)})["y"]
    np.testing.assert_array_equal(found, 0.5 * (values - 2))


def test_a_model_without_such_casts_keeps_its_four_bits():
    tensor = helper.make_tensor("w", UINT4, [4], [1, 2, 3, 15])
    nodes = [node("DequantizeLinear", ["w", "scale"], ["d"]), node("Add", ["x", "d"], ["y"])]
    model = model_of(nodes, [info("x", [4])], [info("y", [4])], [tensor, ("scale", np.float32(1))], opset=21)
    (kept_tensor,) = (t for t in lowered(model).model.graph.initializer if t.name == "w")
    assert kept_tensor.data_type == UINT4


@pytest.mark.parametrize("elem_type", [UINT4, INT4])
def test_outputs_of_four_bits_are_refused_by_their_type(elem_type):
    """The program stores the values in eight bits, which a caller that receives them would not expect."""
    name = {UINT4: "uint4", INT4: "int4"}[elem_type]
    model = model_of(
        [node("Cast", ["x"], ["y"], to=elem_type)], [info("x", [3])], [info("y", [3], elem_type)], opset=21
    )
    with pytest.raises(CompileError, match=f"output 'y': found type {name}"):
        lowered(model)
