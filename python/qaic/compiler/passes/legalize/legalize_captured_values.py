"""Values of quantized graphs that control flow reads from the graph around it.

The engine carries a DequantizeLinear over operators that move values, to compute them on integers. It looks
for the readers among the inputs of nodes, and ends the process where a body of control flow is the reader:
what a body captures is no input. An operator between the two that computes, and changes nothing, keeps them
apart. Identity does not, because the engine removes it; it also takes the bodies of an If with a known
condition into the graph around it, so results of control flow are treated as moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import onnx

from qaic.compiler.ir.context import Context
from qaic.compiler.ir.elem_types import FLOATS
from qaic.compiler.ir.graph_edits import replace_all_uses_with, set_nodes
from qaic.compiler.ir.graph_walk import (
    FreshNames,
    all_graphs,
    find_nodes,
    producers,
    read_values,
    subgraphs,
)
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.pass_contract import Always
from qaic.compiler.ir.precision_ops import standard

#: operators whose results may be moved or taken over from elsewhere
_MOVING: Final = (
    "DepthToSpace",
    "Expand",
    "Flatten",
    "Gather",
    "Identity",
    "If",
    "Loop",
    "MaxPool",
    "Pad",
    "Reshape",
    "Scan",
    "Slice",
    "SpaceToDepth",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
)


def moved_captures(graph: onnx.GraphProto) -> set[str]:
    """Find the moved values that bodies of control flow capture from the graph directly around them."""
    made_by = producers(graph.node)
    return {
        name
        for node in graph.node
        for body in subgraphs(node)
        for name in read_values(body)
        if name in made_by and standard(made_by[name], *_MOVING)
    }


def legalize_captured_values(model: onnx.ModelProto, types: Mapping[str, int]) -> dict[str, str]:
    """Compute moved floats once more, as the maximum of one, where bodies of control flow read them.

    Parameters
    ----------
    model : onnx.ModelProto
        Model without model-local functions, in which no two values have one name; changed in place.
    types : Mapping[str, int]
        Element types of values by name.

    Returns
    -------
    dict of str to str
        Each value that was added, and the value that it equals.
    """
    from onnx import helper

    if not find_nodes(model.graph.node, {"DequantizeLinear"}):
        return {}
    fresh: FreshNames | None = None
    added: dict[str, str] = {}
    for graph in all_graphs(model.graph):
        moved = {name for name in moved_captures(graph) if types.get(name) in FLOATS}
        if not moved:
            continue
        fresh = fresh or FreshNames(model.graph)
        apart = {name: fresh.make(name, "captured") for name in sorted(moved)}
        added.update((new, name) for name, new in apart.items())
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            nodes.append(node)
            nodes += [helper.make_node("Max", [name], [apart[name]]) for name in node.output if name in apart]
        # Also where the node itself reads them, which is as right.
        replace_all_uses_with([node for node in graph.node if any(subgraphs(node))], apart)
        set_nodes(graph, nodes)
    return added


class LegalizeCapturedValues(Always):
    """Keep values of quantized graphs apart from the control flow that captures them."""

    name = "legalize-captured-values"

    def run(self, model: Model, context: Context) -> bool:
        """Change the model."""
        del context
        types = model.facts.types
        added = legalize_captured_values(model.proto, types)
        types.update((new, types[name]) for new, name in added.items())
        return bool(added)
