"""A graph whose attention is looked at: what its values are, and how they are found."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

import numpy as np
import onnx
from onnx import numpy_helper

from qaic.compiler.ir.precision_ops import standard
from qaic.compiler.passes.legalize.legalize_qualcomm_functions import DOMAINS

#: functions that write rows into a cache and that read rows of it, with the number of their operands
SCATTERS: Final = {"CtxScatter": 3, "CtxScatterCB": 4}
GATHERS: Final = {"CtxGather": 3, "CtxGatherCB": 4}

#: the dimension of a cache that slots are counted in: [batch, heads, slots, width]
SLOTS: Final = 2
RANK: Final = 4


class Role(Enum):
    """Role of a value that depends on the length of the context."""

    #: sizes, and what is computed of them
    SIZE = auto()
    #: a tensor of one number
    FILLED = auto()
    #: the numbers of the slots
    NUMBERS = auto()
    #: whether a slot is behind the largest position of its row
    UNUSED = auto()
    #: whether a slot is not attended; true behind the largest position
    HIDDEN = auto()
    #: something else that is known of each slot by itself
    BY_SLOT = auto()
    #: which rows of a cache are read: its own number for each slot that is used
    INDEX = auto()
    #: rows of a cache
    ROWS = auto()
    #: rows of a cache, those that are not used zero
    BLANKED = auto()
    #: products of queries and rows
    SCORES = auto()
    #: the same, hidden ones a number that the softmax makes zero
    MASKED = auto()
    #: shares that add up to one, hidden ones zero
    SHARES = auto()


#: operators that keep numbers, and change shapes at most
VIEWS: Final = frozenset({"Cast", "Identity", "Unsqueeze", "Squeeze"})
OF_ROWS: Final = frozenset({Role.ROWS, Role.BLANKED})


@dataclass(slots=True)
class Attention:
    """Caches found in a graph."""

    positions: str
    scatters: list[onnx.NodeProto]
    #: values that are the length of the context, with whether they have shape [1]
    lengths: dict[str, bool] = field(default_factory=dict)
    gathers: list[onnx.NodeProto] = field(default_factory=list)
    #: what the shares of rows add up to, for each head: [batch, heads, positions, width]
    mixtures: list[str] = field(default_factory=list)
    roles: dict[str, Role] = field(default_factory=dict)
    #: sizes of rows that do not depend on the length -> which dimensions they are of
    other_sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)


class AttentionGraph:
    """A graph whose nodes can be looked up by the values they make and read."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.inputs = {value.name: value for value in graph.input}
        self.outputs = {value.name for value in graph.output}
        self.makers = {name: node for node in graph.node for name in node.output if name}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in dict.fromkeys(node.input):
                self.readers.setdefault(name, []).append(node)
        self.initializers = {tensor.name: tensor for tensor in graph.initializer}

    def constant(self, name: str) -> Any:
        """Return the numbers of a small constant, or None."""
        tensor = self.initializers.get(name)
        node = self.makers.get(name)
        if tensor is None and node is not None and standard(node, "Constant") and len(node.attribute) == 1:
            attribute = node.attribute[0]
            if attribute.name in {"value_int", "value_float"}:
                return np.array(attribute.i if attribute.name == "value_int" else attribute.f)
            if attribute.name in {"value_ints", "value_floats"}:
                return np.array(attribute.ints if attribute.name == "value_ints" else attribute.floats)
            tensor = attribute.t if attribute.name == "value" else None
        return None if tensor is None or tensor.external_data else numpy_helper.to_array(tensor)

    def number(self, name: str) -> float | None:
        """Return the one number that all elements of a constant have, or None."""
        array = self.constant(name)
        if array is None or array.size == 0 or array.dtype.kind not in "iufb":
            return None
        first = array.reshape(-1)[0]
        return float(first) if (array == first).all() else None


def calls(node: onnx.NodeProto, functions: Mapping[str, int]) -> bool:
    """Return whether a node calls one of some functions for the card."""
    return node.domain in DOMAINS and functions.get(node.op_type) == len(node.input)
