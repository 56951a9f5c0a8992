"""Recurrent operators with the batch before the steps, for which the engine has no kernels.

Operands and results are transposed after all passes that options control, so that options and errors refer
to nodes of the user's model.
"""

from typing import Final

import onnx

from qaic.compiler.ir import graph_edits as edit
from qaic.compiler.ir.graph_walk import FreshNames, find_nodes, node_key, standard, standard_version
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.compiler.ir.value_info import DimsInSets

_OPERATORS: Final = frozenset({"GRU", "LSTM", "RNN"})
#: first operator set in which recurrent operators have a layout
_WITH_LAYOUT: Final = 14
#: positions of operands with a batch, and their rank
_BATCHED: Final = (0, 5, 6)
_RANK: Final = 3


def may_be_batch_first(node: onnx.NodeProto) -> bool:
    """Return True if a node has the batch before the steps, or if the call of its function decides this."""
    return standard(node, *_OPERATORS) and any(
        attribute.name == "layout"
        and (attribute.ref_attr_name or (attribute.type == onnx.AttributeProto.INT and attribute.i == 1))
        for attribute in node.attribute
    )


def legalize_recurrent(model: onnx.ModelProto, dims: DimsInSets = lambda _: ()) -> dict[str, str]:
    """Move the steps before the batch; changes `model` in place.

    The model has no functions with such nodes. Operands that have another rank in `dims` stay, and the engine
    refuses them. Returns each added value, and a value with its type.
    """
    added: dict[str, str] = {}
    version = standard_version(model)
    if version < _WITH_LAYOUT or not any(map(may_be_batch_first, find_nodes(model.graph.node, _OPERATORS))):
        return added
    fresh = FreshNames(model.graph)

    def steps_first(node: onnx.NodeProto) -> list[onnx.NodeProto]:
        if not may_be_batch_first(node):
            return [node]
        if not node_key(node):
            # A node without results computes nothing.
            return []
        writer = edit.NodeWriter(fresh, version, node_key(node), "steps_first")
        moved = edit.clone(node)
        edit.set_attributes(moved, [attribute for attribute in node.attribute if attribute.name != "layout"])
        for at, name in enumerate(node.input):
            if at in _BATCHED and name and all(len(sizes) == _RANK for sizes in dims(name)):
                edit.replace_input_with(moved, at, writer.add("Transpose", name, perm=[1, 0, 2]))
                added[moved.input[at]] = name
        writer.nodes.append(moved)
        for at, result in enumerate(node.output):
            if result:
                edit.rename_output(moved, at, fresh.make(result, "steps_first"))
                perm = [1, 0, 2] if at else [2, 0, 1, 3]
                writer.add("Transpose", moved.output[at], output=result, perm=perm)
                added[moved.output[at]] = result
        return writer.nodes

    edit.rewrite_nodes(model.graph, steps_first)
    return added


@compiler_pass()
def legalize_recurrent_pass(model: Model, _: Context) -> None:
    """Move the steps of recurrent operators before the batch, after all passes that options control."""
    model.facts.add(legalize_recurrent(model.proto))
