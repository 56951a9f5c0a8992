"""Effects of operators on rows, for the proof of `qaic.compiler.reports.row_independence`."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

from qaic.compiler.ir.graph_walk import STANDARD_DOMAINS, attribute_of, standard_version

Shape = tuple[int, ...]

#: largest number of elements of a constant that is computed to compare its rows
_MOST_ELEMENTS: Final = 1 << 20


class NotProvedError(Exception):
    """The reason why rows are not proved independent, which continues a sentence about a node."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A value in which one dimension is the batch."""

    shape: Shape
    axis: int


@dataclass(slots=True)
class Constant:
    """A value that does not depend on any row."""

    shape: Shape
    #: true if it depends on the size of the batch
    is_sized: bool = False
    #: returns the data; None if unknown
    read: Callable[[], NDArray[Any] | None] = lambda: None
    _data: list[NDArray[Any] | None] = field(default_factory=list)

    @property
    def data(self) -> NDArray[Any] | None:
        """The elements, computed at the first request."""
        if not self._data:
            data = self.read() if math.prod(self.shape) <= _MOST_ELEMENTS else None
            # Elements of less than a byte are packed.
            self._data.append(data if data is not None and data.shape == self.shape else None)
        return self._data[0]

    def is_same_along(self, axis: int, batch: int) -> bool:
        """Return True if all rows read equal values of it when its dimension ``axis`` meets the batch."""
        if axis < 0 or self.shape[axis] == 1:
            return True
        data = self.data
        if data is None or self.shape[axis] % batch:
            return False
        blocks = np.moveaxis(data, axis, 0).reshape(batch, -1)
        return all(block.tobytes() == blocks[0].tobytes() for block in blocks)


@dataclass(eq=False)
class Known:
    """Facts about a model with one set of shapes."""

    model: onnx.ModelProto
    #: size of the batch
    batch: int
    #: shapes of the results, if known
    shapes: Mapping[str, Shape]
    #: rows and constants by name
    values: dict[str, Rows | Constant]

    def shape(self, name: str) -> Shape:
        """Return the shape of a result."""
        shape = self.shapes.get(name)
        if shape is None:
            raise NotProvedError(f"has a result {name!r} of unknown shape")
        return shape


class Node:
    """A node, with the known facts about its inputs by position."""

    def __init__(self, proto: onnx.NodeProto, known: Known) -> None:
        self.proto = proto
        self.known = known
        self.rows: dict[int, Rows] = {}
        self.constants: dict[int, Constant] = {}
        for index, name in enumerate(proto.input):
            if not name:
                continue
            value = known.values.get(name)
            if value is None:
                raise NotProvedError(f"reads {name!r}, about which nothing is known")
            if isinstance(value, Rows):
                self.rows[index] = value
            else:
                self.constants[index] = value

    def attribute(self, name: str, default: Any) -> Any:
        """Return the value of an attribute."""
        return attribute_of(self.proto, name, default)

    @property
    def result(self) -> Shape:
        """Shape of the first result."""
        return self.known.shape(self.proto.output[0])

    def only(self, *positions: int) -> Rows:
        """Return the rows of the first input that has rows, among inputs that may have any."""
        if not set(self.rows) <= set(positions):
            raise NotProvedError(f"has rows in input {max(set(self.rows) - set(positions))}")
        return self.rows[min(self.rows)]

    def list_of(self, index: int, name: str) -> list[int] | None:
        """Return the integers of an input or, in older versions, an attribute; None without either."""
        if index in self.constants:
            data = self.constants[index].data
            if data is None:
                raise NotProvedError(f"has an input {self.proto.input[index]!r} that is not constant")
            return [int(number) for number in data.ravel()]
        if index in self.rows:
            raise NotProvedError(f"reads {name} from rows")
        found = self.attribute(name, None)
        return None if found is None else [found] if isinstance(found, int) else list(found)

    def aligned(self, positions: Sequence[int] | None = None) -> int:
        """Return the dimension of rows in a result to which all inputs are broadcast."""
        result = self.result
        chosen = range(len(self.proto.input)) if positions is None else positions
        places = {
            rows.axis + len(result) - len(rows.shape) for index, rows in self.rows.items() if index in chosen
        }
        if len(places) != 1:
            raise NotProvedError("combines rows along different dimensions")
        (axis,) = places
        for index in chosen:
            if index in self.constants:
                constant = self.constants[index]
                self.check_same(constant, axis - len(result) + len(constant.shape))
        return axis

    def check_same(self, constant: Constant, axis: int) -> None:
        """Refuse a constant that differs between rows."""
        if not constant.is_same_along(axis, self.known.batch):
            raise NotProvedError("has a constant that differs between rows")

    def keep_off(self, rows: Rows, axes: Sequence[int]) -> int:
        """Return the dimension of rows; refuse a node that works along it."""
        if rows.axis in [axis % len(rows.shape) for axis in axes]:
            raise NotProvedError("works across the batch")
        return rows.axis


