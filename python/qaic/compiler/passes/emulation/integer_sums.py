"""Sums of integer products on their way to float16: they stay float32 until they are scaled.

A dynamically quantized product casts its int32 sums to float and multiplies them by the scales of its
operands. The sums are far beyond float16, whose largest number is 65504, and the scales are below its normal
numbers. Only the product fits.
"""

from collections.abc import Collection, Mapping
from typing import Final

import onnx

from qaic.compiler.diagnostics.compile_error import listing
from qaic.compiler.diagnostics.record import warn
from qaic.compiler.ir.constants.propagation import node_key
from qaic.compiler.ir.elem_types import FLOAT
from qaic.compiler.ir.graph_walk import all_graphs, usages
from qaic.compiler.ir.precision import Classification, PrecisionClass
from qaic.compiler.ir.precision_ops import parameter_outputs, standard

#: operators that sum integers
_SUMMING: Final = ("ConvInteger", "MatMulInteger", "ReduceSum", "MatMul")
#: operators that keep a sum of integers
_PASSING: Final = (
    *(
        *("Add", "Concat", "Expand", "Flatten", "Identity", "Neg", "Reshape", "Slice", "Squeeze", "Sub"),
        *("Transpose",),
    ),
    "Unsqueeze",
)
#: operators that apply a scale
_SCALING: Final = ("Div", "Mul")
#: operators that keep a scale or a sum
_MOVING: Final = ("Cast", "Expand", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
#: ONNX numbers of int32, int64 and uint32
_SUM_TYPES: Final = frozenset({6, 7, 12})


class IntegerSums:
    """Finds the nodes between integer products and their scaled results.

    Nested graphs are looked into. `constants` are weights next to the graph.
    """

    def __init__(
        self,
        graph: onnx.GraphProto,
        types: Mapping[str, int],
        decided: Classification,
        constants: Collection[str],
    ) -> None:
        self._types = types
        self._decided = decided
        #: nodes that read their floats unrounded
        self.scaling: set[str] = set()
        #: nodes whose results are not rounded
        self.unrounded: set[str] = set()
        #: casts of sums that no scale follows
        self.rounded: list[str] = []
        if any(standard(node, *_SUMMING) for current in all_graphs(graph) for node in current.node):
            for current in all_graphs(graph):
                self._search(current, {*constants, *(tensor.name for tensor in graph.initializer)})

    def _search(self, graph: onnx.GraphProto, outer: set[str]) -> None:
        constants = outer | {tensor.name for tensor in graph.initializer}
        readers = usages(graph.node)
        outputs = {value.name for value in graph.output}
        sums: set[str] = set()
        wide: set[str] = set()
        steps: set[str] = set()
        for node in graph.node:
            result = node.output[0] if node.output else ""
            is_integer = self._types.get(result, 0) in _SUM_TYPES
            if is_integer and (
                standard(node, *_SUMMING) or (standard(node, *_PASSING) and sums.intersection(node.input))
            ):
                sums.add(result)
                continue
            steps.update(
                node.output[position] for position in parameter_outputs(node) if position < len(node.output)
            )
            chosen = self._decided.classes.get(node_key(node))
            if chosen is not PrecisionClass.FP16 or node_key(node) not in self._decided.requested:
                continue
            made = self._kind_of_result(node, sums, wide, steps, constants)
            if made is None:
                continue
            following = readers.get(result, [])
            is_scaled_later = (
                result not in outputs
                and bool(following)
                and all(standard(reader, *_SCALING, *_MOVING) for reader, _ in following)
            )
            if node.op_type != "Cast":
                self.scaling.add(node_key(node))
            if is_scaled_later:
                self.unrounded.add(node_key(node))
                made.add(result)
            elif standard(node, *_MOVING) and made is wide:
                self.rounded.append(result)

    def _kind_of_result(
        self, node: onnx.NodeProto, sums: set[str], wide: set[str], steps: set[str], constants: set[str]
    ) -> set[str] | None:
        """Return the set for the result of a node; None if it is neither a sum nor a scale."""
        read = set(filter(None, node.input))
        if standard(node, *_MOVING):
            if node.op_type == "Cast" and (
                node.input[0] not in sums or self._types.get(node.output[0]) != FLOAT
            ):
                return None
            if node.input[0] in sums or node.input[0] in wide:
                return wide
            return steps if node.input[0] in steps else None
        if not standard(node, *_SCALING) or not read <= wide | steps | constants:
            return None
        if read & wide:
            return wide
        return steps if read & steps else None

    def report(self) -> None:
        """Warn about sums that become float16 before a scale is applied."""
        if self.rounded:
            warn(
                "float16.integer_sums",
                "float16: sums of integer products become float16 without a scale, and those beyond 65504 "
                f"become infinite: {listing(sorted(self.rounded))}; node_precision_info_file keeps them in "
                "float32",
                nodes=sorted(self.rounded),
            )
