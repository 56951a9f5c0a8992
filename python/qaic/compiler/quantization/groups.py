"""Nodes that are quantized as one: an operator, what is added to its result, and the bounds on that.

What lies inside a unit is never rounded, as in the fused units of the card. Quantizing is
monotone, so bounds can be applied to the stored integers instead of the real numbers; where they are the
bounds of the integers themselves, nothing is left to do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qaic.compiler.ir.constant_propagation import node_key
from qaic.compiler.ir.graph_walk import subgraphs, uses
from qaic.compiler.ir.op_types import SAME_PARAMETERS, WEIGHTED
from qaic.compiler.ir.precision import INTEGERS, PrecisionClass
from qaic.compiler.ir.precision_ops import standard
from qaic.compiler.quantization.patterns import Composites

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import onnx

    from qaic.compiler.ir.constants import Constants
    from qaic.compiler.ir.value_info import ValueFacts


#: operators of one operand that are no functions of each of its elements
HEADS = WEIGHTED | {"AveragePool", "Concat", "GlobalAveragePool", "Pad", "ReduceMean", "Resize", "Softmax"}


@dataclass(slots=True)
class Unit:
    """A node with what was joined to it."""

    node: onnx.NodeProto
    #: the result of the unit, if it has one result only
    output: str
    #: Add, Sub, Mul and Div with constants that follow a product with a constant weight, in order
    affine: list[tuple[str, str]] = field(default_factory=list)
    #: bounds on the result, in the order they are applied
    bounds: list[tuple[float, float]] = field(default_factory=list)
    #: the nodes of a function that is written out; `node` is the last of them
    inner: tuple[onnx.NodeProto, ...] = ()
    #: nodes of the normalization that it is part of, which stays in float
    in_float: tuple[onnx.NodeProto, ...] = ()


def find_units(
    graph: onnx.GraphProto,
    classes: dict[str, PrecisionClass],
    constants: Constants,
    facts: ValueFacts,
    profiled: Callable[[str], bool],
) -> Iterator[Unit]:
    """Group the nodes of a graph, in order; every node is in exactly one unit.

    Parameters
    ----------
    graph : onnx.GraphProto
        Main graph in topological order.
    classes : dict[str, PrecisionClass]
        Class of each node by its first output.
    constants : Constants
        Constants of the graph.
    facts : ValueFacts
        Types and shapes.
    profiled : callable
        Whether a tensor has a profile; a unit whose result has none could not be quantized.
    """
    joining = _Joining(graph, classes, constants, facts, profiled)
    units: dict[str, Unit] = {}
    # Products come first: what can be done by their weight and bias costs nothing.
    for node in graph.node:
        if node_key(node) not in joining.absorbed and joining.is_head(node):
            units[node_key(node)] = joining.join(node)
    composites = Composites(graph, constants, facts, classes, taken=set(joining.absorbed), profiled=profiled)
    for composite in composites.find():
        if composite.is_quantized:
            *before, last = composite.nodes
            units[node_key(last)] = Unit(last, node_key(last), inner=composite.nodes)
            joining.absorbed.update(node_key(node) for node in before)
        else:
            units.update(
                (node_key(n), Unit(n, node_key(n), in_float=composite.nodes)) for n in composite.nodes
            )
    for node in graph.node:
        key = node_key(node)
        if key in joining.absorbed:
            continue
        yield units[key] if key in units else joining.join(node)


class _Joining:
    """Joins to a node what follows it."""

    def __init__(
        self,
        graph: onnx.GraphProto,
        classes: dict[str, PrecisionClass],
        constants: Constants,
        facts: ValueFacts,
        profiled: Callable[[str], bool],
    ) -> None:
        self.classes, self.constants, self.facts, self.profiled = classes, constants, facts, profiled
        self.count = uses(graph)
        self.outputs = {value.name for value in graph.output}
        self.readers = {name: node for node in graph.node for name in node.input}
        #: nodes that were joined to another, by first output
        self.absorbed: set[str] = set()

    def is_head(self, node: onnx.NodeProto) -> bool:
        """Whether a node is no function of one value, so that what follows can only be joined to it."""
        operands = {name for name in node.input if name and name not in self.constants}
        return len(operands) > 1 or node.op_type in HEADS

    def join(self, node: onnx.NodeProto) -> Unit:
        """Make the unit of a node."""
        unit = Unit(node, node_key(node))
        kind = self.classes.get(unit.output)
        if kind not in INTEGERS or node.op_type in SAME_PARAMETERS or any(subgraphs(node)):
            return unit
        while (
            self.count[unit.output] == 1 and unit.output not in self.outputs and unit.output in self.readers
        ):
            reader = self.readers[unit.output]
            key = node_key(reader)
            if self.classes.get(key) is not kind or not self.profiled(key) or key in self.absorbed:
                break
            if not self._joins(unit, reader):
                break
            unit.output = key
            self.absorbed.add(key)
        return unit

    def _joins(self, unit: Unit, reader: onnx.NodeProto) -> bool:
        """Take the reader of a unit's result into the unit if it belongs there."""
        if standard(reader, "Add", "Mul", "Sub", "Div"):
            first = reader.input[0] == unit.output
            other = reader.input[1] if first else reader.input[0]
            if unit.bounds or not (first or reader.op_type in {"Add", "Mul"}):
                return False
            if not _is_bias(unit, other, self.constants, self.facts):
                return False
            if reader.op_type == "Div" and not self.constants.read(other).all():
                return False
            unit.affine.append((reader.op_type, other))
            return True
        bounds = _bounds(reader, self.constants) if reader.input[0] == unit.output else None
        if bounds is None:
            return False
        unit.bounds.append(bounds)
        return True


def _is_bias(unit: Unit, name: str, constants: Constants, facts: ValueFacts) -> bool:
    """Whether a constant is one number per output channel of a unit with constant weight, or one for all."""
    node = unit.node
    if not standard(node, "Conv", "Gemm", "MatMul") or not constants.is_float(name):
        return False
    if not constants.is_float(node.input[1]):
        return False
    if len(node.input) > 2 and node.input[2] and not constants.is_float(node.input[2]):
        return False
    bias, shape = constants.describe(name), facts.shapes.get(node.output[0])
    if bias is None or shape is None or len(bias.dims) > len(shape):
        return False
    if node.op_type == "MatMul":
        weight = constants.describe(node.input[1])
        if weight is None or len(weight.dims) != 2 or shape.count(-1) > 1:
            return False
    axis = 1 if node.op_type == "Conv" else len(shape) - 1
    padded = (1,) * (len(shape) - len(bias.dims)) + bias.dims
    return shape[axis] > 0 and all(
        size == 1 or (position == axis and size == shape[axis]) for position, size in enumerate(padded)
    )


def _bounds(node: onnx.NodeProto, constants: Constants) -> tuple[float, float] | None:
    """Read the bounds of a Relu or a Clip; None for other nodes and for bounds that are computed."""
    if standard(node, "Relu"):
        return 0.0, math.inf
    if not standard(node, "Clip"):
        return None
    low = next((a.f for a in node.attribute if a.name == "min"), -math.inf)
    high = next((a.f for a in node.attribute if a.name == "max"), math.inf)
    values = [low, high]
    for position, name in enumerate(node.input[1:3]):
        if not name:
            continue
        if not constants.is_float(name):
            return None
        values[position] = float(constants.read(name).reshape(-1)[0])
    low, high = values
    return None if math.isnan(low) or math.isnan(high) or low > high else (low, high)