# --- rules: the dimension of rows in the results ----------------------------------------------------------


def _dropout(node: Node) -> int:
    if 2 in node.constants and node.list_of(2, "training_mode") != [0]:
        raise NotProvedError("draws random numbers")
    return node.only(0).axis


def _quantize(node: Node) -> int:
    rows = node.only(0)
    if any(math.prod(constant.shape) != 1 for constant in node.constants.values()):
        axis = node.attribute("axis", 1) % len(rows.shape)
        if any(len(constant.shape) > 1 for constant in node.constants.values()) or axis == rows.axis:
            raise NotProvedError("has parameters that differ between rows")
    return rows.axis


def _softmax(node: Node) -> int:
    rows = node.only(0)
    if standard_version(node.known.model) >= 13:
        return node.keep_off(rows, [node.attribute("axis", -1)])
    return node.keep_off(rows, _from(rows, node.attribute("axis", 1)))


def _from(rows: Rows, axis: int) -> range:
    return range(axis % len(rows.shape), len(rows.shape))


def _normalize(node: Node) -> int:
    rows = node.only(0)
    for constant in node.constants.values():
        node.check_same(constant, rows.axis - len(rows.shape) + len(constant.shape))
    return node.keep_off(rows, _from(rows, node.attribute("axis", -1)))


def _skip_normalize(node: Node) -> int:
    node.only(0, 1)
    return node.keep_off(Rows(node.result, node.aligned([0, 1])), [-1])


def _along_axis(node: Node) -> int:
    default = {"ArgMax": 0, "ArgMin": 0, "TopK": -1, "LpNormalization": -1}[node.proto.op_type]
    rows = node.only(0)
    axis = node.attribute("axis", default) % len(rows.shape)
    return _reduced(node, rows, [axis]) if "Arg" in node.proto.op_type else node.keep_off(rows, [axis])


def _reduce(node: Node) -> int:
    rows = node.only(0)
    axes = node.list_of(1, "axes")
    if not axes and node.attribute("noop_with_empty_axes", 0):
        return rows.axis
    return _reduced(node, rows, axes or list(range(len(rows.shape))))


def _reduced(node: Node, rows: Rows, axes: list[int]) -> int:
    axis = node.keep_off(rows, axes)
    if node.attribute("keepdims", 1):
        return axis
    return axis - sum(other % len(rows.shape) < axis for other in axes)


def _per_sample(node: Node) -> int:
    """Rule of operators whose first dimension is that of samples, each of which gives one sample."""
    node.keep_off(node.only(0), range(1, len(node.rows[0].shape)))
    if len([name for name in node.proto.output if name]) != 1 or node.attribute("training_mode", 0):
        raise NotProvedError("has results that depend on several samples")
    return 0


def _together(node: Node) -> int:
    """Rule of operators all of whose inputs have samples first, or none."""
    for rows in node.rows.values():
        if rows.axis:
            raise NotProvedError("works across the batch")
    sizes = {rows.shape[0] for rows in node.rows.values()}
    is_standard = node.proto.domain in STANDARD_DOMAINS
    if len(sizes) != 1 or not (is_standard or len(node.proto.output) == 1):
        raise NotProvedError("has different numbers of samples, or several results")
    if node.proto.op_type == "Attention" and is_standard and 3 in node.rows and len(node.rows[3].shape) < 4:
        raise NotProvedError("reads a mask of queries from rows")
    for constant in node.constants.values():
        if constant.shape and constant.shape[0] in sizes:
            node.check_same(constant, 0)
    return 0


def _resize(node: Node) -> int:
    axis = node.only(0).axis
    rows = node.rows[0]
    if node.result[axis] != rows.shape[axis] or node.attribute("coordinate_transformation_mode", b"") == (
        b"tf_crop_and_resize"
    ):
        raise NotProvedError("works across the batch")
    return axis


