"""Changes that quantizing makes to a graph, decided before a node is written.

A plan has every node of the graph once: in a group that computes on integers, with the parameters of
everything the group reads and makes, or outside of them, with the reason.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx

from qaic.compiler.ir.constants.propagation import node_key
from qaic.compiler.ir.precision import FloatReason
from qaic.compiler.ir.quantization.quant_params import QuantParams


@dataclass(slots=True)
class Group:
    """A node with what was joined to it."""

    node: onnx.NodeProto
    #: the result of the group, if it has one result only
    output: str
    #: Add, Sub, Mul and Div with constants that follow a product with a constant weight, in order
    affine: list[tuple[str, str]] = field(default_factory=list)
    #: bounds on the result, in the order they are applied
    bounds: list[tuple[float, float]] = field(default_factory=list)
    #: the nodes that were joined to `node`, in the order of the graph
    joined: list[onnx.NodeProto] = field(default_factory=list)
    #: the nodes of a function that is written out; `node` is the last of them
    function: tuple[onnx.NodeProto, ...] = ()
    #: nodes of the normalization that it is part of, which stays in float
    normalization: tuple[onnx.NodeProto, ...] = ()

    @property
    def nodes(self) -> tuple[onnx.NodeProto, ...]:
        """All nodes of the group, in the order of the graph."""
        return self.function or (self.node, *self.joined)


class Scheme(enum.Enum):
    """How a group computes; the value is the name in reports."""

    #: the operator reads and makes dequantized values; the engine fuses what lies between into one kernel
    DEQUANTIZED = "between Q and DQ"
    #: the same, and results have the parameters of the operand
    SAME_PARAMETERS = "between Q and DQ, same parameters"
    #: the operator moves the integers themselves, and results have the parameters of the operand
    INTEGERS = "on integers"
    #: the operator moves the integers of several operands, all with the parameters of its result
    EQUAL_INTEGERS = "on integers, equal parameters"
    #: the operator has a constant weight and bias with parameters of their own
    KERNEL = "integer kernel"
    #: rows of a constant table have a scale each
    ROWWISE = "row-wise embedding"
    #: several operators compute one function in float, between a DQ and a Q
    FUNCTION = "function between Q and DQ"


@dataclass(frozen=True, slots=True)
class QuantizedBias:
    """A stored bias: int32 numbers with their scales, and the scales that the weight has now."""

    values: npt.NDArray[np.int32]
    scales: npt.NDArray[np.float32]
    weight_scales: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PlannedWeight:
    """Parameters of the constant weight of a group."""

    name: str
    scales: npt.NDArray[np.float32]
    #: of all channels, in the signed view
    offset: int
    #: axis of the scales, None where one is for the whole weight
    axis: int | None
    #: one factor per output channel, multiplied into the weight before it is quantized
    factors: npt.NDArray[np.float32] | None
    #: axis of the output channels, None where they are not one axis
    channel_axis: int | None
    bias: QuantizedBias | None

    @property
    def stored_scales(self) -> npt.NDArray[np.float32]:
        """The scales that the weight is stored with; a bias may need larger ones than were chosen."""
        return self.scales if self.bias is None else self.bias.weight_scales


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """Parameters of a constant table whose rows are gathered: value = step x number + smallest of the row."""

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
    #: parameters of what the group reads, constants included, weights and biases not
    operands: dict[str, QuantParams] = field(default_factory=dict)
    #: parameters of what it makes
    results: dict[str, QuantParams] = field(default_factory=dict)
    weight: PlannedWeight | None = None
    table: PlannedTable | None = None
    #: the operand that has to be one value to all its readers for the engine to see the function
    shared: tuple[str, ...] = ()


@dataclass(slots=True)
class FloatNodes:
    """Nodes that stay as they are."""

    nodes: tuple[onnx.NodeProto, ...]
    reason: FloatReason
    #: dequantized operands that have to be one value to all their readers
    shared: tuple[str, ...] = ()
    #: these readers
    readers: tuple[onnx.NodeProto, ...] = ()


@dataclass(slots=True)
class QuantizationPlan:
    """The decision about every node of a graph, in the order of the main graph."""

    entries: list[QuantizedGroup | FloatNodes] = field(default_factory=list)
    #: nodes of nested graphs, which stay as they are
    nested: list[FloatNodes] = field(default_factory=list)
    #: values stored as integers that are constants of the graph
    constants: set[str] = field(default_factory=set)
    #: what the values of nodes that could be quantized need by their ranges alone, as far as these are known
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
        """Map the nodes that stay as they are, by first output, to the reason."""
        return {node_key(node): entry.reason for entry in self.floats() for node in entry.nodes}

    def values(self) -> dict[str, QuantParams]:
        """Map every value and constant that is stored as integers to its parameters, weights apart."""
        found: dict[str, QuantParams] = {}
        for group in self.groups():
            found |= group.operands | group.results
        return found
