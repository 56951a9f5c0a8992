"""`Where` on element types that the engine has no kernel for: as int32, which holds all their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import onnx

from qaic.compiler.ir.context import Context
from qaic.compiler.ir.elem_types import BOOL, INT8, INT16, INT32, UINT16
from qaic.compiler.ir.graph_edits import set_nodes
from qaic.compiler.ir.graph_walk import FreshNames, all_graphs, find_nodes
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.pass_contract import Always
from qaic.compiler.ir.precision_ops import standard
from qaic.compiler.ir.value_info import Added

#: types of which some supported engine lacks the kernel
_WITHOUT_KERNEL: Final = frozenset({BOOL, INT8, INT16, UINT16})


def legalize_where(model: onnx.ModelProto, types: Mapping[str, int]) -> dict[str, Added]:
    """Rewrite the Where nodes that the engine has no kernel for; changes `model` in place.

    Parameters
    ----------
    model : onnx.ModelProto
        Model without weight data and without model-local functions around such nodes.
    types : Mapping[str, int]
        Element types of values by name.

    Returns
    -------
    dict of str to Added
        The values that were added.
    """
    fresh: FreshNames | None = None
    added: dict[str, Added] = {}
    if not find_nodes(model.graph.node, {"Where"}):
        return added
    for graph in all_graphs(model.graph):
        found = {at for at, node in enumerate(graph.node) if _is_without_kernel(node, types)}
        if not found:
            continue
        fresh = fresh or FreshNames(model.graph)
        made: list[onnx.NodeProto] = []
        for at, node in enumerate(graph.node):
            made += _as_int32(node, types, fresh, added) if at in found else [node]
        set_nodes(graph, made)
    return added


def _elem_type(node: onnx.NodeProto, types: Mapping[str, int]) -> int:
    """Element type of what a Where selects from: that of any value that is known."""
    return next((types[name] for name in (*node.input[1:], *node.output) if name in types), 0)


def _is_without_kernel(node: onnx.NodeProto, types: Mapping[str, int]) -> bool:
    return standard(node, "Where") and _elem_type(node, types) in _WITHOUT_KERNEL


def _as_int32(
    node: onnx.NodeProto, types: Mapping[str, int], fresh: FreshNames, added: dict[str, Added]
) -> list[onnx.NodeProto]:
    from onnx import helper

    condition, *sides = node.input
    result = node.output[0]
    wide = [fresh.make(result, "int32") for _ in (*sides, result)]
    added.update({name: Added(INT32, like) for name, like in zip(wide, (*sides, result), strict=True)})
    casts = [
        helper.make_node("Cast", [side], [name], to=INT32) for side, name in zip(sides, wide, strict=False)
    ]
    selected = helper.make_node("Where", [condition, *wide[:2]], [wide[2]], name=node.name)
    narrow = helper.make_node("Cast", [wide[2]], [result], to=_elem_type(node, types))
    return [*casts, selected, narrow]


class LegalizeWhere(Always):
    """Select as int32 what the engine has no kernel for."""

    name = "legalize-where"

    def run(self, model: Model, context: Context) -> bool:
        """Change the model."""
        del context
        return model.rewrite(legalize_where)
