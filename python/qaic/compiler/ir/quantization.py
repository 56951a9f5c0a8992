"""Ranges of tensors, quantizable operators, and the plan of changes, made before any node is written."""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from numpy.typing import NDArray

from qaic.compiler.ir.elem_types import INT16, UINT8
from qaic.compiler.ir.graph_walk import STANDARD_DOMAINS, attribute_of, node_key
from qaic.compiler.ir.precision import FloatReason

#: difference between an int8 number and its uint8 form
UNSIGNED_SHIFT: Final = 128


@dataclass(frozen=True, slots=True)
class QuantParams:
    """Quantization of a tensor of activations: real = scale x (q - offset), q of a signed type.

    The engine's fast kernels on x86 require unsigned activations with signed weights, so int8 is stored as
    uint8, shifted by 128.
    """

    scale: float
    offset: int
    precision: str

    @property
    def elem_type(self) -> int:
        """Element type of the stored integers."""
        return UINT8 if self.precision == "Int8" else INT16

    @property
    def zero_point(self) -> int:
        """The stored integer that means zero."""
        return self.offset + (UNSIGNED_SHIFT if self.precision == "Int8" else 0)

    @property
    def limits(self) -> tuple[int, int]:
        """Smallest and largest stored integer."""
        return (0, 255) if self.precision == "Int8" else (-32768, 32767)

    def store(self, value: float) -> int:
        """Quantize one number like the engine, and return the stored integer."""
        low, high = self.limits
        level = float(np.float32(value) / np.float32(self.scale))
        return high if level >= high else low if level <= low - high else self._clip(round(level))

    def _clip(self, level: int) -> int:
        low, high = self.limits
        return max(low, min(high, level + self.zero_point))


@dataclass(slots=True)
class Group:
    """A node and the nodes that were joined to it."""

    node: onnx.NodeProto
    #: the result of the group, if it has only one
    output: str
    #: Add, Sub, Mul and Div with constants that follow a product with a constant weight, in order
    affine: list[tuple[str, str]] = field(default_factory=list)
    #: bounds on the result, in the order they are applied
    bounds: list[tuple[float, float]] = field(default_factory=list)
    #: the nodes that were joined to `node`, in the order of the graph
    joined: list[onnx.NodeProto] = field(default_factory=list)
    #: the nodes of a function made of several operators; `node` is the last of them
    function: tuple[onnx.NodeProto, ...] = ()
    #: nodes of the normalization that the node is part of, which stays in floating point
    normalization: tuple[onnx.NodeProto, ...] = ()

    @property
    def nodes(self) -> tuple[onnx.NodeProto, ...]:
        """All nodes of the group, in the order of the graph."""
        return (*(self.function or (self.node,)), *self.joined)


class Scheme(enum.Enum):
    """Method by which a group computes; the value is its name in reports."""

    #: the operator reads and writes dequantized values; the engine fuses DQ, operator and Q into one kernel
    DEQUANTIZED = "between Q and DQ"
    #: like DEQUANTIZED, and results have the parameters of the operand
    SAME_PARAMETERS = "between Q and DQ, same parameters"
    #: the operator moves the integers themselves, and results have the parameters of the operand
    INTEGERS = "on integers"
    #: the operator moves the integers of several operands, all with the parameters of its result
    EQUAL_INTEGERS = "on integers, equal parameters"
    #: the operator has a constant weight and bias with parameters of their own
    KERNEL = "integer kernel"
    #: rows of a constant table have a scale each
    ROWWISE = "row-wise embedding"
    #: several operators compute one function in floating point, between a DQ and a Q
    FUNCTION = "function between Q and DQ"


@dataclass(frozen=True, slots=True)
class QuantizedBias:
    """A stored bias: int32 values with their scales, and the resulting scales of the weight."""

    values: npt.NDArray[np.int32]
    scales: npt.NDArray[np.float32]
    weight_scales: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PlannedWeight:
    """Parameters of the constant weight of a group."""

    name: str
    scales: npt.NDArray[np.float32]
    #: offset of all channels, as a signed integer
    offset: int
    #: axis of the scales, None if the whole weight has one scale
    axis: int | None
    #: one factor per output channel, multiplied into the weight before quantization
    factors: npt.NDArray[np.float32] | None
    #: axis of the output channels; None if they are not one axis
    channel_axis: int | None
    bias: QuantizedBias | None

    @property
    def stored_scales(self) -> npt.NDArray[np.float32]:
        """Scales of the stored weight; a bias may require larger scales than were chosen."""
        return self.scales if self.bias is None else self.bias.weight_scales


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """Parameters of a constant table of gathered rows: value = step x number + smallest value of the row."""

    name: str
    steps: npt.NDArray[np.float32]
    lows: npt.NDArray[np.float32]


