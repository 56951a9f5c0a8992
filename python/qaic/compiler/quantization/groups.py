"""Groups of nodes that are quantized together: an operator, an addition to its result, and its bounds.

Values inside a group are never rounded, like those inside the fused units of the card. Quantization is
monotone, so bounds can be applied to the stored integers instead of the real numbers. Bounds that are equal
to the limits of the integers need no operation.

Exporters write HardSwish, Gelu, Softmax and LayerNormalization as several elementary operators. Rounding
each of them to 8 bits would make the result useless, although the whole operator loses little. They are
therefore joined again: a function of one value is one group, and a normalization stays in floating point like
the operator of that name.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

import onnx

from qaic.compiler.ir.constants.in_graph import ConstantReader
from qaic.compiler.ir.graph_walk import (
    STANDARD_DOMAINS,
    attribute_of,
    consumers,
    node_key,
    producers,
    read_values,
    standard,
    subgraphs,
    uses,
)
from qaic.compiler.ir.precision import INTEGERS, PrecisionClass
from qaic.compiler.ir.quantization import VALUE_PRESERVING, WEIGHTED, Group
from qaic.compiler.ir.value_info import ValueInfo
from qaic.compiler.quantization.parameters import FloatGraph, has_constant_kernel

#: operators that compute each element from the elements at the same position
_POINTWISE: Final = frozenset(
    {
        *("Abs", "Add", "Celu", "Clip", "Div", "Elu", "Erf", "Exp", "HardSigmoid", "HardSwish", "LeakyRelu"),
        *("Log", "Max", "Min", "Mish", "Mul", "Neg", "Pow", "Reciprocal", "Relu", "Selu", "Sigmoid"),
        *("Softplus", "Softsign", "Sqrt", "Sub", "Tanh"),
    }
)

#: operators that only change the shape or type of a result
_SHAPING: Final = frozenset({"Cast", "Expand", "Identity", "Reshape", "Squeeze", "Unsqueeze"})

_REDUCING: Final = frozenset({"ReduceMax", "ReduceMean", "ReduceSum"})

#: operators that form a normalization or softmax
_INNER: Final = _POINTWISE | _SHAPING | _REDUCING

#: most nodes of such an operator; the longest known form has 20
_LARGEST: Final = 40


@dataclass(frozen=True, slots=True)
class Pattern:
    """Nodes that together form one operator."""

    #: nodes in the order of the graph; the last one computes the result
    nodes: tuple[onnx.NodeProto, ...]
    is_quantized: bool

    @property
    def keys(self) -> set[str]:
        """First outputs of the nodes."""
        return {node_key(node) for node in self.nodes}


class PatternFinder:
    """Finds the patterns of a graph. `taken` are the nodes of other groups, by first output."""

    def __init__(self, of: FloatGraph, taken: set[str]) -> None:
        self.nodes = nodes = list(of.graph.node)
        self.outputs = {value.name for value in of.graph.output}
        self.taken = taken
        self.constants, self.facts, self.classes = of.constants, of.facts, of.classes
        # The result of a function needs a range.
        self.profiled = of.parameters.profiled
        self.places = {node_key(node): place for place, node in enumerate(nodes)}
        self.makers = producers(nodes)
        self.readers = consumers(nodes)
        #: values that nested graphs read, which must therefore exist
        self.nested = set[str]().union(*(read_values(inner) for node in nodes for inner in subgraphs(node)))

    def find(self) -> Iterator[Pattern]:
        """Find normalizations, softmaxes and functions; no node is in two of them."""
        taken = set(self.taken)
        for search in (self._normalizations, self._softmaxes, self._functions):
            for pattern in search(taken):
                if not taken & pattern.keys:
                    taken |= pattern.keys
                    yield pattern

    def _is_constant(self, name: str) -> bool:
        return name in self.constants or (name in self.makers and self.makers[name].op_type == "Constant")

    def _between(self, start: str, ends: list[onnx.NodeProto]) -> list[onnx.NodeProto] | None:
        """Collect all nodes between a value and some nodes; None if there is another path."""
        found: dict[int, onnx.NodeProto] = {}
        pending = list(ends)
        while pending:
            node = pending.pop()
            place = self.places[node_key(node)]
            if place in found:
                continue
            if node.op_type not in _INNER or node.domain not in STANDARD_DOMAINS or len(found) == _LARGEST:
                return None
            found[place] = node
            for name in node.input:
                if not name or name == start or self._is_constant(name) or self._is_shape(name):
                    continue
                if name not in self.makers:
                    return None
                pending.append(self.makers[name])
        return [found[place] for place in sorted(found)]

    def _is_shape(self, name: str) -> bool:
        """Return True if a value has integers: sizes for Reshape and Expand, which are not quantized."""
        return self.facts.types.get(name) in {6, 7}

    def _is_closed(self, nodes: list[onnx.NodeProto]) -> bool:
        """Return True if no node outside reads an inner value."""
        inside = {node_key(node) for node in nodes}
        return all(
            name not in self.outputs
            and name not in self.nested
            and all(node_key(reader) in inside for reader in self.readers.get(name, ()))
            for node in nodes[:-1]
            for name in node.output
            if name
        )

    def _normalizations(self, taken: set[str]) -> Iterator[Pattern]:
        """Find values that are divided by the root of a mean of squares."""
        for root in self.nodes:
            if not standard(root, "Sqrt") or node_key(root) in taken:
                continue
            subject = self._subject_of(root)
            merged = None if subject is None else self._merge(root, subject)
            if subject is None or merged is None:
                continue
            nodes = self._between(subject, [merged])
            if nodes is not None:
                yield Pattern((*nodes, *self._scale_and_shift(merged)), is_quantized=False)

    def _subject_of(self, root: onnx.NodeProto) -> str | None:
        """Find the value whose squares are under a root; all means under the root must be of that value."""
        subjects: set[str] = set()
        pending, seen = [root.input[0]], 0
        while pending:
            name = pending.pop()
            node = self.makers.get(name)
            seen += 1
            if node is None or seen > _LARGEST:
                return None
            if node.op_type in {"ReduceMean", "ReduceSum"}:
                subjects.add(self._squared(node.input[0]))
            elif node.op_type in _INNER:
                pending += [i for i in node.input if i and not self._is_constant(i) and not self._is_shape(i)]
            else:
                return None
        return subjects.pop() if len(subjects) == 1 else None

    def _squared(self, name: str) -> str:
        """Undo a square, and the subtraction of the mean before it."""
        node = self.makers.get(name)
        if node is not None and (
            (standard(node, "Mul") and node.input[0] == node.input[1]) or standard(node, "Pow")
        ):
            name = node.input[0]
            node = self.makers.get(name)
        if node is not None and standard(node, "Sub"):
            mean = self.makers.get(node.input[1])
            while mean is not None and mean.op_type in _SHAPING | {"Mul", "Div"}:
                mean = self.makers.get(mean.input[0])
            if mean is not None and mean.op_type in {"ReduceMean", "ReduceSum"}:
                return node.input[0]
        return name

    def _merge(self, root: onnx.NodeProto, subject: str) -> onnx.NodeProto | None:
        """Follow a root to the node that combines it with the data."""
        shape, node = self.facts.shapes.get(subject), root
        for _ in range(_LARGEST):
            readers = self.readers.get(node.output[0], [])
            if len(readers) != 1 or shape is None:
                return None
            before, node = node.output[0], readers[0]
            others = [name for name in node.input if name != before and not self._is_constant(name)]
            others = [name for name in others if not self._is_shape(name)]
            if standard(node, "Mul", "Div") and others and self.facts.shapes.get(others[0]) == shape:
                return node
            if others or node.op_type not in _INNER:
                return None
        return None

    def _scale_and_shift(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Yield the multiplication by and the addition of constants that belong to a normalization."""
        for kind in ("Mul", "Add"):
            readers = self.readers.get(node.output[0], [])
            if node.output[0] in self.outputs or len(readers) != 1:
                return
            if standard(readers[0], kind) and sum(map(self._is_constant, readers[0].input)) == 1:
                node = readers[0]
                yield node

    def _softmaxes(self, taken: set[str]) -> Iterator[Pattern]:
        """Find exponentials that are divided by their sum."""
        for node in self.nodes:
            exponential = self.makers.get(node.input[0]) if standard(node, "Div") else None
            if (
                exponential is None
                or not standard(exponential, "Exp")
                or not (self._is_integer(node) and self.profiled(node_key(node)))
            ):
                continue
            total: onnx.NodeProto | None = self.makers.get(node.input[1])
            while total is not None and total.op_type in _SHAPING:
                total = self.makers.get(total.input[0])
            if total is None or total.op_type != "ReduceSum" or total.input[0] != node.input[0]:
                continue
            subject = exponential.input[0]
            less = self.makers.get(subject)
            if less is not None and standard(less, "Sub"):
                subject = less.input[0]
            nodes = self._between(subject, [node])
            if nodes is not None and self._is_closed(nodes) and not taken & {node_key(n) for n in nodes}:
                yield Pattern(tuple(nodes), is_quantized=True)

    def _functions(self, taken: set[str]) -> Iterator[Pattern]:
        """Find functions of one value: elementary operators, and constants that do not enlarge it."""
        origin: dict[str, str] = {}
        for node in self.nodes:
            source = self._origin(node, origin)
            if source is not None and node_key(node) not in taken:
                origin[node.output[0]] = source
        done: set[str] = set()
        for node in reversed(self.nodes):
            key = node_key(node)
            if key not in origin or key in done or not (self._is_integer(node) and self.profiled(key)):
                continue
            nodes = self._grown(node, origin, done)
            externals = {name for n in nodes for name in n.input if name and not self._is_constant(name)} - {
                name for n in nodes for name in n.output
            }
            if (
                len(nodes) > 1
                and len(externals) == 1
                and any(n.op_type not in {"Relu", "Clip"} for n in nodes[1:])
            ):
                done |= {node_key(n) for n in nodes}
                yield Pattern(tuple(nodes), is_quantized=True)

    def _origin(self, node: onnx.NodeProto, origin: Mapping[str, str]) -> str | None:
        """Return the value that a pointwise node is a function of, if there is one."""
        if node.op_type not in _POINTWISE or node.domain not in STANDARD_DOMAINS:
            return None
        if not self._is_integer(node) and self.classes.get(node_key(node)) is not PrecisionClass.FP32:
            return None
        values = [name for name in node.input if name and not self._is_constant(name)]
        sources = {origin.get(name, name) for name in values}
        if len(sources) != 1:
            return None
        shape = self.facts.shapes.get(node.output[0])
        if shape is None or any(self.facts.shapes.get(name) != shape for name in values):
            return None
        return sources.pop()

    def _grown(self, last: onnx.NodeProto, origin: Mapping[str, str], done: set[str]) -> list[onnx.NodeProto]:
        """Collect the nodes before `last` that are functions of the same value and that only these read."""
        source = origin[node_key(last)]
        inside: dict[str, onnx.NodeProto] = {}
        pending, seen = [-self.places[node_key(last)]], {node_key(last)}
        # The last node comes first: all readers of a node are decided before the node.
        while pending:
            node = self.nodes[-heappop(pending)]
            key = node_key(node)
            if node is not last and (
                key in self.outputs
                or key in self.nested
                or not all(node_key(reader) in inside for reader in self.readers[key])
            ):
                continue
            inside[key] = node
            for name in node.input:
                if origin.get(name) == source and name not in done and name not in seen:
                    seen.add(name)
                    heappush(pending, -self.places[name])
        return [inside[key] for key in sorted(inside, key=self.places.__getitem__)]

    def _is_integer(self, node: onnx.NodeProto) -> bool:
        return self.classes.get(node_key(node)) in {PrecisionClass.INT8, PrecisionClass.INT16}


#: operators with one operand that do not compute each element separately
HEADS = WEIGHTED | {"AveragePool", "Concat", "GlobalAveragePool", "Pad", "ReduceMean", "Resize", "Softmax"}


def find_groups(of: FloatGraph) -> Iterator[Group]:
    """Group the nodes of a graph, in order; every node is in exactly one group."""
    joining = _Joining(of)
    groups: dict[str, Group] = {}
    # Products are first, because changes of their weight and bias need no operation.
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
        """Return True if a node is not a function of one value, so it can only begin a group."""
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
        """Add the reader of a group's result to the group if the reader belongs to it."""
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
    """Return True if a constant is one number, or one per output channel of an integer kernel."""
    node = group.node
    if not standard(node, "Conv", "Gemm", "MatMul") or not constants.is_float(name):
        return False
    if not has_constant_kernel(node, constants):
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
    """Read the bounds of a Relu or a Clip; None for other nodes and for computed bounds."""
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
