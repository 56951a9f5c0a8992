"""Nodes that a tool has quantized keep their numbers in an int8 program, and other nodes are quantized."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import qaic
from calibration_models import lowered
from compiler_oracle import info, model_of, node, run

RNG = np.random.default_rng(11)
SHAPE = (1, 4, 6, 6)


def pair(source, result, scale="s", zero="z"):
    """Quantize and dequantize a value."""
    return [
        node("QuantizeLinear", [source, scale, zero], [f"{result}/q"]),
        node("DequantizeLinear", [f"{result}/q", scale, zero], [result]),
    ]


WEIGHT = node("DequantizeLinear", ["w", "scales", "zeros"], ["k"], axis=0)
#: nodes from the dequantized value "d" to "r"
UNITS = {
    "Conv": [WEIGHT, node("Conv", ["d", "k"], ["r"])],
    "Conv and Relu": [WEIGHT, node("Conv", ["d", "k"], ["c"]), node("Relu", ["c"], ["r"])],
    "moved before and behind": [
        *(WEIGHT, node("Transpose", ["d"], ["t"], perm=[0, 1, 3, 2])),
        *(node("Conv", ["t", "k"], ["c"]), node("Transpose", ["c"], ["r"], perm=[0, 1, 3, 2])),
    ],
    "Add": [*pair("x", "e", "wide"), node("Add", ["d", "e"], ["r"])],
    "Add of a constant": [node("Add", ["d", "shift"], ["r"])],
    "Concat": [*pair("x", "e", "wide"), node("Concat", ["d", "e"], ["r"], axis=1)],
    "MaxPool": [node("MaxPool", ["d"], ["r"], kernel_shape=[2, 2])],
    "Sigmoid": [node("Sigmoid", ["d"], ["r"])],
    "chain": [
        *(WEIGHT, node("Conv", ["d", "k"], ["c"]), *pair("c", "e", "wide")),
        *(node("Add", ["d", "e"], ["a"]), *pair("a", "b"), node("HardSwish", ["b"], ["r"])),
    ],
}


def quantized_model(nodes):
    held = {
        "s": np.float32(0.02),
        "z": np.int8(3),
        "wide": np.float32(0.05),
        "w": RNG.integers(-128, 128, (4, 4, 1, 1)).astype(np.int8),
        "scales": np.float32([0.01, 0.003, 0.02, 0.0005]),
        "zeros": np.zeros(4, np.int8),
        "shift": RNG.standard_normal((4, 1, 1)).astype(np.float32),
    }
    nodes = [*pair("x", "d"), *nodes, *pair("r", "y", "wide")]
    read = {name for made in nodes for name in made.input}
    constants = [(name, value) for name, value in held.items() if name in read]
    return model_of(nodes, [info("x", SHAPE)], [info("y", None)], constants)


@pytest.mark.parametrize("unit", UNITS)
def test_nodes_that_the_model_quantizes_keep_its_numbers(unit):
    model = quantized_model(UNITS[unit])
    feeds = {"x": RNG.standard_normal(SHAPE).astype(np.float32)}
    expected = run(model, feeds, optimize=False)["y"]
    with qaic.Session(model, convert_to_quantize=True, calibration_data=[feeds]) as session:
        np.testing.assert_allclose(session.run(feeds)["y"], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("more", [[], [node("Gelu", ["y"], ["g"], domain="com.microsoft")]])
def test_a_model_without_other_nodes_is_told_that_it_is_quantized(more, caplog):
    model = quantized_model(UNITS["Conv"])
    for made in more:
        model.graph.node.append(made)
        model.graph.output[0].name = made.output[0]
    lowered(model, convert_to_quantize=True, calibration_data=[{"x": np.zeros(SHAPE, np.float32)}])
    is_told = (
        "nodes that the model itself quantizes keep their integers, and the model has no other" in caplog.text
    )
    assert is_told is not bool(more)


def test_nodes_behind_an_integer_input_are_quantized():
    """Dequantized inputs, such as pictures, are no sign that the model quantizes a node."""
    nodes = [
        node("DequantizeLinear", ["x", "s"], ["d"]),
        node("Conv", ["d", "w"], ["c"]),
        node("Sigmoid", ["c"], ["y"]),
    ]
    weight = RNG.standard_normal((4, 4, 1, 1)).astype(np.float32)
    model = model_of(
        nodes,
        [info("x", SHAPE, onnx.TensorProto.UINT8)],
        [info("y", None)],
        [("s", np.float32(0.01)), ("w", weight)],
    )
    feeds = {"x": RNG.integers(0, 256, SHAPE).astype(np.uint8)}
    plan = lowered(model, convert_to_quantize=True, calibration_data=[feeds]).context.quantization
    assert {made.op_type for group in plan.groups() for made in group.group.nodes} == {"Conv", "Sigmoid"}
