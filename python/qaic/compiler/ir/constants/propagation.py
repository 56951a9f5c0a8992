"""Constants of a graph: their reader, the nodes that compute them, and those to fold before rounding.

Constant sub-expressions are folded in float32 and then rounded. So a node that computes
on constants only is left as it is, and its result is rounded where it enters the rest of the graph. Once
shapes are fixed, the results of Shape and Size are constants too: index arithmetic must not be rounded.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from qaic.compiler.ir.constants.initializers import as_weight
from qaic.compiler.ir.constants.weights import Weight, read_all
from qaic.compiler.ir.elem_types import FLOAT, TABLE
from qaic.compiler.ir.graph_edits import register_initializer
from qaic.compiler.ir.graph_walk import STANDARD_DOMAINS, subgraphs, usages
from qaic.compiler.ir.precision_ops import (
    FLOAT_FORMATS,
    NOT_COMMUTING,
    RANDOM,
    SHAPE_READERS,
    cast_target,
    selected_inputs,
    standard,
)


class FormatRules(Protocol):
    """Facts about nodes that a classification needs."""

    def format_of(self, node: onnx.NodeProto) -> int:
        """Return the format that a node computes in; 0 for none."""

    def reads(self, node: onnx.NodeProto, position: int) -> int:
        """Return the format in which a node wants one of its inputs; 0 for none."""

    def preserved(self, node: onnx.NodeProto, float_format: int) -> tuple[int, ...] | None:
        """`selected_inputs`, knowing types."""


@dataclass(slots=True)
class ConstantClasses:
    """Results of `classify` for a graph and the graphs nested in it."""

    #: names of initializers and of everything computed from them alone
    constant: set[str] = field(default_factory=set)
    #: first outputs of the nodes that are folded in float32
    folded: set[str] = field(default_factory=set)
    #: constants that are read unrounded: by a folded or float32 node, a parameter, a cast, an output
    read_plain: set[str] = field(default_factory=set)
    #: values that some node reads rounded, with the format
    read_rounded: set[tuple[str, int]] = field(default_factory=set)


def node_key(node: onnx.NodeProto) -> str:
    """Identify a node by its first output that has a name."""
    return next((name for name in node.output if name), "")


def node_label(node: onnx.NodeProto) -> str:
    """Name a node for people: by its own name, or by that of its first result."""
    return str(node.name) or node_key(node)


def classify(
    graph: onnx.GraphProto, constants: Collection[str], rules: FormatRules, result: ConstantClasses
) -> None:
    """Classify the nodes of a graph, then those of the graphs nested in it.

    `constants` are visible from outside, weights included. Fills `result`.
    """
    local, constant_nodes = _split(graph, constants)
    readers = usages(graph.node)
    for node in graph.node:
        for inner in subgraphs(node):
            classify(inner, local, rules, result)
    for node in reversed(constant_nodes):
        # A reader of a constant unrounded reads what folding in float32 gives.
        followed = any(
            node_key(reader) in result.folded or not rules.reads(reader, position)
            for name in node.output
            for reader, position in readers.get(name, ())
        )
        float_format = rules.format_of(node)
        selects = float_format and rules.preserved(node, float_format) is not None
        if followed or not selects or node.op_type in NOT_COMMUTING:
            result.folded.add(node_key(node))
    for node in graph.node:
        if node_key(node) in result.folded or cast_target(node):
            result.read_plain.update(node.input)
            continue
        for position, name in enumerate(node.input):
            float_format = rules.reads(node, position)
            if float_format:
                result.read_rounded.add((name, float_format))
            else:
                result.read_plain.add(name)
    result.read_plain.update(output.name for output in graph.output)
    result.constant |= local


def constant_values(graph: onnx.GraphProto, constants: Collection[str]) -> set[str]:
    """Collect the constants of a graph and of those nested in it, and everything computed from them alone."""
    found, _ = _split(graph, constants)
    values = set(found)
    for node in graph.node:
        for inner in subgraphs(node):
            values |= constant_values(inner, found)
    return values


def _split(graph: onnx.GraphProto, constants: Collection[str]) -> tuple[set[str], list[onnx.NodeProto]]:
    """Return the constants visible in a graph, and its nodes that compute some of them."""
    local = set(constants) | {tensor.name for tensor in graph.initializer}
    local |= {tensor.values.name for tensor in graph.sparse_initializer}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        reads_shape = node.op_type in SHAPE_READERS and node.domain in STANDARD_DOMAINS
        if reads_shape or (
            node.op_type not in RANDOM
            and all(not name or name in local for name in node.input)
            and not any(True for _ in subgraphs(node))
        ):
            local.update(node.output)
            nodes.append(node)
    return local, nodes


def value_preserving_inputs(
    types: Mapping[str, int],
) -> Callable[[onnx.NodeProto, int], tuple[int, ...] | None]:
    """Make the `selected_inputs` that also knows about casts.

    A cast between float types selects; so does one from a type whose values both formats hold exactly. Any
    other computes.
    """
    floats = {1, 10, 11, 16}
    exact = {2, 3, 9}  # uint8, int8, bool

    def preserved(node: onnx.NodeProto, float_format: int) -> tuple[int, ...] | None:
        if standard(node, "Cast", "CastLike"):
            source = types.get(node.input[0], 0)
            target = types.get(node.output[0], 0)
            if target not in floats or (target in FLOAT_FORMATS and target != float_format):
                return None
            if source in floats:
                return (0,)
            return () if source in exact else None
        return selected_inputs(node, float_format)

    return preserved


class ConstantReader:
    """The initializers of a main graph.

    `add_array` extends the graph, `add` its large initializers.
    """

    def __init__(self, graph: onnx.GraphProto, weights: dict[str, Weight]) -> None:
        self.graph = graph
        self.weights = weights
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._small: dict[str, Weight] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.weights or name in self._tensors

    def describe(self, name: str) -> Weight | None:
        """Find a constant by name."""
        if name in self.weights:
            return self.weights[name]
        if name not in self._small and name in self._tensors:
            self._small[name] = as_weight(self._tensors[name])
        return self._small.get(name)

    def is_float(self, name: str) -> bool:
        """Return whether a name is a float32 constant."""
        if name in self.weights:
            return self.weights[name].elem_type == FLOAT
        return name in self._tensors and self._tensors[name].data_type == FLOAT

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """Read a float32 constant in its shape; raises ``KeyError`` where there is none of this name."""
        weight = self.describe(name)
        if weight is None or weight.elem_type != FLOAT:
            raise KeyError(name)
        return read_array(weight)

    def add(self, weight: Weight) -> None:
        """Add a constant next to the graph."""
        self.weights[weight.name] = weight

    def add_array(self, name: str, values: npt.NDArray[Any]) -> None:
        """Add a constant to the graph."""
        self._tensors[name] = register_initializer(self.graph, numpy_helper.from_array(values, name))


def read_array(weight: Weight) -> npt.NDArray[Any]:
    """Read a constant of a type that numpy has, in its shape."""
    dtype = np.dtype(TABLE[weight.elem_type][0])
    return np.frombuffer(read_all(weight.source), dtype).reshape(weight.dims)
