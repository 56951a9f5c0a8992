"""Quantized chains that are kept separate; tests/property/test_quantized_chains.py compares the numbers."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from compiler_oracle import info, lowered, model_of, node, whole

MAX, NONE = ["Max"], []


def chain(kind, between, opset, *, is_typed=False, has_zero=True):
    """Quantize, dequantize, apply `between`, and quantize again."""
    elem_type = getattr(TensorProto, kind)
    typed = {"output_dtype": elem_type} if is_typed else {}
    operands = ["s", "z"] if has_zero else ["s"]
    nodes = [
        node("QuantizeLinear", ["x", *operands], ["q"], **typed),
        node("DequantizeLinear", ["q", *operands], ["d"]),
        node(between, ["d"], ["m"]),
        node("QuantizeLinear", ["m", *operands], ["r"], **typed),
        node("DequantizeLinear", ["r", *operands], ["y"]),
    ]
    constants = [("s", np.float32(0.5))]
    constants += [helper.make_tensor("z", elem_type, [], [0])] if has_zero else []
    model = model_of(nodes, [info("x", [2, 2])], [info("y", [2, 2])], constants, opset=opset)
    return whole(lowered(model))


@pytest.mark.parametrize(
    ("kind", "between", "opset", "forms", "added"),
    [
        ("INT8", "Transpose", 21, {}, MAX),
        ("INT8", "Transpose", 19, {}, NONE),
        ("INT8", "Transpose", 21, {"is_typed": True, "has_zero": False}, MAX),
        ("INT8", "Neg", 21, {}, NONE),
        ("UINT8", "Transpose", 21, {}, NONE),
        ("FLOAT8E4M3FN", "Relu", 19, {}, MAX),
        ("INT8", "Relu", 19, {}, NONE),
    ],
)
def test_only_what_the_engine_would_merge_is_kept_apart(kind, between, opset, forms, added):
    program = chain(kind, between, opset, **forms)
    assert [one.op_type for one in program.graph.node if one.op_type == "Max"] == added


def test_output_dtype_goes_where_a_zero_point_has_the_type():
    program = chain("INT8", "Neg", 21, is_typed=True)
    quantizing = [one for one in program.graph.node if one.op_type == "QuantizeLinear"]
    assert len(quantizing) == 2
    assert not any(one.name == "output_dtype" for found in quantizing for one in found.attribute)
