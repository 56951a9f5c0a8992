"""Walks a parsed model: every node in every nested graph, its attributes, and the names of values."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableSequence, Sequence
from itertools import chain
from typing import Final, TypeVar

import onnx
from onnx import defs, helper

_T = TypeVar("_T")

#: AttributeProto.type of attributes that hold graphs
_GRAPH: Final = 5
_GRAPHS: Final = 10

#: operators that repeat a body
_LOOPS: Final = frozenset({"Loop", "Scan", "SequenceMap"})

#: the two spellings of the standard operator set
STANDARD_DOMAINS: Final = frozenset({"", "ai.onnx"})

#: domain of the device's operators
DEVICE_DOMAIN: Final = "com.openqaic"

#: domains whose schemas the onnx package contains; the standard domain has its short name
ONNX_DOMAINS: Final = frozenset({"", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training"})

#: operators of the standard set with graphs as attributes
_CONTROL_FLOW: Final = _LOOPS | {"If"}


#: operators that compute a value from a shape alone; their results are constants for fixed shapes
SHAPE_READERS: Final = frozenset({"Shape", "Size"})

#: operators whose result differs from run to run, so they are never constant
RANDOM: Final = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)


def standard_version(stamped: onnx.ModelProto | onnx.FunctionProto) -> int:
    """Read the version of the standard operator set that a model or function is written in; 1 for none."""
    return max(
        (entry.version for entry in stamped.opset_import if entry.domain in STANDARD_DOMAINS), default=1
    )


def since(op_type: str, version: int) -> int:
    """Return the version that introduced the form an operator has in a later version; 0 if there is none."""
    is_known = defs.has(op_type, version, "")
    return int(defs.get_schema(op_type, version, "").since_version) if is_known else 0


def node_key(node: onnx.NodeProto) -> str:
    """Identify a node by its first output with a name."""
    return next((name for name in node.output if name), "")


def node_label(node: onnx.NodeProto) -> str:
    """Name a node for messages: by its own name, or by that of its first result."""
    return str(node.name) or node_key(node)


def standard(node: onnx.NodeProto, *op_types: str) -> bool:
    """Return True if a node is one of these operators of the standard set."""
    return node.op_type in op_types and node.domain in STANDARD_DOMAINS


def operator_of(node: onnx.NodeProto) -> tuple[str, str]:
    """Return domain and name of an operator, with "" for the standard domain."""
    return "" if node.domain in STANDARD_DOMAINS else node.domain, node.op_type


def attribute_of(node: onnx.NodeProto, name: str, default: _T) -> _T:
    """Return the value of an attribute; the default if the node does not have it, or calls set it."""
    for attribute in node.attribute:
        if attribute.name == name and not attribute.ref_attr_name:
            value: _T = helper.get_attribute_value(attribute)
            return value
    return default


def windows_of(node: onnx.NodeProto, kernel: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return kernel, stride and dilation of each axis; [] if the attributes do not fit."""
    strides, dilations = (attribute_of(node, name, [1] * len(kernel)) for name in ("strides", "dilations"))
    is_valid = len(kernel) == len(strides) == len(dilations) and min(strides, default=0) > 0
    return list(zip(kernel, strides, dilations, strict=True)) if is_valid else []


def behind(name: str, makers: Mapping[str, onnx.NodeProto], *op_types: str) -> str:
    """Follow a value back through operators of some kinds, each to its first operand."""
    while (node := makers.get(name)) is not None and standard(node, *op_types):
        name = node.input[0]
    return name


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs directly inside a node (branches of If, bodies of Loop and Scan)."""
    # Reading the attributes takes ten times as long as reading the operator.
    if node.op_type not in _CONTROL_FLOW and node.domain in STANDARD_DOMAINS:
        return
    for attribute in node.attribute:
        if attribute.type == _GRAPH:
            yield attribute.g
        elif attribute.type == _GRAPHS:
            yield from attribute.graphs


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and every graph nested in it."""
    pending = [graph]
    while pending:
        current = pending.pop()
        yield current
        for node in current.node:
            # Inlined, because this loop visits every node of a model about thirty times.
            if node.op_type in _CONTROL_FLOW or node.domain not in STANDARD_DOMAINS:
                pending.extend(subgraphs(node))


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes and every node of the graphs nested in them."""
    for node in nodes:
        yield node
        if node.op_type in _CONTROL_FLOW or node.domain not in STANDARD_DOMAINS:
            for inner in subgraphs(node):
                yield from all_nodes(inner.node)


def find_nodes(nodes: Iterable[onnx.NodeProto], op_types: Collection[str]) -> list[onnx.NodeProto]:
    """Find the nodes of some operators of the standard set, those of nested graphs included."""
    found = []
    for node in nodes:
        op_type = node.op_type
        if op_type in op_types and node.domain in STANDARD_DOMAINS:
            found.append(node)
        if op_type in _CONTROL_FLOW or node.domain not in STANDARD_DOMAINS:
            for inner in subgraphs(node):
                found += find_nodes(inner.node, op_types)
    return found


def node_lists(model: onnx.ModelProto) -> list[MutableSequence[onnx.NodeProto]]:
    """List the nodes of the main graph, then those of each function."""
    return [model.graph.node, *(function.node for function in model.functions)]


def nodes_of(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield all nodes of a model, in functions and nested graphs too."""
    return all_nodes(chain.from_iterable(node_lists(model)))