def _multiply(node: Node) -> int:
    first, second = (0, 3) if node.proto.op_type == "QLinearMatMul" else (0, 1)
    shapes = {
        index: (node.rows.get(index) or node.constants[index]).shape
        for index in (first, second)
        if index in node.rows or index in node.constants
    }
    if not set(node.rows) <= {first, second} or min(map(len, shapes.values())) < 2:
        raise NotProvedError("works across the batch")
    of_columns = (4, 5) if second == 3 else (3,)
    for index, constant in node.constants.items():
        if index not in (first, second, *of_columns) and math.prod(constant.shape) != 1:
            raise NotProvedError("has parameters that differ between rows")
    rank = len(node.result)
    places = set()
    for index, rows in node.rows.items():
        inner = -1 if index == first else -2
        node.keep_off(rows, [inner])
        places.add(rows.axis + rank - len(rows.shape))
    if len(places) != 1 or (len(node.rows) == 2 and places & {rank - 1, rank - 2}):
        raise NotProvedError("multiplies rows with rows")
    (axis,) = places
    if axis < rank - 2:
        for index in {first, second} & set(node.constants):
            node.check_same(node.constants[index], axis - rank + len(shapes[index]))
    return axis


def _gemm(node: Node) -> int:
    node.keep_off(node.only(0), [0 if node.attribute("transA", 0) else 1])
    if 2 in node.constants:
        node.check_same(node.constants[2], len(node.constants[2].shape) - 2)
    return 0


def _transpose(node: Node) -> int:
    rows = node.only(0)
    order = node.attribute("perm", list(reversed(range(len(rows.shape)))))
    return int(list(order).index(rows.axis))


def _reshape(node: Node) -> int:
    """Rule of operators that keep the order of elements: rows stay blocks of one dimension."""
    rows = node.only(0)
    before = math.prod(rows.shape[: rows.axis])
    product = 1
    for axis, size in enumerate(node.result):
        if product == before and size != 1:
            if size % node.known.batch:
                break
            return axis
        product *= size
    raise NotProvedError("does not keep rows apart")


def _concatenate(node: Node) -> int:
    axis = node.attribute("axis", 1) % len(node.result)
    places = {rows.axis for rows in node.rows.values()}
    if len(places) != 1 or axis in places:
        raise NotProvedError("works across the batch")
    for constant in node.constants.values():
        node.check_same(constant, min(places))
    return min(places)


def _slice(node: Node) -> int:
    rows = node.only(0)
    starts = node.list_of(1, "starts") or []
    axes = node.list_of(3, "axes") or list(range(len(starts)))
    steps = node.list_of(4, "steps") or [1] * len(starts)
    for axis, step in zip(axes, steps, strict=True):
        if axis % len(rows.shape) == rows.axis and (
            step != 1 or node.result[rows.axis] != rows.shape[rows.axis]
        ):
            raise NotProvedError("works across the batch")
    return rows.axis


def _pad(node: Node) -> int:
    rows = node.only(0)
    pads = node.list_of(1, "pads") or []
    axes = node.list_of(3, "axes") or list(range(len(rows.shape)))
    padded = [axis for index, axis in enumerate(axes) if pads[index] or pads[index + len(axes)]]
    return node.keep_off(rows, padded)


def _same_size(node: Node) -> int:
    rows = node.only(0)
    if len(node.result) != len(rows.shape) or node.result[rows.axis] != rows.shape[rows.axis]:
        raise NotProvedError("works across the batch")
    return rows.axis


def _gather(node: Node) -> int:
    if len(node.rows) != 1:
        raise NotProvedError("selects rows by numbers in rows")
    ((index, rows),) = node.rows.items()
    other = node.constants[1 - index].shape
    data = rows.shape if index == 0 else other
    axis = node.attribute("axis", 0) % len(data)
    if index == 1:
        return int(axis + rows.axis)
    node.keep_off(rows, [axis])
    return rows.axis if rows.axis < axis else rows.axis + len(other) - 1


def _gather_elements(node: Node) -> int:
    axes = {rows.axis for rows in node.rows.values()}
    shapes = [value.shape for values in (node.rows, node.constants) for value in values.values()]
    if len(axes) != 1 or len({shape[min(axes)] for shape in shapes}) != 1:
        raise NotProvedError("works across the batch")
    for constant in node.constants.values():
        node.check_same(constant, min(axes))
    return node.keep_off(node.rows[min(node.rows)], [node.attribute("axis", 0)])


def _one_hot(node: Node) -> int:
    rows = node.only(0)
    axis = node.attribute("axis", -1) % len(node.result)
    return rows.axis if rows.axis < axis else rows.axis + 1


