"""Models that are already quantized, as QDQ and QLinear graphs of exporters; a defect ends the process."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from compiler_oracle import info, model_of, node
from qaic import accuracy

RNG = np.random.default_rng(16)
#: More elements than are compared without an If, whose branches capture values.
X = RNG.normal(1, 1, (30, 4, 6, 6)).astype(np.float32)
CONSTANTS = {
    "s": np.float32(0.05),
    "z": np.uint8(128),
    "w": RNG.integers(-127, 128, (8, 4, 3, 3)).astype(np.int8),
    "ws": RNG.uniform(0.002, 0.01, 8).astype(np.float32),
    "wz": np.zeros(8, np.int8),
    "b": RNG.integers(-2000, 2000, 8).astype(np.int32),
    "bs": RNG.uniform(0.0001, 0.0005, 8).astype(np.float32),
    "m": RNG.integers(0, 256, (6, 6)).astype(np.uint8),
    "cs": np.float32(0.2),
    "flat": np.array([1, -1]),
    "two": np.array([2, 2]),
}


def quantized(name, scale="s"):
    """A value that is rounded to integers and back, as ``name_d``."""
    return [
        node("QuantizeLinear", [name, scale, "z"], [f"{name}_q"]),
        node("DequantizeLinear", [f"{name}_q", scale, "z"], [f"{name}_d"]),
    ]


def around(*inner, last, scale="cs"):
    """Nodes that read the rounded input; their rounded result is the output."""
    return [*quantized("x"), *inner, *quantized(last, scale), node("Identity", [f"{last}_d"], ["y"])]


KERNEL = [
    node("DequantizeLinear", ["w", "ws", "wz"], ["w_d"], axis=0),
    node("DequantizeLinear", ["b", "bs"], ["b_d"], axis=0),
]
MATRIX = node("DequantizeLinear", ["m", "s", "z"], ["m_d"])
PATTERNS = {
    "Conv": around(*KERNEL, node("Conv", ["x_d", "w_d", "b_d"], ["c"], pads=[1] * 4), last="c"),
    "Conv, Relu": around(
        *KERNEL, node("Conv", ["x_d", "w_d", "b_d"], ["r"]), node("Relu", ["r"], ["c"]), last="c"
    ),
    "MatMul": around(MATRIX, node("MatMul", ["x_d", "m_d"], ["c"]), last="c"),
    "Add": around(MATRIX, node("Add", ["x_d", "m_d"], ["c"]), last="c"),
    "Mul with itself": around(node("Mul", ["x_d", "x_d"], ["c"]), last="c"),
    "Concat": around(MATRIX, node("Concat", ["x_d", "x_d"], ["c"], axis=1), last="c"),
    "MaxPool": around(node("MaxPool", ["x_d"], ["c"], kernel_shape=[2, 2]), last="c", scale="s"),
    "AveragePool": around(node("GlobalAveragePool", ["x_d"], ["c"]), last="c"),
    "Softmax": around(node("Softmax", ["x_d"], ["c"]), last="c"),
    "moved": around(
        node("Transpose", ["x_d"], ["t"], perm=[0, 2, 3, 1]), node("Reshape", ["t", "flat"], ["c"]), last="c"
    ),
    "moved, two readers": around(
        node("Reshape", ["x_d", "flat"], ["t"]), node("Add", ["t", "t"], ["c"]), last="c"
    ),
    "split": around(node("Split", ["x_d", "two"], ["c", "q"], axis=1), node("Relu", ["q"], ["q2"]), last="c"),
    "weights alone": [*KERNEL, node("Conv", ["x", "w_d", "b_d"], ["y"])],
    "integers at the end": [
        *quantized("x"),
        node("Relu", ["x_d"], ["r"]),
        *quantized("r"),
        node("Neg", ["r_d"], ["y"]),
    ],
    "QLinearConv": [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("QLinearConv", ["q", "s", "z", "w", "ws", "wz", "cs", "z", "b"], ["c"]),
        node("DequantizeLinear", ["c", "cs", "z"], ["y"]),
    ],
    "QLinearMatMul": [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("QLinearMatMul", ["q", "s", "z", "m", "s", "z", "cs", "z"], ["c"]),
        node("DequantizeLinear", ["c", "cs", "z"], ["y"]),
    ],
    "dynamic": [
        node("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"]),
        node("MatMulInteger", ["q", "m", "qz", "z"], ["i"]),
        node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["qs", "s"], ["k"]),
        node("Mul", ["f", "k"], ["y"]),
    ],
    "captured": [
        *quantized("x"),
        node("Reshape", ["x_d", "flat"], ["t"]),
        node("ReduceMax", ["x"], ["most"], keepdims=0),
        node("Less", ["most", "s"], ["go"]),
        helper.make_node(
            "If",
            ["go"],
            ["y"],
            then_branch=helper.make_graph([node("Neg", ["t"], ["n"])], "a", [], [info("n", None)]),
            else_branch=helper.make_graph([node("Exp", ["t"], ["e"])], "b", [], [info("e", None)]),
        ),
    ],
}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("to", ["fp16", "int8"])
def test_a_quantized_model_is_compared(pattern, to):
    model = model_of(PATTERNS[pattern], [info("x", X.shape)], [info("y", None)], list(CONSTANTS.items()))
    report = accuracy.compare(model, to=to, samples=[{"x": X}])
    (output,) = report.outputs[to]
    assert output.name == "y"
    # Values that are already quantized lose only the rounding to float16.
    assert output.sqnr_db > 20


@pytest.mark.parametrize("to", ["int8", "int16"])
def test_integers_with_several_readers_are_compared(to):
    # QuantizeLinear for int16 is not in operator set 17, but in the engine's own domain.
    rng = np.random.default_rng(1)
    value = rng.standard_normal((1, 4, 6)).astype(np.float32)
    nodes = [
        node("Sigmoid", ["x"], ["s1"]),
        node("Transpose", ["s1"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["t", "weight"], ["m1"]),
        node("Add", ["m1", "bias"], ["a"]),
        node("Mul", ["a", "t"], ["y"]),
    ]
    constants = [("weight", rng.standard_normal((4, 4)).astype(np.float32)), ("bias", np.ones(4, np.float32))]
    model = model_of(nodes, [info("x", value.shape)], [info("y", None)], constants, opset=17)
    (output,) = accuracy.compare(model, to=to, samples=[{"x": value}]).outputs[to]
    assert output.sqnr_db > 30


@pytest.mark.parametrize("opset", [7, 9, 10, 11, 12])
def test_models_of_old_operator_sets_are_compared(opset):
    # Quantization raises the operator set to 12, in which Clip, Pad and Upsample have another form.
    rng = np.random.default_rng(opset)
    value = rng.standard_normal((1, 4, 6, 6)).astype(np.float32)
    clip = (
        node("Clip", ["c", "low", "high"], ["k"])
        if opset >= 11
        else node("Clip", ["c"], ["k"], min=0.0, max=6.0)
    )
    pad = (
        node("Pad", ["k", "pads"], ["p"])
        if opset >= 11
        else node("Pad", ["k"], ["p"], pads=[0, 0, 1, 1, 0, 0, 1, 1])
    )
    nodes = [node("Conv", ["x", "weight"], ["c"]), clip, pad, node("Conv", ["p", "second"], ["y"])]
    if opset == 9:
        nodes[-1:] = [
            node("Upsample", ["p", "scales"], ["u"], mode="nearest"),
            node("Conv", ["u", "second"], ["y"]),
        ]
    constants = [
        ("weight", rng.standard_normal((4, 4, 3, 3)).astype(np.float32)),
        ("second", rng.standard_normal((4, 4, 1, 1)).astype(np.float32)),
        ("scales", np.array([1, 1, 2, 2], np.float32)),
        *([("low", np.float32(0)), ("high", np.float32(6))] if opset >= 11 else []),
        *([("pads", np.array([0, 0, 1, 1, 0, 0, 1, 1]))] if opset >= 11 else []),
    ]
    model = model_of(nodes, [info("x", value.shape)], [info("y", None)], constants, opset=opset)
    (output,) = accuracy.compare(model, to="int8", samples=[{"x": value}]).outputs["int8"]
    assert output.sqnr_db > 25
