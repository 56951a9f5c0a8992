"""Nodes that check operands while a program runs, and the error for a wrong constant operand."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from qaic.compiler.diagnostics.messages import refuse
from qaic.compiler.ir.elem_types import BOOL, INT64
from qaic.compiler.ir.graph_edits import rename_output
from qaic.compiler.ir.graph_walk import FreshNames, node_label
from qaic.compiler.ir.value_info import Added, DimsInSets, ShapesInSets
from qaic.errors import CompileError

#: first operator set in which the axes of Unsqueeze are an input
_AXES_AS_INPUT: Final = 13


def refused_operand(node: onnx.NodeProto, found: str, expected: str) -> CompileError:
    """Create the error for an operand with which the engine would not compute the node."""
    name = node_label(node)
    return refuse(
        f"node {name!r} ({node.op_type})",
        code="engine_refused",
        found=found,
        expected=expected,
        fix="export the model with such operands, or replace this node",
        context={"node": name, "operator": node.op_type},
    )


class GuardNodes:
    """Collects nodes that are inserted before a node, and describes their values.

    `added` receives the values; `version` is the operator set of the model. `types`, `shapes` and `dims`
    describe the values of the model.
    """

    def __init__(
        self,
        fresh: FreshNames,
        added: dict[str, Added],
        version: int,
        *,
        types: Mapping[str, int] = MappingProxyType({}),
        shapes: ShapesInSets = lambda _: (),
        dims: DimsInSets = lambda _: (),
    ) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.types, self.shapes, self.dims = types, shapes, dims
        self._fresh, self._added, self._version = fresh, added, version

    def value(self, base: str, suffix: str, like: str | None, elem_type: int) -> str:
        """Name a value with the shape of value `like`; "" for a scalar, None for another shape."""
        name = self._fresh.make(base, suffix)
        self._added[name] = Added(elem_type, name if like is None else like)
        return name

    def move(self, node: onnx.NodeProto, position: int, suffix: str, elem_type: int) -> str:
        """Rename a result of a node, so that nodes behind it compute the result; returns the new name.

        Options that name the result apply to the node.
        """
        result = node.output[position]
        name = self._fresh.make(result, suffix)
        self._added[name] = Added(elem_type, name, result)
        rename_output(node, position, name)
        return name

    def add(self, op_type: str, operands: list[str], output: str, **attributes: Any) -> str:
        """Append a node; returns its result."""
        self.nodes.append(helper.make_node(op_type, operands, [output], **attributes))
        return output

    def constant(self, base: str, array: npt.NDArray[Any]) -> str:
        """Append a constant; returns its name."""
        tensor = numpy_helper.from_array(array)
        name = self.value(base, "constant", None if array.ndim else "", tensor.data_type)
        return self.add("Constant", [], name, value=tensor)

    def compute(
        self,
        base: str,
        op_type: str,
        *operands: str | int | npt.NDArray[Any],
        elem_type: int = INT64,
        **attributes: Any,
    ) -> str:
        """Append a node whose operands are values or numbers; returns its result, of an unknown shape."""
        names = [
            operand if isinstance(operand, str) else self.constant(base, np.asarray(operand, np.int64))
            for operand in operands
        ]
        return self.add(op_type, names, self.value(base, op_type.lower(), None, elem_type), **attributes)

    def size(self, base: str, name: str, axis: int) -> str:
        """Append nodes that compute a size of a value; returns the size."""
        return self.compute(base, "Gather", self.compute(base, "Shape", name), axis, axis=0)

    def reject(self, name: str, elem_type: int, title: str, *wrong: str) -> str:
        """Append nodes that return a value, and that fail if an element of a condition is true.

        `title` is the name of the failing node in errors. `wrong` are boolean values of any shape.
        """
        count = ""
        for condition in wrong:
            flags = self.add("Cast", [condition], self.value(name, "flags", condition, INT64), to=INT64)
            counted = self.add("ReduceSum", [flags], self.value(name, "wrong", "", INT64), keepdims=0)
            total = [count, counted]
            count = self.add("Add", total, self.value(name, "wrong", "", INT64)) if count else counted
        # The number of wrong elements is the index of a row, and only row 0 exists.
        rows = self.value(name, "rows", None, elem_type)
        if self._version >= _AXES_AS_INPUT:
            self.add("Unsqueeze", [name, self.constant(name, np.zeros(1, np.int64))], rows)
        else:
            self.add("Unsqueeze", [name], rows, axes=[0])
        checked = self.add("Gather", [rows, count], self.value(name, "checked", name, elem_type), axis=0)
        self.nodes[-1].name = title
        return checked

    def is_zero(self, name: str) -> str:
        """Append nodes that compare integers with zero; returns the boolean value."""
        is_filled = self.add("Cast", [name], self.value(name, "is_not_zero", name, BOOL), to=BOOL)
        return self.add("Not", [is_filled], self.value(name, "is_zero", name, BOOL))
