"""Which nodes compute constants, and which of them must be folded before anything is rounded.

Constant sub-expressions are folded in fp32 and then rounded (compile-options §5.2). So a node that computes
on constants only is left as it is, and its result is rounded where it enters the rest of the graph. Once
shapes are fixed, the results of Shape and Size are constants too: index arithmetic must not be rounded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qaic.compiler.elem_types import FLOAT16
from qaic.compiler.graph_walk import STANDARD_DOMAINS, subgraphs
from qaic.compiler.precision_ops import (
    NOT_COMMUTING,
    RANDOM,
    SHAPE_READERS,
    parameter_inputs,
    selected_inputs,
    standard,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    import onnx


@dataclass(slots=True)
class Constness:
    """What `classify` found out about a graph and the graphs nested in it."""

    #: names of initializers and of everything computed from them alone
    constant: set[str] = field(default_factory=set)
    #: first outputs of the nodes that are folded in fp32
    folded: set[str] = field(default_factory=set)
    #: constants that somebody reads unrounded: a folded node, a parameter, a cast, an output
    read_plain: set[str] = field(default_factory=set)
    #: values that some fp16 node reads as data
    read_rounded: set[str] = field(default_factory=set)


def casts_to_half(node: onnx.NodeProto) -> bool:
    """Whether a node is a cast to float16, which rounds by itself."""
    return standard(node, "Cast") and any(a.name == "to" and a.i == FLOAT16 for a in node.attribute)


def node_key(node: onnx.NodeProto) -> str:
    """Identify a node by its first output that has a name."""
    return next((name for name in node.output if name), "")


def classify(
    graph: onnx.GraphProto,
    constants: Collection[str],
    picks: Callable[[onnx.NodeProto], tuple[int, ...] | None],
    result: Constness,
) -> None:
    """Classify the nodes of a graph, then those of the graphs nested in it.

    Parameters
    ----------
    graph : onnx.GraphProto
        Graph in topological order.
    constants : Collection[str]
        Constant values visible from outside, weights included.
    picks : callable
        `selected_inputs`, knowing types.
    result : Constness
        Filled.
    """
    local = set(constants) | {tensor.name for tensor in graph.initializer}
    local |= {tensor.values.name for tensor in graph.sparse_initializer}
    constant_nodes: list[onnx.NodeProto] = []
    readers: dict[str, list[str]] = {}
    for node in graph.node:
        nested = list(subgraphs(node))
        reads_shape = node.op_type in SHAPE_READERS and node.domain in STANDARD_DOMAINS
        if reads_shape or (
            not nested
            and node.op_type not in RANDOM
            and all(not name or name in local for name in node.input)
        ):
            local.update(node.output)
            constant_nodes.append(node)
        for name in node.input:
            readers.setdefault(name, []).append(node_key(node))
        for inner in nested:
            classify(inner, local, picks, result)
    for node in reversed(constant_nodes):
        followed = any(reader in result.folded for name in node.output for reader in readers.get(name, ()))
        if followed or picks(node) is None or node.op_type in NOT_COMMUTING:
            result.folded.add(node_key(node))
    for node in graph.node:
        if node_key(node) in result.folded or casts_to_half(node):
            result.read_plain.update(node.input)
        else:
            plain = parameter_inputs(node)
            for position, name in enumerate(node.input):
                (result.read_plain if position in plain else result.read_rounded).add(name)
    result.read_plain.update(output.name for output in graph.output)
    result.constant |= local


def typed_picks(types: Mapping[str, int]) -> Callable[[onnx.NodeProto], tuple[int, ...] | None]:
    """Make the `selected_inputs` that also knows about casts.

    A cast between float types selects; so does one from a type whose values float16 holds exactly. Any
    other computes.
    """
    floats = {1, 10, 11}
    exact = {2, 3, 9}  # uint8, int8, bool

    def picks(node: onnx.NodeProto) -> tuple[int, ...] | None:
        if standard(node, "Cast", "CastLike"):
            source = types.get(node.input[0], 0)
            if types.get(node.output[0], 0) not in floats:
                return None
            if source in floats:
                return (0,)
            return () if source in exact else None
        return selected_inputs(node)

    return picks
