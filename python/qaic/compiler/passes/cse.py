"""Merges nodes that compute the same value.

Every call of a function brings its own copy of the work on positions and shapes, layer after layer. The
engine does not merge them, because their constants are also copies.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qaic.compiler.ir.context import Context, compiler_pass
from qaic.compiler.ir.graph_edits import replace_all_uses_with, set_nodes
from qaic.compiler.ir.graph_walk import subgraphs
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.precision_ops import RANDOM, standard

_RANDOM: Final = RANDOM | {"Dropout"}

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


def eliminate_common_subexpressions(
    graph: onnx.GraphProto, shapes: Mapping[str, tuple[int, ...]], labels: Mapping[str, str] = _NOTHING
) -> None:
    """Remove nodes of the main graph that repeat an earlier one; changes `graph`.

    Names mean one value each, nested graphs included. Equal means: one operator of the standard set,
    attribute by attribute and input by input; the shape of a tensor is the list of its numbers where it is
    known. The graph has no functions. A dim below 0 is not known. Nodes with different `labels` are not
    equal.
    """
    outputs = {value.name for value in graph.output}
    renamed: dict[str, str] = {}
    known: dict[object, list[str]] = {}
    kept: list[onnx.NodeProto] = []
    for original in graph.node:
        node = _constant_shape(original, shapes)
        replace_all_uses_with([node], renamed)
        key = _key(node)
        names = list(node.output)
        if key is not None and labels:
            key = key, tuple(labels.get(name) for name in names)
        earlier = known.setdefault(key, names) if key is not None else names
        if earlier is not names and outputs.isdisjoint(names):
            renamed.update(zip(names, earlier, strict=True))
            continue
        kept.append(node)
    set_nodes(graph, kept)


def _constant_shape(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> onnx.NodeProto:
    """Return the shape of a tensor as a constant where it is known, else the node."""
    dims = shapes.get(node.input[0], (-1,)) if standard(node, "Shape") and not node.attribute else (-1,)
    if any(dim < 0 for dim in dims):
        return node
    value = numpy_helper.from_array(np.array(dims, np.int64))
    return helper.make_node("Constant", [], list(node.output), value=value)


def _key(node: onnx.NodeProto) -> object:
    """Return a key of a node's computation; None if two equal nodes may differ."""
    if not standard(node, node.op_type) or node.op_type in _RANDOM or any(True for _ in subgraphs(node)):
        return None
    attributes = sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute)
    return node.op_type, tuple(node.input), tuple(attributes), tuple(bool(name) for name in node.output)


@compiler_pass()
def merge_equal_nodes_pass(model: Model, context: Context) -> bool:
    """Merge equal nodes of expanded functions of the card."""
    if not model.has_fused_functions:
        return False
    eliminate_common_subexpressions(model.proto.graph, model.facts.shapes, _listed(context))
    return True


def _listed(context: Context) -> dict[str, str]:
    """Map the values that a precision file lists to the precision of their nodes."""
    lists = context.options.node_precision_info_file
    if lists is None:
        return {}
    return dict.fromkeys(lists.fp16, "fp16") | dict.fromkeys(lists.fp32, "fp32")