def _einsum(node: Node) -> int:
    equation: str = node.attribute("equation", b"").decode().replace(" ", "")
    terms, arrow, result = equation.partition("->")
    labels = terms.split(",")
    if not arrow or "." in equation or not set(node.rows) <= set(range(len(labels))):
        raise NotProvedError("has an equation without a rule")
    found = {labels[index][rows.axis : rows.axis + 1] for index, rows in node.rows.items()}
    if len(found) != 1 or result.count(label := min(found)) != 1:
        raise NotProvedError("works across the batch")
    for index, term in enumerate(labels):
        if term.count(label) > 1 or (index in node.rows and label not in term):
            raise NotProvedError("works across the batch")
        if index in node.constants and label in term:
            node.check_same(node.constants[index], term.index(label))
    return result.index(label)


def _recurrent(node: Node) -> list[int]:
    is_batch_first = node.attribute("layout", 0)
    places = {0: 1 - is_batch_first, 4: 0, 5: 1 - is_batch_first, 6: 1 - is_batch_first}
    for index, rows in node.rows.items():
        if places.get(index) != rows.axis:
            raise NotProvedError("works across the batch")
    for index, constant in node.constants.items():
        if index in places:
            node.check_same(constant, places[index])
    return [0, 0, 0] if is_batch_first else [2, 1, 1]


Rule = Callable[[Node], int | list[int]]


def _rules(rule: Rule, names: str) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


DOMAINS: Final = STANDARD_DOMAINS | {"com.microsoft"}

#: inputs that only determine shapes; the dims of results are compared among batches
SHAPE_OPERANDS: Final = {"Reshape": (1,), "Expand": (1,), "Tile": (1,)}

RULES: Final[dict[str, Rule]] = {
    **_rules(
        Node.aligned,
        "Abs Acos Acosh Add And Asin Asinh Atan Atanh BiasGelu BitShift BitwiseAnd BitwiseNot BitwiseOr "
        "BitwiseXor Cast CastLike Ceil Celu Clip Cos Cosh Div Elu Equal Erf Exp FastGelu Floor Gelu "
        "Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual "
        "Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow QuickGelu Reciprocal Relu Round Selu Shrink "
        "Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor",
    ),
    **_rules(_quantize, "QuantizeLinear DequantizeLinear"),
    **_rules(_softmax, "Softmax LogSoftmax Hardmax"),
    **_rules(_normalize, "LayerNormalization RMSNormalization SimplifiedLayerNormalization"),
    **_rules(_skip_normalize, "SkipLayerNormalization SkipSimplifiedLayerNormalization"),
    **_rules(_along_axis, "ArgMax ArgMin TopK LpNormalization"),
    **_rules(
        _reduce,
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
        "ReduceSumSquare",
    ),
    **_rules(
        _per_sample,
        "AveragePool BatchNormalization Conv ConvInteger ConvTranspose DepthToSpace GlobalAveragePool "
        "GlobalLpPool GlobalMaxPool GroupNormalization InstanceNormalization LpPool LRN MaxPool QLinearConv "
        "SpaceToDepth",
    ),
    **_rules(_together, "Attention GridSample RotaryEmbedding MultiHeadAttention"),
    **_rules(_resize, "Resize Upsample"),
    **_rules(_multiply, "MatMul MatMulInteger QLinearMatMul"),
    **_rules(_reshape, "Reshape Flatten Squeeze Unsqueeze"),
    **_rules(_gather_elements, "GatherElements ScatterElements"),
    **_rules(_recurrent, "LSTM GRU RNN"),
    "Concat": _concatenate,
    "CumSum": lambda node: node.keep_off(node.only(0), node.list_of(1, "axis") or [0]),
    "Dropout": _dropout,
    "Einsum": _einsum,
    "Expand": lambda node: node.only(0).axis + len(node.result) - len(node.rows[0].shape),
    "Gather": _gather,
    "Gemm": _gemm,
    # The scales of weights in blocks belong to the weight.
    "MatMulNBits": lambda node: node.keep_off(node.only(0), [-1]),
    "OneHot": _one_hot,
    "Pad": _pad,
    "Slice": _slice,
    "Split": lambda node: node.keep_off(node.only(0), [node.attribute("axis", 0)]),
    "Tile": _same_size,
    "Transpose": _transpose,
    "Trilu": lambda node: node.keep_off(node.only(0), [-1, -2]),
}
