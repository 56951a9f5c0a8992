"""Nodes that the model itself quantizes, which int8 and int16 programs do not change.

Tools write such a node between DequantizeLinear and QuantizeLinear, and store its constants as integers.
Other scales would round its values a second time.
"""

from collections.abc import Collection, Mapping
from typing import Final

import onnx

from qaic.compiler.ir.elem_types import TABLE
from qaic.compiler.ir.graph_walk import node_key, standard, usages, uses
from qaic.compiler.ir.quantization import VALUE_PRESERVING, operands, quantizable, results

#: types of integers that weights are stored in
_STORED: Final = frozenset(code for code, (name, bits) in TABLE.items() if "int" in name and bits <= 8)
#: operators that the engine computes on the integers of the model, without other scales
_MOVING: Final = VALUE_PRESERVING - {"LRN"} | {"Clip", "Identity", "Relu"}


def quantized_by_model(
    graph: onnx.GraphProto, types: Mapping[str, int], changing: Collection[str]
) -> set[str]:
    """Find the nodes of the main graph that the model quantizes, by their first output.

    `changing` contains the values that are not constants.
    """
    ends = _quantized_values(graph)
    found: set[str] = set()
    #: constants computed from stored integers
    stored: set[str] = set()
    #: dequantized values, and results of nodes that the model quantizes
    real: set[str] = set()
    for node in graph.node:
        is_read = standard(node, "Cast") and types.get(node.input[0]) in _STORED
        if is_read or standard(node, "DequantizeLinear") or not stored.isdisjoint(node.input):
            stored.update(name for name in node.output if name not in changing)
        if standard(node, "DequantizeLinear"):
            real.update(node.output)
        given = [node.input[position] for position in operands(node)]
        is_moved = standard(node, *_MOVING) and not real.isdisjoint(given)
        is_unit = (
            quantizable(node)
            and not real.isdisjoint(given)
            and all(name in real or name not in changing for name in given)
            and ends.issuperset(node.output[position] for position in results(node))
        )
        if is_moved or is_unit:
            real.update(node.output)
        if is_moved or is_unit or (quantizable(node) and not stored.isdisjoint(given)):
            found.add(node_key(node))
    return found


def _quantized_values(graph: onnx.GraphProto) -> set[str]:
    """Collect the values that only QuantizeLinear reads, directly or behind nodes that move them."""
    found: set[str] = set()
    readers, counts = usages(graph.node), uses(graph)
    for node in reversed(graph.node):
        for name in filter(None, node.output):
            read = readers.get(name, [])
            # A value that is an output, or that a nested graph reads, has more uses than readers.
            if len(read) == counts[name] > 0 and all(
                position == 0
                and (
                    standard(reader, "QuantizeLinear")
                    or (standard(reader, *_MOVING) and found.issuperset(filter(None, reader.output)))
                )
                for reader, position in read
            ):
                found.add(name)
    return found
