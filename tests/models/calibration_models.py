"""Models for tests of calibration, and their inner values from onnxruntime."""

import numpy as np
import onnx
from onnx import helper

from lowered_program import lower_program
from qaic.compiler.diagnostics.progress import Progress
from qaic.compiler.frontend.files import onnx_file
from qaic.options import resolve
from session_models import engine, model


def convolutional(seed=1, size=16):
    """Conv, Relu, pooling and a MatMul, with every kind of edge between nodes that can be quantized."""
    random = np.random.default_rng(seed)
    return model(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], name="conv/1", pads=[1] * 4),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("GlobalAveragePool", ["r"], ["g"], name="1pool"),
            helper.make_node("Flatten", ["g"], ["f"]),
            helper.make_node("MatMul", ["f", "fc"], ["y"]),
        ],
        [("x", "float32", [1, 3, size, size])],
        [("y", "float32", [1, 10])],
        {
            "w": random.standard_normal((8, 3, 3, 3)).astype(np.float32),
            "fc": random.standard_normal((8, 10)).astype(np.float32),
        },
    )


def samples_of(built, count, seed=2, scale=1.0):
    """Random inputs for a model with fixed shapes."""
    random = np.random.default_rng(seed)
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in built.graph.input
    }
    return [
        {name: (scale * random.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}
        for _ in range(count)
    ]


def values(built, samples, names):
    """Compute the values of tensors for samples with onnxruntime; return name -> one flat array."""
    probe = onnx.ModelProto()
    probe.CopyFrom(built)
    outputs = {value.name for value in probe.graph.output}
    inputs = {value.name for value in probe.graph.input}
    for name in names:
        if name not in outputs and name not in inputs:
            probe.graph.output.add().name = name
    session = engine(probe)
    found = {name: [] for name in names}
    for sample in samples:
        results = {
            output.name: array
            for output, array in zip(session.get_outputs(), session.run(None, sample), strict=True)
        }
        for name in names:
            array = sample[name] if name in inputs else results[name]
            found[name].append(np.asarray(array, np.float32).ravel())
    return {name: np.concatenate(arrays) for name, arrays in found.items()}


def lowered(built, **options):
    """Lower a model with options, without any cache."""
    resolved = resolve(options, options_path=None, model_is_container=False)
    with onnx_file.open_bytes(built.SerializeToString()) as source, Progress("test") as progress:
        return lower_program(source, resolved.compile, progress)
