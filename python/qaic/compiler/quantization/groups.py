"""Groups of nodes that are quantized as one: an operator, an addition to its result, and its bounds.

Values inside a group are never rounded, as in the fused units of the card. Quantizing is
monotone, so bounds can be applied to the stored integers instead of the real numbers; where they are the
bounds of the integers themselves, nothing is left to do.
"""

import math
from collections.abc import Iterator

import onnx

from qaic.compiler.ir.constants.propagation import ConstantReader, node_key
from qaic.compiler.ir.graph_walk import subgraphs, uses
from qaic.compiler.ir.precision import INTEGERS
from qaic.compiler.ir.precision_ops import attribute_of, standard
from qaic.compiler.ir.quantization import VALUE_PRESERVING, WEIGHTED, Group
from qaic.compiler.ir.value_info import ValueInfo
from qaic.compiler.quantization.parameters import FloatGraph
from qaic.compiler.quantization.patterns import PatternFinder

#: operators of one operand that are no functions of each of its elements
HEADS = WEIGHTED | {"AveragePool", "Concat", "GlobalAveragePool", "Pad", "ReduceMean", "Resize", "Softmax"}


def find_groups(of: FloatGraph) -> Iterator[Group]:
    """Group the nodes of a graph, in order; every node is in exactly one group."""
    joining = _Joining(of)
    groups: dict[str, Group] = {}
    # Products are first, because changes of their weight and bias cost nothing.
    for node in of.graph.node:
        if node_key(node) not in joining.absorbed and joining.is_head(node):
            groups[node_key(node)] = joining.join(node)
    for pattern in PatternFinder(of, set(joining.absorbed)).find():
        *before, last = pattern.nodes
        # A product or sum of several values may be the last node, and bounds may be joined to it.
        group = groups.setdefault(node_key(last), Group(last, node_key(last)))
        if pattern.is_quantized:
            group.function = pattern.nodes
            joining.absorbed.update(node_key(node) for node in before)
        else:
            joining.absorbed.difference_update(map(node_key, group.joined))
            groups.update(
                (node_key(n), Group(n, node_key(n), normalization=pattern.nodes)) for n in pattern.nodes
            )
    for node in of.graph.node:
        key = node_key(node)
        if key in joining.absorbed:
            continue
        yield groups[key] if key in groups else joining.join(node)


class _Joining:
    """Joins the following nodes to a node."""

    def __init__(self, of: FloatGraph) -> None:
        self.classes, self.constants, self.facts = of.classes, of.constants, of.facts
        # A group whose result has no profile could not be quantized.
        self.profiled = of.parameters.profiled
        self.count = uses(of.graph)
        self.outputs = {value.name for value in of.graph.output}
        self.readers = {name: node for node in of.graph.node for name in node.input}
        #: nodes that were joined to another, by first output
        self.absorbed: set[str] = set()

    def is_head(self, node: onnx.NodeProto) -> bool:
        """Return whether a node is no function of one value, so that later nodes can only be joined to it."""
        operands = {name for name in node.input if name and name not in self.constants}
        return len(operands) > 1 or node.op_type in HEADS

    def join(self, node: onnx.NodeProto) -> Group:
        group = Group(node, node_key(node))
        kind = self.classes.get(group.output)
        if kind not in INTEGERS or node.op_type in VALUE_PRESERVING or any(subgraphs(node)):
            return group
        while (
            self.count[group.output] == 1
            and group.output not in self.outputs
            and group.output in self.readers
        ):
            reader = self.readers[group.output]
            key = node_key(reader)
            if self.classes.get(key) is not kind or not self.profiled(key) or key in self.absorbed:
                break
            if not self._joins(group, reader):
                break
            group.output = key
            group.joined.append(reader)
            self.absorbed.add(key)
        return group

    def _joins(self, group: Group, reader: onnx.NodeProto) -> bool:
        """Add the reader of a group's result to the group if it belongs there."""
        if standard(reader, "Add", "Mul", "Sub", "Div"):
            first = reader.input[0] == group.output
            other = reader.input[1] if first else reader.input[0]
            if group.bounds or not (first or reader.op_type in {"Add", "Mul"}):
                return False
            if not _is_bias(group, other, self.constants, self.facts):
                return False
            if reader.op_type == "Div" and not self.constants.read(other).all():
                return False
            group.affine.append((reader.op_type, other))
            return True
        bounds = _bounds(reader, self.constants) if reader.input[0] == group.output else None
        if bounds is None:
            return False
        group.bounds.append(bounds)
        return True


def _is_bias(group: Group, name: str, constants: ConstantReader, facts: ValueInfo) -> bool:
    """Return whether a constant is one number, or one per output channel of a group with constant weight."""
    node = group.node
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


def _bounds(node: onnx.NodeProto, constants: ConstantReader) -> tuple[float, float] | None:
    """Read the bounds of a Relu or a Clip; None for other nodes and for bounds that are computed."""
    if standard(node, "Relu"):
        return 0.0, math.inf
    if not standard(node, "Clip"):
        return None
    values = [attribute_of(node, "min", -math.inf), attribute_of(node, "max", math.inf)]
    for position, name in enumerate(node.input[1:3]):
        if not name:
            continue
        if not constants.is_float(name):
            return None
        values[position] = float(constants.read(name).reshape(-1)[0])
    low, high = values
    return None if math.isnan(low) or math.isnan(high) or low > high else (low, high)