def op_types(model: onnx.ModelProto) -> set[str]:
    """Collect the names of all operators in a model."""
    return {node.op_type for node in nodes_of(model)}


def constant_names(graph: onnx.GraphProto) -> set[str]:
    """Collect the names of the initializers of a graph."""
    found = {tensor.name for tensor in graph.initializer}
    return found.union(tensor.values.name for tensor in graph.sparse_initializer)


def uses(graph: onnx.GraphProto) -> Counter[str]:
    """Count how often each value is read by a node or is an output, nested graphs included."""
    count: Counter[str] = Counter()
    for current in all_graphs(graph):
        count.update(chain.from_iterable(node.input[:] for node in current.node))
        count.update(output.name for output in current.output)
    count.pop("", None)
    return count


def producers(nodes: Iterable[onnx.NodeProto]) -> dict[str, onnx.NodeProto]:
    """Map each result to the node that computes it, without nested graphs."""
    # protobuf copies a slice to a list faster than it returns single names.
    return {name: node for node in nodes for name in node.output[:] if name}


def usages(nodes: Iterable[onnx.NodeProto]) -> dict[str, list[tuple[onnx.NodeProto, int]]]:
    """Map each value to the nodes that read it, each with the position of the input, in their order."""
    found: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
    for node in nodes:
        for position, name in enumerate(node.input[:]):
            found.setdefault(name, []).append((node, position))
    return found


def consumers(nodes: Iterable[onnx.NodeProto]) -> dict[str, list[onnx.NodeProto]]:
    """Map each value to the nodes that read it; a node occurs once for each use."""
    return {name: [node for node, _ in read] for name, read in usages(nodes).items()}


def read_values(graph: onnx.GraphProto) -> set[str]:
    """Collect the values that a node reads or that are outputs, nested graphs included."""
    read: set[str] = set()
    for current in all_graphs(graph):
        read.update(chain.from_iterable(node.input[:] for node in current.node))
        read.update(output.name for output in current.output)
    read.discard("")
    return read


def values_read_by(node: onnx.NodeProto) -> set[str]:
    """Collect the values that a node or its nested graphs read."""
    return {*filter(None, node.input)}.union(*map(read_values, subgraphs(node)))


def has_loops(model: onnx.ModelProto) -> bool:
    """Return True if values in a model determine its run time; otherwise, only shapes do."""
    return any(node.op_type in _LOOPS for node in nodes_of(model))


def value_names(graph: onnx.GraphProto) -> set[str]:
    """Collect the names of all values in the graph."""
    names: set[str] = set()
    for current in all_graphs(graph):
        names.update(value.name for value in current.input)
        names |= constant_names(current)
        for node in current.node:
            names.update(node.output[:], node.input[:])
    names.discard("")
    return names


class FreshNames:
    """Creates value names that do not occur in a graph; the same graph always gets the same names."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._taken = value_names(graph)
        # Name without a number -> last number given out; searching from 1 takes quadratic time.
        self._numbers: dict[str, int] = {}

    def make(self, base: str, suffix: str) -> str:
        """Make ``base/suffix`` unique, register and return it."""
        name = stem = f"{base}/{suffix}"
        while name in self._taken:
            self._numbers[stem] = self._numbers.get(stem, 0) + 1
            name = f"{stem}_{self._numbers[stem]}"
        self._taken.add(name)
        return name
