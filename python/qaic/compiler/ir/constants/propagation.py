"""Constants of a graph: their reader, the nodes that compute them, and those to fold before rounding.

Constant sub-expressions are folded in float32 and then rounded. So a node that computes
on constants only is left as it is, and its result is rounded where it enters the rest of the graph. Once
shapes are fixed, the results of Shape and Size are constants too: index arithmetic must not be rounded.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from qaic.compiler.ir.constants.initializers import as_weight
from qaic.compiler.ir.constants.weights import ComputedSource, Weight, read_all
from qaic.compiler.ir.elem_types import FLOAT, array_type
from qaic.compiler.ir.graph_edits import register_initializer
from qaic.compiler.ir.graph_walk import STANDARD_DOMAINS, constant_names, subgraphs
from qaic.compiler.ir.precision_ops import (
    FLOAT_FORMATS,
    RANDOM,
    SHAPE_READERS,
    selected_inputs,
    standard,
)


def node_key(node: onnx.NodeProto) -> str:
    """Identify a node by its first output that has a name."""
    return next((name for name in node.output if name), "")


def node_label(node: onnx.NodeProto) -> str:
    """Name a node for people: by its own name, or by that of its first result."""
    return str(node.name) or node_key(node)


def constant_values(graph: onnx.GraphProto, constants: Collection[str]) -> set[str]:
    """Collect the constants of a graph and of those nested in it, and everything computed from them alone."""
    found, _ = split_constants(graph, constants)
    values = set(found)
    for node in graph.node:
        for inner in subgraphs(node):
            values |= constant_values(inner, found)
    return values


def split_constants(
    graph: onnx.GraphProto, constants: Collection[str]
) -> tuple[set[str], list[onnx.NodeProto]]:
    """Return the constants visible in a graph, and its nodes that compute some of them."""
    local = constant_names(graph).union(constants)
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
    """Return a `selected_inputs` that also handles casts.

    A cast selects between float types, and from a type whose values are exact in both formats. Any other cast
    computes.
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

    def weight(self, name: str) -> Weight:
        """Find a constant that exists."""
        found = self.describe(name)
        if found is None:
            raise KeyError(name)
        return found

    def is_float(self, name: str) -> bool:
        """Return whether a name is a float32 constant."""
        if name in self.weights:
            return self.weights[name].elem_type == FLOAT
        return name in self._tensors and self._tensors[name].data_type == FLOAT

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """Read a float32 constant in its shape; raises ``KeyError`` if there is none of this name."""
        weight = self.weight(name)
        if weight.elem_type != FLOAT:
            raise KeyError(name)
        return read_array(weight)

    def add(self, weight: Weight) -> None:
        """Add a constant next to the graph."""
        self.weights[weight.name] = weight

    def add_array(self, name: str, values: npt.NDArray[Any]) -> None:
        """Add a constant to the graph."""
        self._tensors[name] = register_initializer(self.graph, numpy_helper.from_array(values, name))


def read_array(weight: Weight) -> npt.NDArray[Any]:
    """Read a constant of a type that numpy or ml_dtypes has, in its shape."""
    return np.frombuffer(read_all(weight.source), array_type(weight.elem_type)).reshape(weight.dims)


def multiplied(
    values: npt.NDArray[np.float32], factors: npt.NDArray[np.float32], axis: int
) -> npt.NDArray[np.float32]:
    """Multiply the channels along an axis, each by its factor."""
    shape = [1] * values.ndim
    shape[axis] = len(factors)
    return values * factors.reshape(shape)


def with_factors(weight: Weight, name: str, factors: npt.NDArray[np.float32], axis: int) -> Weight:
    """Describe a float32 weight times a factor per channel; it is small enough to be held when it is read."""

    def chunks() -> Iterator[bytes]:
        yield multiplied(read_array(weight), factors, axis).tobytes()

    return replace(weight, name=name, source=ComputedSource(weight.source.nbytes, chunks))
