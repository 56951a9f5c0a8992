"""Nodes that are written one after another, whose results get fresh names."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from qaic.compiler.ir.graph_walk import FreshNames

#: a value, integers, or numbers of another type
Operand: TypeAlias = str | int | Sequence[int] | np.generic | npt.NDArray[Any]


@dataclass
class NodeWriter:
    """Collects nodes in order.

    A result is named after `base`, with `suffix` or, without one, with the operator in lower case.
    """

    fresh: FreshNames
    #: operator set
    version: int
    base: str
    suffix: str = ""
    domain: str | None = None
    #: true if nodes have the names of their results
    names_nodes: bool = False
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def add(self, operator: str, *operands: Operand, output: str = "", **attributes: Any) -> str:
        """Append a node, behind constants for its numbers; returns its result."""
        names = [operand if isinstance(operand, str) else self.constant(operand) for operand in operands]
        result = output or self.fresh.make(self.base, self.suffix or operator.lower())
        node = helper.make_node(operator, names, [result], domain=self.domain, **attributes)
        if self.names_nodes:
            node.name = result
        self.nodes.append(node)
        return result

    def constant(self, value: Operand) -> str:
        """Append a constant; returns its name."""
        is_typed = isinstance(value, np.generic | np.ndarray)
        array = np.asarray(value) if is_typed else np.array(value, np.int64)
        return self.add("Constant", value=numpy_helper.from_array(array))

    def reduced(self, operator: str, value: str, axis: int, **attributes: Any) -> str:
        """Append a reduction along an axis, which is an attribute in old operator sets."""
        if self.version < 18:
            return self.add(operator, value, axes=[axis], **attributes)
        return self.add(operator, value, [axis], **attributes)
