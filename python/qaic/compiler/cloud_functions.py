"""What the card does with indices outside a tensor, in the functions that exporters write for it.

Functions of the domain ``com.qualcomm.cloud`` move rows in and out of caches. Their bodies are plain ONNX,
where negative indices count from the end and larger ones are errors. For the card such an index means
padding: a scatter writes nothing there, and nobody looks at what a gather reads (python-api §D.3.4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from qaic.compiler.graph_walk import FreshNames, subgraphs
from qaic.compiler.precision_ops import standard

if TYPE_CHECKING:
    from collections.abc import MutableSequence

    import onnx

DOMAIN: Final = "com.qualcomm.cloud"

#: from this version of the operator set on, axes of a reduction are an input
_AXES_AS_INPUT: Final = 18


def accept_padding(model: onnx.ModelProto) -> bool:
    """Make scatters and gathers in functions for the card take indices outside; changes `model` in place.

    Returns
    -------
    bool
        Whether there are such functions.
    """
    found = False
    for function in model.functions:
        if function.domain != DOMAIN:
            continue
        found = True
        version = next(
            (entry.version for entry in function.opset_import if entry.domain in {"", "ai.onnx"}), 0
        )
        whole = _graph_of(function)
        if any(standard(node, "ScatterND", "GatherND") for node in whole.node) or any(
            True for node in whole.node for _ in subgraphs(node)
        ):
            _rewrite(function.node, FreshNames(whole), version)
    return found


def _graph_of(function: onnx.FunctionProto) -> onnx.GraphProto:
    import onnx

    return onnx.GraphProto(node=function.node)


def _rewrite(nodes: MutableSequence[onnx.NodeProto], fresh: FreshNames, version: int) -> None:
    rewritten: list[onnx.NodeProto] = []
    for node in nodes:
        for inner in subgraphs(node):
            _rewrite(inner.node, fresh, version)
        if standard(node, "ScatterND"):
            rewritten += _Guard(node, fresh, version).scatter()
        elif standard(node, "GatherND"):
            rewritten += _Guard(node, fresh, version).gather()
        rewritten.append(node)
    copies = [type(node).FromString(node.SerializeToString()) for node in rewritten]
    del nodes[:]
    nodes.extend(copies)


class _Guard:
    """Nodes in front of one scatter or gather that replace its indices, and for a scatter its updates."""

    def __init__(self, node: onnx.NodeProto, fresh: FreshNames, version: int) -> None:
        self.node = node
        self.fresh = fresh
        self.version = version
        self.made: list[onnx.NodeProto] = []

    def gather(self) -> list[onnx.NodeProto]:
        """Read the nearest row in place of one outside."""
        skipped = next((a.i for a in self.node.attribute if a.name == "batch_dims"), 0)
        self.node.input[1] = self._nearest(self.node.input[1], self._sizes(skipped))
        return self.made

    def scatter(self) -> list[onnx.NodeProto]:
        """Repeat the first write that is inside in place of one outside.

        Two equal writes to one place are harmless in any order. Without a write inside, what is there is
        written again.
        """
        data, indices, updates = self.node.input[:3]
        sizes = self._sizes(0)
        number = self._add("Cast", self._add("Equal", indices, self._nearest(indices, sizes)), to=7)
        if self.version < _AXES_AS_INPUT:
            valid = self._add("ReduceMin", number, axes=[-1], keepdims=1)
        else:
            valid = self._add("ReduceMin", number, self._int([-1]), keepdims=1)
        column = self._add("Reshape", valid, self._int([-1, 1]))
        first = self._add("ArgMax", self._add("Reshape", valid, self._int([-1])), axis=0, keepdims=1)
        count = self._add("Shape", first)

        width = self._add("Shape", sizes)
        tuples = self._add("Reshape", indices, self._add("Concat", self._int([-1]), width, axis=0))
        spare = self._add("Gather", tuples, first, axis=0)
        spare = self._nearest(spare, sizes)
        self.node.input[1] = self._add("Where", self._add("Cast", valid, to=9), indices, spare)

        height = self._add("Gather", self._add("Shape", column), self._int([0]), axis=0)
        rows_shape = self._add("Concat", height, self._int([-1]), axis=0)
        rows = self._add("Reshape", updates, rows_shape)
        there = self._add("GatherND", data, spare)
        there = self._add("Reshape", there, self._add("Concat", count, self._int([-1]), axis=0))
        row = self._add("Gather", rows, first, axis=0)
        known = self._add("Cast", self._add("Gather", column, first, axis=0), to=9)
        row = self._add("Where", known, row, there)
        rows = self._add("Where", self._add("Cast", column, to=9), rows, row)
        self.node.input[2] = self._add("Reshape", rows, self._add("Shape", updates))
        return self.made

    def _sizes(self, skipped: int) -> str:
        """Sizes of the dimensions that the indices count in, behind `skipped` others."""
        data, indices = self.node.input[:2]
        width = self._add("Gather", self._add("Shape", indices), self._int([-1]), axis=0)
        start = self._int([skipped])
        return self._add("Slice", self._add("Shape", data), start, self._add("Add", width, start))

    def _nearest(self, indices: str, sizes: str) -> str:
        last = self._add("Sub", sizes, self._int([1]))
        return self._add("Max", self._add("Min", indices, last), self._int([0]))

    def _int(self, values: list[int]) -> str:
        import numpy as np
        from onnx import numpy_helper

        return self._add("Constant", value=numpy_helper.from_array(np.array(values, np.int64)))

    def _add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        from onnx import helper

        name = self.fresh.make(self.node.output[0], "inside")
        self.made.append(
            helper.make_node(operator, list(inputs), [name], domain=self.node.domain, **attributes)
        )
        return name
