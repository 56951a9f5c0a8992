"""Quantized chains that the engine's optimizer would compute in another type, or refuse.

* The engine repeats a ``DequantizeLinear`` after operators that move values. It rounds to uint8 if the
  operand has no zero point, and refuses int8 with a zero point in set 21 (onnxruntime 1.22 and 1.32).
* It removes a ``Relu`` before a ``QuantizeLinear`` to float8, and refuses a ``Clip`` there. It also moves
  float8 into a ``MaxPool``, which has no kernel for the type (onnxruntime 1.22).
* It moves a ``QuantizeLinear`` to before a ``MaxPool``, whose places then belong to rounded values
  (onnxruntime 1.22 and 1.32).
* It refuses ``output_dtype`` with a zero point of int8.

A Max of one value, inserted between two nodes, separates them and does not change values.
"""

from collections.abc import Collection
from typing import Final

import onnx
from onnx import helper

from qaic.compiler.ir import graph_edits as edit
from qaic.compiler.ir.elem_types import INT8, UINT8
from qaic.compiler.ir.graph_walk import FreshNames, all_graphs, op_types, standard, standard_version, usages
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.compiler.ir.value_info import ValueInfo
from qaic.compiler.passes.legalize.legalize_exports import MOVING

#: operators of quantized chains
ROUNDING: Final = frozenset({"DequantizeLinear", "QuantizeLinear"})
#: first operator set whose QuantizeLinear has ``output_dtype``
_HAS_TYPE: Final = 21
#: element types of float8
_FLOAT8: Final = range(17, 21)


def legalize_quantized_chains(model: onnx.ModelProto, facts: ValueInfo) -> dict[str, str]:
    """Separate nodes that the engine must not merge; changes `model`.

    Returns each added value, and the value that it equals.
    """
    added: dict[str, str] = {}
    if op_types(model).isdisjoint(ROUNDING):
        return added
    types, shapes = facts.types, facts.shapes
    fresh, has_type = FreshNames(model.graph), standard_version(model) >= _HAS_TYPE

    def is_repeated(node: onnx.NodeProto) -> bool:
        if node.op_type != "DequantizeLinear":
            return False
        scales = shapes.get(node.input[1], ())
        # With a scale for each channel, it is also repeated, unless it has zero points.
        if len(scales) > 1 or (scales not in {(), (1,)} and _has_zero_point(node)):
            return False
        elem_type = types.get(node.input[0])
        if _has_zero_point(node):
            return elem_type in _FLOAT8 or (has_type and elem_type == INT8)
        return elem_type != UINT8

    def is_apart(node: onnx.NodeProto, reader: onnx.NodeProto, read: Collection[str]) -> bool:
        if is_repeated(node):
            return standard(reader, *MOVING)
        if standard(node, "MaxPool") and any(name in read for name in node.output[1:]):
            return standard(reader, "QuantizeLinear", *MOVING)
        rounds = standard(node, "Clip", "Relu", *MOVING) and standard(reader, "QuantizeLinear")
        return rounds and types.get(reader.output[0]) in _FLOAT8

    for graph in all_graphs(model.graph):
        readers, nodes = usages(graph.node), list[onnx.NodeProto]()
        read = readers.keys() | {value.name for value in graph.output}
        for node in graph.node:
            nodes.append(node)
            if standard(node, "QuantizeLinear") and _has_zero_point(node):
                edit.set_attributes(node, [one for one in node.attribute if one.name != "output_dtype"])
            name = next(iter(node.output), "")
            found = [one for one, at in readers.get(name, ()) if at == 0 and is_apart(node, one, read)]
            if found:
                apart = fresh.make(name, "apart")
                added[apart] = name
                nodes.append(helper.make_node("Max", [name], [apart]))
                for reader in found:
                    edit.replace_input_with(reader, 0, apart)
        if len(nodes) > len(graph.node):
            edit.set_nodes(graph, nodes)
    return added


def _has_zero_point(node: onnx.NodeProto) -> bool:
    return len(node.input) > 2 and bool(node.input[2])


@compiler_pass()
def legalize_quantized_chains_pass(model: Model, _: Context) -> None:
    """Keep the types of quantized values if the engine would move or merge their nodes."""
    model.facts.add(legalize_quantized_chains(model.proto, model.facts))
