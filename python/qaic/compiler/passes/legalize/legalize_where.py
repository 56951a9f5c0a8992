"""Where on element types that the engine has no kernel for: as int32, which holds all their values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from qaic.compiler.ir.elem_types import BOOL, INT8, INT16, INT32, UINT16
from qaic.compiler.ir.graph_edits import describe_value, set_nodes, set_shape
from qaic.compiler.ir.graph_walk import FreshNames, all_graphs, find_nodes
from qaic.compiler.ir.pass_contract import Always
from qaic.compiler.ir.precision_ops import standard
from qaic.compiler.ir.value_info import ValueInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

    from qaic.compiler.ir.context import Context
    from qaic.compiler.ir.model import Model

#: types of which some supported engine lacks the kernel
_WITHOUT_KERNEL: Final = frozenset({BOOL, INT8, INT16, UINT16})


def legalize_where(model: onnx.ModelProto, types: Mapping[str, int]) -> dict[str, str]:
    """Rewrite the Where nodes that the engine has no kernel for; changes `model` in place.

    Parameters
    ----------
    model : onnx.ModelProto
        Model without weight data and without model-local functions around such nodes.
    types : Mapping[str, int]
        Element types of values by name.

    Returns
    -------
    dict of str to str
        Each value that was added, of type int32, and the value whose shape it has.
    """
    fresh: FreshNames | None = None
    added: dict[str, str] = {}
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
    node: onnx.NodeProto, types: Mapping[str, int], fresh: FreshNames, added: dict[str, str]
) -> list[onnx.NodeProto]:
    from onnx import helper

    condition, *sides = node.input
    result = node.output[0]
    wide = [fresh.make(result, "int32") for _ in (*sides, result)]
    added.update(zip(wide, (*sides, result), strict=True))
    casts = [
        helper.make_node("Cast", [side], [name], to=INT32) for side, name in zip(sides, wide, strict=False)
    ]
    selected = helper.make_node("Where", [condition, *wide[:2]], [wide[2]], name=node.name)
    narrow = helper.make_node("Cast", [wide[2]], [result], to=_elem_type(node, types))
    return [*casts, selected, narrow]


def _describe(specialized_model: onnx.ModelProto, added: Mapping[str, str]) -> None:
    """Declare the types and shapes of values that were added to an inferred model."""
    shapes: dict[str, list[int | None]] = {}
    for graph in all_graphs(specialized_model.graph):
        shapes |= {tensor.name: list(tensor.dims) for tensor in graph.initializer}
        for value in (*graph.input, *graph.output, *graph.value_info):
            tensor_type = value.type.tensor_type
            if tensor_type.HasField("shape"):
                shapes[value.name] = [
                    dim.dim_value if dim.HasField("dim_value") else None for dim in tensor_type.shape.dim
                ]
    for graph in all_graphs(specialized_model.graph):
        for name in [name for node in graph.node for name in node.output if name in added]:
            value = describe_value(graph, name)
            value.type.tensor_type.elem_type = INT32
            if added[name] in shapes:
                set_shape(value, shapes[added[name]])


class LegalizeWhere(Always):
    """Select as int32 what the engine has no kernel for."""

    name = "legalize-where"

    def run(self, model: Model, context: Context) -> bool:
        """Change the model."""
        del context
        types = model.facts.types
        added = legalize_where(model.proto, types)
        for specialized_model in model.specialized if added else ():
            legalize_where(specialized_model, types)
            _describe(specialized_model, added)
        if added:
            model.facts = ValueInfo(types | dict.fromkeys(added, INT32), model.specialized)
        return bool(added)