@dataclass(slots=True)
class QuantizedGroup:
    """A group that computes on integers."""

    group: Group
    #: ``Int8`` or ``Int16``
    precision: str
    scheme: Scheme
    #: parameters of operands, including constants, without weights and biases
    operands: dict[str, QuantParams] = field(default_factory=dict)
    #: parameters of the results
    results: dict[str, QuantParams] = field(default_factory=dict)
    weight: PlannedWeight | None = None
    table: PlannedTable | None = None
    #: operands that all readers must share, so that the engine recognizes the function
    shared: tuple[str, ...] = ()


@dataclass(slots=True)
class FloatNodes:
    """Nodes that do not change."""

    nodes: tuple[onnx.NodeProto, ...]
    reason: FloatReason
    #: dequantized operands that all their readers must share
    shared: tuple[str, ...] = ()
    #: the readers of the shared operands
    readers: tuple[onnx.NodeProto, ...] = ()


@dataclass(slots=True)
class QuantizationPlan:
    """The decision about every node of a graph, in the order of the main graph."""

    entries: list[QuantizedGroup | FloatNodes] = field(default_factory=list)
    #: nodes of nested graphs, which do not change
    nested: list[FloatNodes] = field(default_factory=list)
    #: values stored as integers that are constants of the graph
    constants: set[str] = field(default_factory=set)
    #: parameters from ranges alone, for values of quantizable nodes with known ranges
    ranges: dict[str, QuantParams] = field(default_factory=dict)
    #: precision of nodes that options put in a float precision, by first output
    chosen_floats: dict[str, str] = field(default_factory=dict)

    def groups(self) -> Iterator[QuantizedGroup]:
        """Yield the groups that compute on integers."""
        for entry in self.entries:
            if isinstance(entry, QuantizedGroup):
                yield entry

    def floats(self) -> Iterator[FloatNodes]:
        """Yield the other nodes, those of nested graphs at the end."""
        for entry in self.entries:
            if isinstance(entry, FloatNodes):
                yield entry
        yield from self.nested

    def reasons(self) -> dict[str, FloatReason]:
        """Map the unchanged nodes, by first output, to the reason."""
        return {node_key(node): entry.reason for entry in self.floats() for node in entry.nodes}

    def values(self) -> dict[str, QuantParams]:
        """Map every value and constant that is stored as integers to its parameters, weights apart."""
        found: dict[str, QuantParams] = {}
        for group in self.groups():
            found |= group.operands | group.results
        return found


@dataclass(frozen=True, slots=True, eq=False)
class TensorProfile:
    """Values of one tensor."""

    #: smallest and largest value that was measured, or that fixed parameters represent
    minimum: float
    maximum: float
    #: float32 counts in equal bins over [minimum, maximum]; None where there are none
    histogram: NDArray[np.float32] | None = None
    #: parameters that a file fixed for the whole tensor: real = scale * (q - offset), q signed; both or
    #: neither
    scale: float | None = None
    offset: int | None = None
    #: float32 and int32 parameters that a file fixed for each channel of a constant; both or neither
    channel_scales: NDArray[np.float32] | None = None
    channel_offsets: NDArray[np.int32] | None = None
    #: axis of these channels in the constant, negative from the end; None if the file does not state it
    channel_axis: int | None = None
    #: width of q if the parameters are fixed
    bits: int = 8

    def __eq__(self, other: object) -> bool:
        """Compare by content."""
        return isinstance(other, TensorProfile) and all(
            np.array_equal(getattr(self, name), getattr(other, name))
            if isinstance(getattr(self, name), np.ndarray)
            else getattr(self, name) is getattr(other, name) or getattr(self, name) == getattr(other, name)
            for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]  # holds arrays

    @property
    def is_fixed(self) -> bool:
        """True if a file fixed the parameters, so that neither schema nor calibration decides."""
        return self.scale is not None or self.channel_scales is not None


@dataclass(frozen=True, slots=True, eq=False)
class CalibrationExample:
    """The first sample of a calibration, and the outputs of the float graph."""

    inputs: Mapping[str, NDArray[Any]]
    #: outputs with floats for these inputs
    outputs: Mapping[str, NDArray[Any]]
    #: largest mean square of each of these outputs, for any sample
    powers: Mapping[str, float]


