"""The models that are measured: one published and trained, and others from a fixed seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    import onnx
    from numpy.typing import NDArray

#: Models in order of size; the first is for the cost of a call, the others for everything.
NAMES = ("tiny", "magika", "conv", "ffn")
TITLES = {
    "tiny": "tiny (Add of two [1,16])",
    "magika": "Magika (3 MB)",
    "conv": "conv net (25 MB)",
    "ffn": "FFN stack (101 MB)",
    "chain": "9,000 small nodes (1 MB)",
}
_OPSET = 17
_SEED = 20


@dataclass(frozen=True)
class Model:
    """A model on disk, arrays for its inputs, and the options that it needs."""

    path: Path
    feeds: dict[str, NDArray[Any]]
    options: dict[str, object] = field(default_factory=dict)


def load(name: str, folder: Path) -> Model:
    """Return a model; create it in `folder` if it does not exist."""
    generator = np.random.default_rng(_SEED)
    if name == "magika":
        return _magika(generator)
    path = folder / f"{name}.onnx"
    make, shapes = _MADE[name]
    if not path.exists():
        import onnx

        onnx.save(make(np.random.default_rng(_SEED)), path)
    return Model(path, {key: generator.standard_normal(shape, np.float32) for key, shape in shapes.items()})


def _magika(generator: np.random.Generator) -> Model:
    from qaic.cli.demo import FileTypeModel

    model = FileTypeModel.installed()
    shape = [1, model.begin_bytes + model.end_bytes]
    spec = {"input_name": "bytes", "input_type": "int32", "input_shape": shape}
    tokens = generator.integers(0, 257, shape).astype(np.int32)
    return Model(model.path, {"bytes": tokens}, {"model_inputs": [spec]})


class _Graph:
    """Nodes in order; each has the name of its only output."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def node(self, kind: str, *inputs: str, **attributes: object) -> str:
        """Add a node and return its output."""
        from onnx import helper

        output = f"t{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, value: NDArray[np.float32]) -> str:
        """Add an initializer."""
        from onnx import numpy_helper

        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(value, name))
        return name

    def weight(self, *shape: int) -> str:
        """Add random weights that keep the scale of the values."""
        fan_in = int(np.prod(shape[1:])) if len(shape) == 4 else shape[0]
        return self.constant(self._generator.standard_normal(shape, np.float32) / np.float32(np.sqrt(fan_in)))

    def ones(self, size: int, value: float = 1.0) -> str:
        """Add a vector of one value."""
        return self.constant(np.full(size, value, np.float32))

    def model(self, inputs: dict[str, list[int]], output: str, shape: list[int]) -> onnx.ModelProto:
        """Return the finished model."""
        from onnx import TensorProto, helper

        graph = helper.make_graph(
            self._nodes,
            "bench",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in inputs.items()],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
            self._weights,
        )
        imports = [helper.make_opsetid("", _OPSET), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)


def _tiny(generator: np.random.Generator) -> onnx.ModelProto:
    graph = _Graph(generator)
    return graph.model(_MADE["tiny"][1], graph.node("Add", "x", "y"), [1, 16])


def _conv(generator: np.random.Generator) -> onnx.ModelProto:
    """Residual blocks of 3x3 convolutions with batch normalization, as in image classifiers."""
    graph = _Graph(generator)

    def conv(x: str, inward: int, outward: int, size: int, stride: int) -> str:
        pad = size // 2
        y = graph.node(
            "Conv",
            x,
            graph.weight(outward, inward, size, size),
            kernel_shape=[size, size],
            strides=[stride, stride],
            pads=[pad] * 4,
        )
        mean, variance = graph.ones(outward, 0.0), graph.ones(outward)
        return graph.node(
            "BatchNormalization", y, graph.ones(outward), graph.ones(outward, 0.1), mean, variance
        )

    x = graph.node("Relu", conv("x", 3, 64, 7, 2))
    x = graph.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for outward, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (320, 2), (320, 1)):
        y = graph.node("Relu", conv(x, channels, outward, 3, stride))
        y = conv(y, outward, outward, 3, 1)
        if outward != channels:
            x = conv(x, channels, outward, 1, stride)
        x = graph.node("Relu", graph.node("Add", x, y))
        channels = outward
    x = graph.node("Flatten", graph.node("GlobalAveragePool", x))
    x = graph.node("Gemm", x, graph.weight(channels, 1000), graph.ones(1000, 0.0))
    return graph.model(_MADE["conv"][1], x, [1, 1000])


