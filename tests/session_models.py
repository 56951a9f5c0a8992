"""Small ONNX models for tests of ``Session``, and onnxruntime's results for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

#: Containers that the noop device runs.
FIXTURES = Path(__file__).parent / "data" / "qpc"

#: New enough for every operator in the tests, and old enough for every engine.
OPSET = 17

TYPES = {
    "float32": onnx.TensorProto.FLOAT,
    "float16": onnx.TensorProto.FLOAT16,
    "int8": onnx.TensorProto.INT8,
    "uint8": onnx.TensorProto.UINT8,
    "int16": onnx.TensorProto.INT16,
    "int32": onnx.TensorProto.INT32,
    "int64": onnx.TensorProto.INT64,
    "bool": onnx.TensorProto.BOOL,
}


def value(name, dtype, shape):
    """Declare an input or output; ``shape`` can contain symbols, and None omits it."""
    return helper.make_tensor_value_info(name, TYPES.get(str(dtype), dtype), shape)


def model(nodes, inputs, outputs, initializers=None, opset=OPSET):
    """Build a model. ``inputs`` and ``outputs`` are (name, dtype, shape), ``initializers`` name -> array."""
    return helper.make_model(
        helper.make_graph(
            nodes,
            "net",
            [value(*entry) for entry in inputs],
            [value(*entry) for entry in outputs],
            [
                numpy_helper.from_array(np.asarray(array), name)
                for name, array in (initializers or {}).items()
            ],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8,
    )


def save(folder, built, name="model.onnx"):
    """Write a model; returns its path."""
    path = folder / name
    path.write_bytes(built.SerializeToString())
    return path


def engine(built, *, optimize=True):
    """Create an onnxruntime session for a model."""
    options = ort.SessionOptions()
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(built.SerializeToString(), options, providers=["CPUExecutionProvider"])


def affine(width=4, rows=2):
    """``y = relu(x @ w + b)`` with known weights: the model of most tests."""
    weight = np.linspace(-1, 1, width * width, dtype=np.float32).reshape(width, width)
    bias = np.linspace(0, 1, width, dtype=np.float32)
    return model(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Add", ["m", "b"], ["a"]),
            helper.make_node("Relu", ["a"], ["y"]),
        ],
        [("x", "float32", [rows, width])],
        [("y", "float32", [rows, width])],
        {"w": weight, "b": bias},
    )


def model_of_open_batch():
    """`affine` with a symbolic batch size."""
    built = affine()
    built.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    built.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    return built


def endless(name="n", length=1, start="x", end="y"):
    """A loop of ``n`` turns: ``y`` is ``x`` plus 1 per turn. The test selects its duration."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Add", ["state", "one"], ["next"]),
        ],
        "body",
        [value("turn", "int64", []), value("go", "bool", []), value("state", "float32", [length])],
        [value("go_on", "bool", []), value("next", "float32", [length])],
    )
    return model(
        [helper.make_node("Loop", [name, "", start], [end], body=body)],
        [(name, "int64", []), (start, "float32", [length])],
        [(end, "float32", [length])],
        {"one": np.ones(1, np.float32)},
    )