@dataclass(slots=True)
class CalibrationProfile:
    """Values of the tensors of one model."""

    #: profiles by the tensors' names in the float graph; constants only with fixed parameters
    tensors: dict[str, TensorProfile] = field(default_factory=dict)
    #: 64-bit hash of the graph the values belong to
    graph_hash: int = 0
    #: tensors whose producers a file keeps in float16 or float32, as ``"fp16"`` or ``"fp32"``
    precisions: dict[str, str] = field(default_factory=dict)
    #: None if the profile comes from a file
    example: CalibrationExample | None = field(default=None, compare=False)


#: operators that only select, move or repeat values: their output has the scale and offset of their input;
#: Split counts as several Slices
VALUE_PRESERVING: Final = frozenset(
    {
        *("DepthToSpace", "Expand", "Flatten", "Gather", "LRN", "MaxPool", "Reshape", "Slice"),
        *("SpaceToDepth", "Split", "Squeeze", "Tile", "TopK", "Transpose", "Unsqueeze"),
    }
)

#: operators that compute, or choose between operands of different scales
_COMPUTING: Final = frozenset(
    {
        *("Add", "AveragePool", "Clip", "Concat", "Conv", "ConvTranspose", "Div", "Erf", "Gelu", "Gemm"),
        *("GlobalAveragePool", "HardSigmoid", "HardSwish", "LeakyRelu", "MatMul", "Max", "Min", "Mul"),
        *("PRelu", "Pad", "ReduceMean", "Relu", "Resize", "Sigmoid", "Softmax", "Sub", "Tanh"),
    }
)

#: operators of the standard set that can be quantized
QUANTIZABLE: Final = VALUE_PRESERVING | _COMPUTING

#: quantizable operators of other domains
_OTHER_DOMAINS: Final = frozenset({("com.microsoft", "Gelu")})

#: operators with a weight and a bias, which have separate rules
WEIGHTED: Final = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})

#: operators whose inputs are all operands; for others, only the first input is one
_ALL_INPUTS: Final = frozenset({"Add", "Concat", "Div", "Max", "Min", "Mul", "PRelu", "Sub"})

#: operators whose outputs are all values; for others, only the first output is one
_ALL_OUTPUTS: Final = frozenset({"Split"})


@dataclass(frozen=True, slots=True)
class IntegerKernel:
    """Operator set from which the engine runs an operator on integers."""

    uint8: int
    #: None if it has no such kernel
    int16: int | None = None


#: operators that every accepted engine runs on integers if input and output have the same parameters;
#: onnxruntime 1.22 has no such kernels for TopK and SpaceToDepth
INTEGER_KERNELS: Final[dict[str, IntegerKernel]] = {
    "Concat": IntegerKernel(4, 4),
    "DepthToSpace": IntegerKernel(11),
    "Expand": IntegerKernel(8, 8),
    "Flatten": IntegerKernel(9, 9),
    "Gather": IntegerKernel(1, 1),
    "MaxPool": IntegerKernel(12),
    "Pad": IntegerKernel(11),
    "Reshape": IntegerKernel(5, 5),
    "Resize": IntegerKernel(10),
    "Slice": IntegerKernel(1, 1),
    "Split": IntegerKernel(2, 2),
    "Squeeze": IntegerKernel(1, 1),
    "Tile": IntegerKernel(6, 6),
    "Transpose": IntegerKernel(1, 1),
    "Unsqueeze": IntegerKernel(1, 1),
}


def quantizable(node: onnx.NodeProto) -> bool:
    """Return True if the operator and the attributes of a node have an integer kernel."""
    if node.domain in STANDARD_DOMAINS:
        return node.op_type in QUANTIZABLE and not (node.op_type == "AveragePool" and _is_float_pool(node))
    return (node.domain, node.op_type) in _OTHER_DOMAINS


def _is_float_pool(node: onnx.NodeProto) -> bool:
    """Return True if the engine's integer kernel cannot compute an AveragePool.

    The kernel has no dilations, and counts positions of a rounded-up window beyond the padding.
    """
    if any(step != 1 for step in attribute_of(node, "dilations", [1])):
        return True
    return all(attribute_of(node, name, 0) for name in ("ceil_mode", "count_include_pad"))


def operands(node: onnx.NodeProto) -> tuple[int, ...]:
    """Return the positions of the quantized inputs, with weights and biases, without bounds and sizes."""
    if node.op_type in _ALL_INPUTS or node.op_type in WEIGHTED:
        return tuple(position for position, name in enumerate(node.input) if name)
    return (0,) if node.input and node.input[0] else ()


def results(node: onnx.NodeProto) -> tuple[int, ...]:
    """Return the positions of the quantized outputs, without indices and masks."""
    if node.op_type in _ALL_OUTPUTS:
        return tuple(position for position, name in enumerate(node.output) if name)
    return (0,) if node.output and node.output[0] else ()