def _ffn(generator: np.random.Generator) -> onnx.ModelProto:
    """Feed-forward blocks of a transformer: normalize, widen, GELU, narrow, add."""
    graph = _Graph(generator)
    width, wide = 768, 3072
    half, one, root = (graph.constant(np.array(v, np.float32)) for v in (0.5, 1.0, np.sqrt(2.0)))
    x = "x"
    for _ in range(5):
        y = graph.node("LayerNormalization", x, graph.ones(width), graph.ones(width, 0.0))
        y = graph.node("Add", graph.node("MatMul", y, graph.weight(width, wide)), graph.ones(wide, 0.0))
        bell = graph.node("Add", graph.node("Erf", graph.node("Div", y, root)), one)
        y = graph.node("Mul", graph.node("Mul", y, bell), half)
        y = graph.node("Add", graph.node("MatMul", y, graph.weight(wide, width)), graph.ones(width, 0.0))
        x = graph.node("Add", x, y)
    x = graph.node("MatMul", x, graph.weight(width, 2048))
    return graph.model(_MADE["ffn"][1], x, [1, 32, 2048])


def _products(generator: np.random.Generator) -> onnx.ModelProto:
    """Two wide matrix products with GELU between them."""
    graph = _Graph(generator)
    x = graph.node("MatMul", "x", graph.weight(768, 3072))
    x = graph.node("Gelu", x, domain="com.microsoft")
    return graph.model(_MADE["products"][1], graph.node("MatMul", x, graph.weight(3072, 768)), [128, 768])


def _convolutions(generator: np.random.Generator) -> onnx.ModelProto:
    """Two 3x3 convolutions with biases and a Relu between them."""
    graph = _Graph(generator)
    x = "x"
    for last in (False, True):
        weight, bias = graph.weight(64, 64, 3, 3), graph.ones(64, 0.1)
        x = graph.node("Conv", x, weight, bias, kernel_shape=[3, 3], pads=[1] * 4)
        x = x if last else graph.node("Relu", x)
    return graph.model(_MADE["convolutions"][1], x, [1, 64, 56, 56])


def _chain(generator: np.random.Generator) -> onnx.ModelProto:
    """Many operators on few numbers, so nodes determine the time; no weight is large enough to be mapped."""
    graph = _Graph(generator)
    width, x = 8, "x"
    for _ in range(9_000 // 6):
        x = graph.node("Add", graph.node("MatMul", x, graph.weight(width, width)), graph.ones(width, 0.1))
        x = graph.node("Mul", graph.node("Relu", x), graph.ones(width))
        x = graph.node("Tanh", graph.node("Sub", x, graph.ones(width, 0.2)))
    return graph.model(_MADE["chain"][1], x, [1, width])


_MADE: dict[str, tuple[Callable[[np.random.Generator], onnx.ModelProto], dict[str, list[int]]]] = {
    "tiny": (_tiny, {"x": [1, 16], "y": [1, 16]}),
    "conv": (_conv, {"x": [1, 3, 224, 224]}),
    "ffn": (_ffn, {"x": [1, 32, 768]}),
    "chain": (_chain, {"x": [1, 8]}),
    "products": (_products, {"x": [128, 768]}),
    "convolutions": (_convolutions, {"x": [1, 64, 56, 56]}),
}
