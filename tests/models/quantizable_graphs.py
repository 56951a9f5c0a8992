"""Random graphs of operators that can be quantized, and random schemas for their quantization."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper, numpy_helper

SCHEMAS = ["asymmetric", "symmetric", "symmetric_with_uint8", "symmetric_with_power2_scale"]
UNARY = ["Relu", "Clip", "LeakyRelu", "Sigmoid", "Tanh", "Erf", "HardSigmoid", "HardSwish"]
BINARY = ["Add", "Sub", "Mul", "Div", "Max", "Min"]
IMAGE = [
    "Conv",
    "Depthwise",
    "ConvTranspose",
    "MaxPool",
    "AveragePool",
    "Pad",
    "Resize",
    "Transpose",
    "Concat",
]
MATRIX = ["MatMul", "Gemm", "Softmax", "Bias", "Bias", "Slice", "Split"]


class Graph:
    """A random graph under construction."""

    def __init__(self, draw, seed):
        self.draw = draw
        self.rng = np.random.default_rng(seed)
        self.nodes, self.constants = [], []
        self.shapes = {}

    def constant(self, values):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def random(self, *shape):
        kind = self.rng.integers(4)
        values = self.rng.standard_normal(shape) * 10.0 ** self.rng.integers(-2, 2)
        if kind == 0:
            values = np.abs(values)
        elif kind == 1:
            values = values * (self.rng.random(shape) < 0.3)
        return self.constant(values.astype(np.float32))

    def node(self, op, inputs, shape, **attributes):
        name = f"t{len(self.nodes)}"
        domain = ""
        self.nodes.append(helper.make_node(op, inputs, [name], domain=domain, **attributes))
        self.shapes[name] = tuple(shape)
        return name

    def pick(self, rank=None):
        names = [name for name, shape in self.shapes.items() if rank is None or len(shape) == rank]
        return self.draw(st.sampled_from(names)) if names else None

    def grow(self):
        kind = self.draw(st.sampled_from([*UNARY, *BINARY, *IMAGE, *MATRIX]))
        if kind in UNARY:
            self.unary(kind)
        elif kind in BINARY:
            self.binary(kind)
        elif kind in IMAGE:
            self.image(kind)
        else:
            self.matrix(kind)

    def unary(self, kind):
        name = self.pick()
        inputs = [name]
        if kind == "Clip":
            low, high = np.sort(self.rng.standard_normal(2).astype(np.float32))
            inputs += [self.constant(low) if self.rng.random() < 0.7 else "", self.constant(high)]
        attributes = {"alpha": 0.1} if kind == "LeakyRelu" else {}
        self.node(kind, inputs, self.shapes[name], **attributes)

    def binary(self, kind):
        first = self.pick()
        same = [name for name, shape in self.shapes.items() if shape == self.shapes[first]]
        shape = self.shapes[first]
        if kind == "Div":
            values = 0.5 + self.rng.random(shape[-1:] if self.rng.random() < 0.5 else ())
            other = self.constant(values.astype(np.float32))
        elif self.draw(st.booleans()):
            other = self.draw(st.sampled_from(same))
        else:
            chosen = self.rng.integers(4)
            if chosen == 3 and len(shape) == 4:
                other = self.random(1, shape[1], 1, 1)
            else:
                other = self.random(*((), shape[-1:], shape, shape)[chosen])
        self.node(kind, [first, other], shape)

    def image(self, kind):
        name = self.pick(rank=4)
        batch, channels, height, width = self.shapes[name]
        rng = self.rng
        if kind in {"Conv", "Depthwise"}:
            groups = channels if kind == "Depthwise" else 1
            made = channels if kind == "Depthwise" else int(rng.integers(1, 5))
            size, pad, stride = (1, 0, 1) if rng.random() < 0.3 else (3, 1, int(rng.integers(1, 3)))
            inputs = [name, self.random(made, channels // groups, size, size)]
            if rng.random() < 0.6:
                inputs.append(self.random(made))
            shape = (batch, made, (height - 1) // stride + 1, (width - 1) // stride + 1)
            last = self.node("Conv", inputs, shape, group=groups, pads=[pad] * 4, strides=[stride] * 2)
            if rng.random() < 0.3:
                self.node("Add", [last, self.random(made, 1, 1)], shape)
        elif kind == "ConvTranspose":
            made = int(rng.integers(1, 4))
            inputs = [name, self.random(channels, made, 2, 2)]
            if rng.random() < 0.5:
                inputs.append(self.random(made))
            if height * width < 200:
                self.node(kind, inputs, (batch, made, 2 * height, 2 * width), strides=[2, 2])
        elif kind in {"MaxPool", "AveragePool"} and min(height, width) >= 2:
            shape = (batch, channels, height // 2, width // 2)
            self.node(kind, [name], shape, kernel_shape=[2, 2], strides=[2, 2])
        elif kind == "Pad":
            inputs = [name, self.constant(np.int64([0, 0, 1, 0, 0, 0, 0, 1]))]
            if rng.random() < 0.5:
                inputs.append(self.constant(np.float32(rng.standard_normal())))
            self.node(kind, inputs, (batch, channels, height + 1, width + 1))
        elif kind == "Resize" and height * width < 100:
            inputs = [name, "", self.constant(np.float32([1, 1, 2, 2]))]
            self.node(kind, inputs, (batch, channels, 2 * height, 2 * width), mode="nearest")
        elif kind == "Transpose":
            self.node(kind, [name], (batch, channels, width, height), perm=[0, 1, 3, 2])
        elif kind == "Concat":
            other = [n for n, s in self.shapes.items() if len(s) == 4 and s[2:] == (height, width)]
            second = self.draw(st.sampled_from(other))
            total = channels + self.shapes[second][1]
            if total < 9:
                self.node(kind, [name, second], (batch, total, height, width), axis=1)

    def matrix(self, kind):
        name = self.pick(rank=3)
        if name is None or kind == "Gemm":
            name = self.pick(rank=2)
        if name is None:
            name = self.pick(rank=4)
            batch, channels, height, width = self.shapes[name]
            if self.rng.random() < 0.5:
                shape = (batch, channels, height * width)
                self.node("Reshape", [name, self.constant(np.int64(shape))], shape)
            else:
                self.node("Flatten", [name], (batch, channels * height * width))
            return
        shape = self.shapes[name]
        made = int(self.rng.integers(1, 6))
        if kind == "MatMul":
            self.node(kind, [name, self.random(shape[-1], made)], (*shape[:-1], made))
        elif kind == "Bias":
            last = self.node("MatMul", [name, self.random(shape[-1], made)], (*shape[:-1], made))
            self.node("Add", [last, self.random(made)], (*shape[:-1], made))
        elif kind == "Gemm" and len(shape) == 2:
            turned = int(self.rng.integers(2))
            weight = self.random(made, shape[-1]) if turned else self.random(shape[-1], made)
            factors = {"alpha": 0.5, "beta": 2.0} if self.rng.random() < 0.3 else {}
            self.node(kind, [name, weight, self.random(made)], (shape[0], made), transB=turned, **factors)
        elif kind == "Softmax":
            self.node(kind, [name], shape, axis=-1)
        elif kind == "Slice" and shape[-1] > 1:
            places = [self.constant(np.int64([value])) for value in (0, shape[-1] - 1, -1)]
            self.node(kind, [name, *places], (*shape[:-1], shape[-1] - 1))
        elif kind == "Split" and shape[-1] % 2 == 0:
            half = (*shape[:-1], shape[-1] // 2)
            self.nodes.append(
                helper.make_node(kind, [name], [f"s{len(self.nodes)}a", f"s{len(self.nodes)}b"], axis=-1)
            )
            self.shapes.update(dict.fromkeys(self.nodes[-1].output, half))

    def model(self, opset):
        self.nodes.append(helper.make_node("Identity", [self.nodes[-1].output[0]], ["last"]))
        graph = helper.make_graph(
            self.nodes,
            "random",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 6, 6])],
            [onnx.ValueInfoProto(name="last")],
            self.constants,
        )
        graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@st.composite
def graphs(draw):
    seed = draw(st.integers(0, 2**32 - 1))
    graph = Graph(draw, seed)
    graph.shapes["x"] = (1, 3, 6, 6)
    for _ in range(draw(st.integers(1, 7))):
        graph.grow()
    if not graph.nodes:
        graph.node("Relu", ["x"], graph.shapes["x"])
    # From operator set 18 on, the number of parts is an attribute of Split.
    opset = draw(st.sampled_from([14, 16, 17]))
    return graph.model(opset), seed


options = st.fixed_dictionaries(
    {
        "quantization_schema_activations": st.sampled_from(SCHEMAS),
        "quantization_schema_constants": st.sampled_from(SCHEMAS),
        "quantization_precision_bias": st.sampled_from(["Int32", "Int8"]),
        "enable_channelwise": st.booleans(),
        "enable_rowwise": st.booleans(),
    }
)
