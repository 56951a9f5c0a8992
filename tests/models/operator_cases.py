"""Operators in the form of each operator set, on tensors of four dimensions."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

import engine_version

#: The newest set that onnx and the engine both have.
NEWEST_SET = min(onnx.defs.onnx_opset_version(), 28) if engine_version.minor() >= 32 else 22
#: Every form changed in one of these sets.
OPERATOR_SETS = tuple(
    opset for opset in (7, 8, 9, 10, 11, 12, 13, 17, 18, 21, 22, 23, 24, 25, 26, 28) if opset <= NEWEST_SET
)


@dataclass
class Drawn:
    """A graph under construction: a value, its shape, and the nodes that compute it."""

    opset: int
    rng: np.random.Generator
    shape: tuple[int, ...]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    value: str = "x"

    def constant(self, value, dtype=np.float32) -> str:
        """Add a constant; return its name."""
        name = f"k{len(self.constants)}"
        self.constants[name] = np.array(value, dtype)
        return name

    def normal(self, *shape: int) -> str:
        """Add a constant around zero."""
        return self.constant(self.rng.standard_normal(shape))

    def positive(self, *shape: int) -> str:
        """Add a constant between 0.5 and 1.5."""
        return self.constant(self.rng.random(shape) + 0.5)

    def add(self, op, *more, shape=None, outputs=1, domain="", **attributes) -> None:
        """Append a node that reads the value first."""
        made = [f"v{len(self.nodes)}_{at}" if at else f"v{len(self.nodes)}" for at in range(outputs)]
        self.nodes.append(helper.make_node(op, [self.value, *more], made, domain=domain, **attributes))
        self.value = made[0]
        if shape is not None:
            self.shape = tuple(shape)

    def ints(self, op, name, values, *rest, since, shape=None, **attributes) -> None:
        """Append a node whose list of integers was an attribute in older operator sets."""
        if self.opset < since:
            self.add(op, shape=shape, **attributes, **{name: list(values)})
        else:
            self.add(op, self.constant(values, np.int64), *rest, shape=shape, **attributes)

    def model(self) -> onnx.ModelProto:
        """Return the finished model; its output is `y`."""
        nodes = [*self.nodes, helper.make_node("Identity", [self.value], ["y"])]
        graph = helper.make_graph(
            nodes,
            "drawn",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, self.given)],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, self.shape)],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        sets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=sets, ir_version=8 if self.opset < 21 else 10)

    def __post_init__(self):
        self.given = self.shape


def unary(op, since=7, **attributes):
    def build(at: Drawn) -> None:
        at.add(op, **attributes)

    return since, build


def binary(op, since=7):
    def build(at: Drawn) -> None:
        _n, c, h, w = at.shape
        shapes = [(), (1,), (w,), (h, 1), (c, 1, 1), (1, c, 1, 1), at.shape]
        at.add(op, at.positive(*shapes[at.rng.integers(len(shapes))]))

    return since, build


def axis(op):
    def build(at: Drawn) -> None:
        at.add(op, axis=int(at.rng.integers(1, 4)))

    return 7, build


def reduced(op, since):
    def build(at: Drawn) -> None:
        axes = [int(at.rng.integers(0, 4))]
        shape = tuple(1 if at_axis in axes else size for at_axis, size in enumerate(at.shape))
        at.ints(op, "axes", axes, since=since, shape=shape, keepdims=1)

    return 7, build


def _clip(at: Drawn) -> None:
    if at.opset < 11:
        at.add("Clip", min=-0.3, max=0.7)
    else:
        at.add("Clip", at.constant(-0.3), at.constant(0.7))


def _pad(at: Drawn) -> None:
    pads = [0, 0, 1, 0, 0, 0, 0, 2]
    n, c, h, w = at.shape
    mode = ("constant", "reflect", "edge")[at.rng.integers(3)]
    if mode == "reflect" and (h < 2 or w < 3):
        mode = "edge"
    if at.opset < 11:
        more = {"value": 1.5} if mode == "constant" else {}
        at.add("Pad", pads=pads, mode=mode, shape=(n, c, h + 1, w + 2), **more)
    else:
        more = [at.constant(1.5)] if mode == "constant" else []
        at.add("Pad", at.constant(pads, np.int64), *more, mode=mode, shape=(n, c, h + 1, w + 2))


def _slice(at: Drawn) -> None:
    n, c, h, w = at.shape
    if h < 2 or w < 2:
        return
    axes, starts, ends = [2, 3], [-(h - 1), 1], [1000, w]
    shape = (n, c, h - 1, w - 1)
    if at.opset < 10:
        at.add("Slice", axes=axes, starts=starts, ends=ends, shape=shape)
    else:
        at.add("Slice", *(at.constant(v, np.int64) for v in (starts, ends, axes)), shape=shape)


def _split(at: Drawn) -> None:
    n, c, h, w = at.shape
    if w < 2:
        return
    parts = [w - 1, 1]
    if at.opset < 13:
        at.add("Split", axis=3, split=parts, outputs=2, shape=(n, c, h, parts[0]))
    else:
        at.add("Split", at.constant(parts, np.int64), axis=3, outputs=2, shape=(n, c, h, parts[0]))


def _top_k(at: Drawn) -> None:
    n, c, h, w = at.shape
    k = max(1, w - 1)
    if at.opset < 10:
        at.add("TopK", axis=3, k=k, outputs=2, shape=(n, c, h, k))
    else:
        at.add("TopK", at.constant([k], np.int64), axis=3, outputs=2, shape=(n, c, h, k))


def _resize(at: Drawn) -> None:
    n, c, h, w = at.shape
    choices = (
        [(2, 2), (1.5, 2.5), (1.25, 3), (1, 2)]
        if at.opset < 10
        else [(2, 2), (1.25, 3), (0.6, 0.5), (2, 0.5), (0.8, 0.75)]
    )
    a, b = choices[at.rng.integers(len(choices))]
    mode = ("nearest", "linear")[at.rng.integers(2)]
    scales = np.array([1, 1, a, b], np.float32)
    shape = (n, c, int(np.floor(h * scales[2])), int(np.floor(w * scales[3])))
    if min(shape) < 1 or max(shape) > 40:
        return
    if at.opset < 9:
        at.add("Upsample", mode=mode, scales=scales.tolist(), shape=shape)
    elif at.opset == 9:
        at.add("Upsample", at.constant(scales), mode=mode, shape=shape)
    elif at.opset == 10:
        at.add("Resize", at.constant(scales), mode=mode, shape=shape)
    else:
        at.add("Resize", at.constant(np.zeros(0)), at.constant(scales), mode=mode, shape=shape)


def _squeezed(at: Drawn) -> None:
    shape = at.shape
    at.ints("Unsqueeze", "axes", [0], since=13)
    at.ints("Squeeze", "axes", [0], since=13, shape=shape)


def _dropout(at: Drawn) -> None:
    if at.opset < 12:
        at.add("Dropout", ratio=0.5)
    else:
        at.add("Dropout", at.constant(0.5))


def _conv(at: Drawn) -> None:
    n, c, h, w = at.shape
    out = int(at.rng.integers(1, 6))
    at.add(
        "Conv",
        at.constant(at.rng.standard_normal((out, c, 3, 3)) / c),
        at.normal(out),
        pads=[1] * 4,
        shape=(n, out, h, w),
    )


def _conv_transpose(at: Drawn) -> None:
    n, c, h, w = at.shape
    if max(h, w) > 20:
        return
    at.add(
        "ConvTranspose",
        at.constant(at.rng.standard_normal((c, 2, 2, 2)) / c),
        strides=[2, 2],
        shape=(n, 2, 2 * h, 2 * w),
    )


def _batch_normalization(at: Drawn) -> None:
    c = at.shape[1]
    at.add("BatchNormalization", at.positive(c), at.normal(c), at.normal(c), at.positive(c), epsilon=1e-3)


def _instance_normalization(at: Drawn) -> None:
    c = at.shape[1]
    at.add("InstanceNormalization", at.positive(c), at.normal(c))


def _layer_normalization(at: Drawn) -> None:
    w = at.shape[3]
    at.add("LayerNormalization", at.positive(w), at.normal(w))


def _rms_normalization(at: Drawn) -> None:
    at.add("RMSNormalization", at.positive(at.shape[3]))


def _cumulative_product(at: Drawn) -> None:
    at.add("Sigmoid")
    at.add("CumProd", at.constant(3, np.int64), reverse=1)


def _matmul(at: Drawn) -> None:
    n, c, h, w = at.shape
    out = int(at.rng.integers(1, 8))
    at.add("MatMul", at.constant(at.rng.standard_normal((w, out)) / w), shape=(n, c, h, out))


def _gemm(at: Drawn) -> None:
    n, c, h, w = at.shape
    at.add("Reshape", at.constant([n * c, h * w], np.int64))
    at.add(
        "Gemm",
        at.constant(at.rng.standard_normal((h * w, h * w)) / (h * w)),
        at.normal(h * w),
        alpha=0.5,
        beta=2.0,
        transB=1,
    )
    at.add("Reshape", at.constant([n, c, h, w], np.int64))


def _pool(op):
    def build(at: Drawn) -> None:
        n, c, h, w = at.shape
        if min(h, w) < 3:
            return
        more = {}
        if op == "AveragePool":
            more["count_include_pad"] = int(at.rng.integers(2))
        pads = int(at.rng.integers(2))
        stride = int(at.rng.integers(1, 3))
        sizes = [(size + 2 * pads - 3) // stride + 1 for size in (h, w)]
        if at.opset >= 10 and op != "LpPool" and stride == 2 and at.rng.integers(2):
            # The last window of a rounded-up size begins inside the padded tensor.
            sizes = [-(-(size + 2 * pads - 3) // stride) + 1 for size in (h, w)]
            if all((size - 1) * stride < full + pads for size, full in zip(sizes, (h, w), strict=True)):
                more["ceil_mode"] = 1
                if at.opset < 19 and not engine_version.is_newest():
                    # The oldest engine counts positions beyond the padding.
                    more.pop("count_include_pad", None)
            else:
                sizes = [(size + 2 * pads - 3) // stride + 1 for size in (h, w)]
        at.add(op, kernel_shape=[3, 3], pads=[pads] * 4, strides=[stride] * 2, shape=(n, c, *sizes), **more)

    return 7, build


def _global_pool(op):
    def build(at: Drawn) -> None:
        n, c, _, _ = at.shape
        at.add(op, shape=(n, c, 1, 1))

    return 7, build


def _transpose(at: Drawn) -> None:
    perm = [int(p) for p in at.rng.permutation(4)]
    at.add("Transpose", perm=perm, shape=tuple(at.shape[p] for p in perm))


def _concat(at: Drawn) -> None:
    n, c, h, w = at.shape
    at.add("Concat", at.normal(n, 2, h, w), axis=1, shape=(n, c + 2, h, w))


def _where(at: Drawn) -> None:
    _n, c, _h, w = at.shape
    mask = at.constant(at.rng.integers(0, 2, (c, 1, 1)), np.bool_)
    at.nodes.append(helper.make_node("Where", [mask, at.value, at.positive(w)], [f"v{len(at.nodes)}"]))
    at.value = f"v{len(at.nodes) - 1}"


def _gather(at: Drawn) -> None:
    n, c, h, w = at.shape
    at.add("Gather", at.constant(at.rng.integers(0, c, 3), np.int64), axis=1, shape=(n, 3, h, w))


def _tile(at: Drawn) -> None:
    n, c, h, w = at.shape
    if w > 20:
        return
    at.add("Tile", at.constant([1, 1, 1, 2], np.int64), shape=(n, c, h, 2 * w))


def _space_to_depth(at: Drawn) -> None:
    n, c, h, w = at.shape
    # The engine does not have QuantizeLinear of set 28, which changes this operator.
    if h % 2 or w % 2 or at.opset >= 28:
        return
    at.add("SpaceToDepth", blocksize=2, shape=(n, 4 * c, h // 2, w // 2))


def _pow(at: Drawn) -> None:
    at.add("Abs")
    at.add("Pow", at.constant(1.5))


def _log(at: Drawn) -> None:
    at.add("Abs")
    at.add("Add", at.constant(0.5))
    at.add("Log")


def _sqrt(at: Drawn) -> None:
    at.add("Abs")
    at.add("Sqrt")


def _if(at: Drawn) -> None:
    outer = at.value
    constants = at.constant(0.25)
    branches = [
        helper.make_graph(
            [helper.make_node(op, [outer, constants], ["r"])],
            op,
            [],
            [helper.make_tensor_value_info("r", onnx.TensorProto.FLOAT, at.shape)],
        )
        for op in ("Add", "Mul")
    ]
    condition = at.constant(bool(at.rng.integers(2)), np.bool_)
    made = f"v{len(at.nodes)}"
    at.nodes.append(
        helper.make_node("If", [condition], [made], then_branch=branches[0], else_branch=branches[1])
    )
    at.value = made


#: Name -> the first operator set that has the operator, and the function that appends it.
OPERATORS = {
    **{
        op: unary(op)
        for op in (
            "Relu",
            "Sigmoid",
            "Tanh",
            "Softplus",
            "Softsign",
            "Neg",
            "Abs",
            "Elu",
            "Selu",
            "HardSigmoid",
        )
    },
    **{op: unary(op, 9) for op in ("Erf", "Sinh", "Asinh", "Atan")},
    "HardSwish": unary("HardSwish", 14),
    "Mish": unary("Mish", 18),
    "Gelu": unary("Gelu", 20),
    "Sin": unary("Sin"),
    "LeakyRelu": unary("LeakyRelu", alpha=0.3),
    "LRN": unary("LRN", size=3),
    "LpNormalization": unary("LpNormalization", axis=1),
    "MeanVarianceNormalization": unary("MeanVarianceNormalization", 9),
    **{op: binary(op) for op in ("Add", "Sub", "Mul", "Div", "PRelu")},
    **{op: binary(op, 8) for op in ("Max", "Min")},
    **{op: axis(op) for op in ("Softmax", "LogSoftmax")},
    "ReduceSum": reduced("ReduceSum", 13),
    **{op: reduced(op, 18) for op in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceL1")},
    "Clip": (7, _clip),
    "Pad": (7, _pad),
    "Slice": (7, _slice),
    "Split": (7, _split),
    "TopK": (7, _top_k),
    "Resize": (7, _resize),
    "Squeeze": (7, _squeezed),
    "Dropout": (7, _dropout),
    "Conv": (7, _conv),
    "ConvTranspose": (7, _conv_transpose),
    "BatchNormalization": (7, _batch_normalization),
    "InstanceNormalization": (7, _instance_normalization),
    "LayerNormalization": (17, _layer_normalization),
    "RMSNormalization": (23, _rms_normalization),
    "CumProd": (26, _cumulative_product),
    "MatMul": (7, _matmul),
    "Gemm": (7, _gemm),
    **{op: _pool(op) for op in ("MaxPool", "AveragePool", "LpPool")},
    **{op: _global_pool(op) for op in ("GlobalAveragePool", "GlobalMaxPool")},
    "Transpose": (7, _transpose),
    "Concat": (7, _concat),
    "Where": (9, _where),
    "Gather": (7, _gather),
    "Tile": (7, _tile),
    "SpaceToDepth": (7, _space_to_depth),
    "Pow": (7, _pow),
    "Log": (7, _log),
    "Sqrt": (7, _sqrt),
    "If": (7, _if),
}


def drawn(operators, opset, seed, shape=(1, 3, 6, 7)) -> Drawn:
    """Chain operators on an input of a shape."""
    at = Drawn(opset, np.random.default_rng(seed), shape)
    for name in operators:
        since, build = OPERATORS[name]
        if opset >= since:
            build(at)
    return at
