"""The observed values of a comparison: values of the user's model, and their places in the deployed graph.

The deployed graph contains every value of the model under its name, except values inside fused operations,
which round once at their end. Observers read a value only after its rounding. The engine does not fuse nodes
there, so observers do not change any bit of the program.
"""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import onnx

from qaic.compiler.calibration.collector import limiting_readers
from qaic.compiler.ir.constants.in_graph import constant_values, value_preserving_inputs
from qaic.compiler.ir.elem_types import BFLOAT16, FLOAT, FLOAT16
from qaic.compiler.ir.graph_walk import node_key, node_label, producers, standard
from qaic.compiler.ir.inlined_names import InlinedNames
from qaic.compiler.ir.model import Context, Model
from qaic.compiler.ir.precision import INTEGERS, ROUNDED, PrecisionClass, parameter_outputs
from qaic.compiler.ir.quantization import VALUE_PRESERVING, QuantParams

#: operators of the deployed graph that round a value
_ROUNDING: Final = ("Cast", "DequantizeLinear")
#: operators whose results have one channel for each entry of their second dimension
_CHANNELS_FIRST: Final = frozenset(
    {
        *("Conv", "ConvTranspose", "BatchNormalization", "InstanceNormalization", "MaxPool", "AveragePool"),
        *("GlobalAveragePool", "GlobalMaxPool", "PRelu"),
    }
)


class Kind(enum.Enum):
    """Computation of a value of the model in the deployed program."""

    #: rounded, or computed from rounded weights
    ROUNDED = "rounded"
    #: selected from rounded values
    MOVED = "moved"
    #: as in the reference
    FLOAT = "float"


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """A node of the user's model, or several that round once, known by the first output of the last."""

    #: The result in the expanded graph.
    value: str
    #: Its name in the user's model; for a value in a function body, after the path of the call.
    name: str
    #: Names of all nodes that are fused with it, and its own, as in profiles.
    nodes: str
    #: Operator.
    op_type: str
    #: Operators of all nodes that are fused with it, and its own.
    operators: frozenset[str]
    #: Precision of the computation.
    precision: PrecisionClass
    #: Computation in the deployed program.
    kind: Kind
    #: Observed values and model inputs from which it is computed.
    inputs: tuple[str, ...]
    #: Names of the results inside its fused operation.
    fused: tuple[str, ...]
    #: Names with which a node precision file keeps all of them; a name in a function body means that
    #: value in every call.
    kept_by: tuple[str, ...]
    #: Shape of the result; -1 for a size that differs between sets of shapes, None if the rank is not known.
    shape: tuple[int, ...] | None
    #: Dimension of the channels; None if there are none.
    channel_axis: int | None
    #: Parameters of its integer form.
    params: QuantParams | None
    #: Relu and Clip nodes, one after the other, that cut the result before any other node reads it.
    limiters: tuple[onnx.NodeProto, ...]
    #: True if an observer may read it in the deployed graph.
    is_read_directly: bool

    @property
    def size(self) -> int | None:
        """Number of elements of the result; None if it differs between runs."""
        return None if self.shape is None or min(self.shape, default=0) < 0 else math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Twin:
    """Parts of the instrumented model that are visible from outside."""

    #: Observed nodes; the rows of the output of sums have the same order.
    nodes: tuple[ObservedNode, ...] = ()
    #: Inputs of the program.
    inputs: tuple[str, ...] = ()
    #: Outputs of the program.
    outputs: tuple[str, ...] = ()
    #: Inputs of the observers only.
    added_inputs: tuple[str, ...] = ()
    #: Elements of the value of each node after its sums: those of the reference, then as many of
    #: the deployed program.
    elements: tuple[int, ...] = ()
    #: Numbers of results that are not observed: inside fused operations, and constants or other types.
    fused: int = 0
    others: int = 0


