"""Precision of each node of a program, read from its graph.

The CPU device has no float16 or bfloat16 arithmetic: a program computes in float32 and rounds. The result of
a node ``y`` is called ``y/unrounded``, is cast to the format and back, and the cast back has the name ``y``.
Element types alone would call such a node one of float32.
"""

from typing import Final

import onnx

from qaic.compiler.ir.elem_types import type_name
from qaic.compiler.ir.graph_walk import usages
from qaic.compiler.ir.precision_ops import (
    FLOAT_FORMATS,
    cast_target,
    parameter_inputs,
    selected_inputs,
    standard,
)

#: suffix of the name of a result before rounding; a number may follow
UNROUNDED: Final = "/unrounded"


def rounded_nodes(graph: onnx.GraphProto, floats: set[str]) -> dict[str, str]:
    """Find the nodes of the main graph whose floats are rounded to a format.

    `floats` are the float32 values. Returns first output of a node -> ``float16`` or ``bfloat16``. The casts
    of a rounding belong to it.
    """
    #: casts to a format -> the value that they round; also constants stored in a format
    narrow = {tensor.name: ("", tensor.data_type) for tensor in graph.initializer}
    #: values in a format
    in_format: dict[str, int] = {}
    formats: dict[str, int] = {}
    #: values before the rounding of their node
    unrounded: dict[str, int] = {}
    for node in graph.node:
        if not node.output:
            continue
        result = node.output[0]
        if float_format := cast_target(node):
            narrow[result] = (node.input[0], float_format)
            formats[result] = float_format
            continue
        source, float_format = narrow.get(node.input[0], ("", 0)) if standard(node, "Cast") else ("", 0)
        if float_format in FLOAT_FORMATS and result in floats:
            if source.startswith(f"{result}{UNROUNDED}"):
                unrounded[source] = float_format
        else:
            float_format = _picked_format(node, floats, in_format)
        if float_format in FLOAT_FORMATS:
            formats[result] = float_format
            in_format.update((name, float_format) for name in node.output if name in floats)
    readers = usages(graph.node)
    for node in reversed(graph.node):
        if not node.output or node.output[0] in formats:
            continue
        found = [unrounded[name] for name in node.output if name in unrounded]
        # A node in a format that reads a value unrounded rounds it itself.
        found += [
            formats.get(reader.output[0], 0)
            for name in node.output
            if name in floats
            for reader, position in readers.get(name, ())
            if not cast_target(reader) and position not in parameter_inputs(reader)
        ]
        if any(found):
            formats[node.output[0]] = max(found)
    return {name: type_name(float_format) for name, float_format in formats.items()}


def _picked_format(node: onnx.NodeProto, floats: set[str], in_format: dict[str, int]) -> int:
    """Return the format of all floats from which a node picks its results; 0 for none."""
    for float_format in FLOAT_FORMATS:
        picked = selected_inputs(node, float_format) or ()
        read = [
            node.input[place] for place in picked if place < len(node.input) and node.input[place] in floats
        ]
        if read and all(in_format.get(name) == float_format for name in read):
            return float_format
    return 0
