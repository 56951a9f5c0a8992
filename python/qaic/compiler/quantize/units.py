"""Nodes that are quantized as one: an operator, what is added to its result, and the bounds on that.

What lies inside a unit is never rounded, as in the fused units of compile-options §5.2. Quantizing is
monotone, so bounds can be applied to the stored integers instead of the real numbers; where they are the
bounds of the integers themselves, nothing is left to do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qaic.compiler.constness import node_key
from qaic.compiler.graph_walk import subgraphs, uses
from qaic.compiler.precision_classes import PrecisionClass
from qaic.compiler.precision_ops import standard
from qaic.compiler.quantize.kinds import SAME_PARAMETERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import onnx

    from qaic.compiler.constants import Constants
    from qaic.compiler.value_types import ValueFacts

#: classes that are computed on integers
INTEGERS = frozenset({PrecisionClass.INT8, PrecisionClass.INT16})


@dataclass(slots=True)
class Unit:
    """A node with what was joined to it."""

    node: onnx.NodeProto
    #: the result of the unit, if it has one result only
    output: str
    #: constants that are added to the result, one number per channel or one for all
    biases: list[str] = field(default_factory=list)
    #: bounds on the result, in the order they are applied
    bounds: list[tuple[float, float]] = field(default_factory=list)


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
    count = uses(graph)
    readers: dict[str, onnx.NodeProto] = {}
    for node in graph.node:
        for name in node.input:
            readers[name] = node
    outputs = {value.name for value in graph.output}
    absorbed: set[str] = set()
    for node in graph.node:
        key = node_key(node)
        if key in absorbed:
            continue
        unit = Unit(node, key)
        kind = classes.get(key)
        if kind in INTEGERS and node.op_type not in SAME_PARAMETERS and not any(subgraphs(node)):
            while count[unit.output] == 1 and unit.output not in outputs and unit.output in readers:
                reader = readers[unit.output]
                if classes.get(node_key(reader)) is not kind or not profiled(node_key(reader)):
                    break
                if not _joins(unit, reader, constants, facts):
                    break
                unit.output = reader.output[0]
                absorbed.add(unit.output)
        yield unit


def _joins(unit: Unit, reader: onnx.NodeProto, constants: Constants, facts: ValueFacts) -> bool:
    """Take the reader of a unit's result into the unit if it belongs there."""
    if standard(reader, "Add"):
        bias = reader.input[1] if reader.input[0] == unit.output else reader.input[0]
        if unit.bounds or not _is_bias(unit, bias, constants, facts):
            return False
        unit.biases.append(bias)
        return True
    bounds = _bounds(reader, constants) if reader.input[0] == unit.output else None
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