def observed_nodes(
    reference: Model, deployed: Model, context: Context, folded: Mapping[str, str]
) -> tuple[list[ObservedNode], int]:
    """List the nodes that can be observed, in the order of the graph, and count results in fused operations.

    `reference` is the float graph, and `deployed` is the same graph after rounding or quantization;
    `context` has the decisions about its nodes. `folded` maps results of convolutions with a fused
    normalization to the original results of the convolutions.
    """
    graph = reference.proto.graph
    facts = reference.facts
    makers = {name: node for node in deployed.proto.graph.node for name in node.output if name}
    outputs = {value.name for value in deployed.proto.graph.output}
    unseen = facts.transparent | constant_values(graph, reference.weights)
    params = {} if context.quantization is None else context.quantization.values()
    picks = value_preserving_inputs(facts.types)
    limiting = limiting_readers(graph, reference.constants())
    made = producers(graph.node)
    # The device decodes these constants from blocks.
    narrow = {name for name, weight in deployed.weights.items() if weight.blocks is not None}
    found: list[ObservedNode] = []
    #: value -> the value observed in its place
    sources: dict[str, tuple[str, ...]] = {value.name: (value.name,) for value in graph.input}
    #: value inside a fused operation -> the values of the operation before it
    inner: dict[str, tuple[str, ...]] = {}
    titles = _Titles(facts.original, context.names)
    for node in graph.node:
        key = node_key(node)
        precision = context.plan.classes.get(key, PrecisionClass.FP32)
        read = tuple(dict.fromkeys(source for name in node.input for source in sources.get(name, ())))
        fused = tuple(dict.fromkeys(part for name in node.input for part in inner.get(name, ())))
        for position, name in enumerate(node.output):
            if not name:
                continue
            sources[name] = read
            if name in unseen or facts.types.get(name) != FLOAT or position in parameter_outputs(node):
                continue
            taken = (folded[name],) if name in folded else ()
            maker = makers.get(name)
            behind = maker is not None and (standard(maker, *_ROUNDING) or maker.op_type in _ROUNDING)
            is_direct = maker is not None and (behind or name in outputs)
            float_format = FLOAT16 if precision is PrecisionClass.FP16 else BFLOAT16
            moves = precision in ROUNDED and picks(node, float_format) is not None
            if precision in INTEGERS and node.op_type in VALUE_PRESERVING:
                # Integers with the parameters of the operand are not rounded again.
                moves = name in params and params[name] == params.get(node.input[0])
            rounds = precision in INTEGERS or (
                precision in ROUNDED
                and (key in context.plan.requested or facts.narrow.get(name, 0) == float_format)
            )
            if maker is None or (rounds and not moves and not is_direct):
                inner[name] = (*fused, *taken, name)
                continue
            if rounds and behind and not (moves and precision in INTEGERS):
                kind = Kind.ROUNDED
            elif rounds:
                kind = Kind.MOVED
            elif any(part in narrow for part in maker.input):
                kind = Kind.ROUNDED
            else:
                kind = Kind.FLOAT
            sources[name] = (name,)
            shape = facts.shapes.get(name)
            parts = tuple(dict.fromkeys((*fused, *taken, name)))
            joined = [made[part] for part in parts if part in made]
            found.append(
                ObservedNode(
                    value=name,
                    name=titles[name][0],
                    nodes=" + ".join(dict.fromkeys(map(node_label, joined))),
                    op_type=node.op_type,
                    operators=frozenset(part.op_type for part in joined),
                    precision=precision,
                    kind=kind,
                    inputs=read,
                    fused=tuple(titles[part][0] for part in (*fused, *taken)),
                    kept_by=tuple(dict.fromkeys(titles[part][1] for part in parts)),
                    shape=shape,
                    channel_axis=_channel_axis(node, shape),
                    params=params.get(name),
                    limiters=_limiters(name, limiting),
                    is_read_directly=is_direct,
                )
            )
    return found, len(inner)


def _limiters(value: str, limiting: Mapping[str, onnx.NodeProto]) -> tuple[onnx.NodeProto, ...]:
    """Return the chain of limiting nodes that reads a value."""
    found: list[onnx.NodeProto] = []
    while value in limiting:
        found.append(limiting[value])
        value = limiting[value].output[0]
    return tuple(found)


class _Titles(dict[str, tuple[str, str]]):
    """Maps values of the graph to their names for people and for node precision files."""

    def __init__(self, original: Mapping[str, str], names: InlinedNames | None) -> None:
        super().__init__()
        self._original, self._names = original, names

    def __missing__(self, value: str) -> tuple[str, str]:
        name = self._original.get(value, value)
        place = None if self._names is None else self._names.in_body(name)
        title = (name, name) if place is None else ("/".join(place), place[1])
        self[value] = title
        return title


def _channel_axis(node: onnx.NodeProto, shape: tuple[int, ...] | None) -> int | None:
    if shape is None or len(shape) < 2:
        return None
    axis = 1 if len(shape) > 3 or node.op_type in _CHANNELS_FIRST else len(shape) - 1
    return axis if shape[axis] > 2 else None
