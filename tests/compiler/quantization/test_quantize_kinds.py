"""Operators that can be quantized; the engine runs them in integers."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import session_models
from qaic.compiler.ir import quantization

# These names are written here, not read from the table under test.
COMPUTING = """Conv ConvTranspose MatMul Gemm Add Sub Mul Div Max Min Relu LeakyRelu PRelu Clip Sigmoid Tanh
HardSwish HardSigmoid Gelu Erf Softmax AveragePool GlobalAveragePool ReduceMean Resize Pad Concat Split"""
PICKING = """MaxPool Reshape Flatten Squeeze Unsqueeze Transpose Slice Gather Expand Tile TopK LRN
DepthToSpace SpaceToDepth"""

SIZES = {
    "Concat": ([2, 3], [], {"axis": 0}),
    "DepthToSpace": ([1, 4, 2, 2], [], {"blocksize": 2}),
    "Expand": ([2, 3], [[4, 2, 3]], {}),
    "Flatten": ([2, 3, 4], [], {}),
    "Gather": ([2, 3], [[0]], {}),
    "MaxPool": ([1, 3, 8, 8], [], {"kernel_shape": [2, 2]}),
    "Pad": ([2, 3], [[0, 1, 0, 1]], {}),
    "Reshape": ([2, 3], [[3, 2]], {}),
    "Resize": ([1, 3, 4, 4], [None, np.float32([1, 1, 2, 2])], {"mode": "nearest"}),
    "Slice": ([2, 3], [[0], [1]], {"starts": [0], "ends": [1]}),
    "SpaceToDepth": ([1, 4, 2, 2], [], {"blocksize": 2}),
    "Split": ([2, 3], [], {"axis": 0}),
    "Squeeze": ([1, 3], [[0]], {"axes": [0]}),
    "Tile": ([2, 3], [[2, 2]], {}),
    "TopK": ([2, 3], [[1]], {}),
    "Transpose": ([2, 3], [], {}),
    "Unsqueeze": ([2, 3], [[0]], {"axes": [0]}),
}


def model_of(op, elem_type, opset):
    """One node in integers, in the form of an operator set: in older sets, constants are attributes."""
    shape, constants, attributes = SIZES[op]
    schema = onnx.defs.get_schema(op, opset, "")
    attributes = {name: value for name, value in attributes.items() if name in schema.attributes}
    if op == "Split" and "num_outputs" in schema.attributes:
        attributes["num_outputs"] = 2
    if op == "Resize" and opset < 11:
        constants = constants[1:]
    elif op == "Resize" and opset < 13:
        constants = [np.zeros(0, np.float32), constants[1]]
    constants = constants[: schema.max_input - 1]
    names = ["x"] + ["" if value is None else f"c{i}" for i, value in enumerate(constants)]
    results = ["y", "z"] if op in {"Split", "TopK"} else ["y"]
    node = helper.make_node(op, names, results, **attributes)
    tensors = [
        numpy_helper.from_array(value if isinstance(value, np.ndarray) else np.int64(value), f"c{i}")
        for i, value in enumerate(constants)
        if value is not None
    ]
    output = helper.make_empty_tensor_value_info("y")
    output.type.tensor_type.elem_type = elem_type
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", elem_type, shape)], [output], tensors
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def loads(model):
    try:
        session_models.engine(model)
    except Exception:  # noqa: BLE001 - the engine has no exception type of its own
        return False
    return True


def test_the_kinds_are_those_of_the_specification():
    assert frozenset([*COMPUTING.split(), *PICKING.split()]) == quantization.QUANTIZABLE
    assert frozenset([*PICKING.split(), "Split"]) == quantization.VALUE_PRESERVING


@pytest.mark.parametrize("op", sorted(quantization.INTEGER_KERNELS))
def test_the_engine_runs_direct_kinds_on_integers(op):
    direct = quantization.INTEGER_KERNELS[op]
    for elem_type, first in ((onnx.TensorProto.UINT8, direct.uint8), (onnx.TensorProto.INT16, direct.int16)):
        for opset in (first, 13, 17, 21) if first is not None else ():
            if opset >= first:
                assert loads(model_of(op, elem_type, opset)), (op, elem_type, opset)


def test_operands_leave_out_sizes_and_bounds():
    node = helper.make_node
    assert quantization.operands(node("Clip", ["x", "lo", "hi"], ["y"])) == (0,)
    assert quantization.operands(node("Gemm", ["a", "b", "c"], ["y"])) == (0, 1, 2)
    assert quantization.operands(node("Conv", ["x", "w", ""], ["y"])) == (0, 1)
    assert quantization.operands(node("Concat", ["a", "b", "c"], ["y"], axis=0)) == (0, 1, 2)
    assert quantization.operands(node("Resize", ["x", "", "s"], ["y"])) == (0,)
    assert quantization.results(node("TopK", ["x", "k"], ["v", "i"])) == (0,)
    assert quantization.results(node("Split", ["x"], ["a", "b"])) == (0, 1)


def test_gelu_of_both_domains_is_quantizable_and_unknown_domains_are_not():
    assert quantization.quantizable(helper.make_node("Gelu", ["x"], ["y"]))
    assert quantization.quantizable(helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft"))
    assert not quantization.quantizable(helper.make_node("Conv", ["x", "w"], ["y"], domain="mine"))
    assert not quantization.quantizable(helper.make_node("LayerNormalization", ["x", "s"], ["y"]))
