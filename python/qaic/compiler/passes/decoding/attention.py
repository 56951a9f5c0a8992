"""Values of a graph that belong to attention, and the search for them.

Exporters write ``Reshape(Expand(Unsqueeze(rows, 2)))`` for shared heads. A product that broadcasts needs no
copies.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

import onnx

from qaic.compiler.ir.constants.in_graph import constant_reader
from qaic.compiler.ir.graph_walk import behind, producers, standard
from qaic.compiler.passes.legalize.legalize_qualcomm_functions import DOMAINS

#: functions that write rows into a cache and that read rows of it, with the number of their operands
SCATTERS: Final = {"CtxScatter": 3, "CtxScatterCB": 4}
GATHERS: Final = {"CtxGather": 3, "CtxGatherCB": 4}

#: the dimension of a cache that slots are counted in: [batch, heads, slots, width]
SLOTS: Final = 2
RANK: Final = 4


class Role(Enum):
    """Role of a value that depends on the length of the context."""

    #: sizes, and values computed from them
    SIZE = auto()
    #: a tensor of one number
    FILLED = auto()
    #: the numbers of the slots
    NUMBERS = auto()
    #: true for slots behind the largest position of their row
    UNUSED = auto()
    #: true for slots that are not attended, such as slots behind the largest position
    HIDDEN = auto()
    #: another property of single slots
    BY_SLOT = auto()
    #: indices of the rows of a cache that are read; each used slot has its own number
    INDEX = auto()
    #: rows of a cache
    ROWS = auto()
    #: rows of a cache, with zeros in unused ones
    BLANKED = auto()
    #: products of queries and rows
    SCORES = auto()
    #: products whose hidden ones have a value that the softmax makes zero
    MASKED = auto()
    #: shares that add up to one; hidden ones are zero
    SHARES = auto()


#: operators that keep numbers and change at most the shape
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
    #: sum of the rows by their shares, for each head: [batch, heads, positions, width]
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
        self.makers = producers(graph.node)
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in dict.fromkeys(node.input):
                self.readers.setdefault(name, []).append(node)
        #: reads the numbers of a small constant; None for other values
        self.constant = constant_reader(graph)

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


@dataclass(frozen=True, slots=True)
class SharedHeads:
    """A product with rows that were copied for every query head that shares them."""

    product: onnx.NodeProto
    #: the rows before they were copied: [batch, groups, slots, width]
    rows: str
    #: query heads for each group
    copies: int
    is_transposed: bool
    #: next node, which scales the product; the engine fuses both
    scaling: onnx.NodeProto | None
    #: its constant
    scale: float | None


def shared_heads(graph: onnx.GraphProto, found: Attention) -> dict[str, SharedHeads]:
    """Find the products whose second operand repeats each head for several queries, by their results."""
    of = AttentionGraph(graph)
    shared = {}
    for node in graph.node:
        if not standard(node, "MatMul"):
            continue
        repeated, is_transposed = of.makers.get(node.input[1]), False
        if repeated is not None and standard(repeated, "Transpose"):
            is_transposed = [list(a.ints) for a in repeated.attribute] == [[0, 1, 3, 2]]
            repeated = of.makers.get(repeated.input[0]) if is_transposed else None
        before = None if repeated is None else _rows_before_copies(repeated, of, found.roles)
        scaling = _scaling(node.output[0], of)
        # A factor that the engine computes before the run would not be part of its kernel.
        is_scaled = any(standard(reader, "Mul", "Div") for reader in of.readers.get(node.output[0], ()))
        if before is not None and (scaling is not None or not is_scaled):
            last = node if scaling is None else scaling
            scale = None if scaling is None else of.number(scaling.input[1])
            shared[last.output[0]] = SharedHeads(node, *before, is_transposed, scaling, scale)
    return shared


def _scaling(name: str, of: AttentionGraph) -> onnx.NodeProto | None:
    """Find the multiplication with a constant that is the only reader of a value."""
    readers = of.readers.get(name, ())
    if len(readers) != 1 or not standard(readers[0], "Mul", "Div") or readers[0].input[0] != name:
        return None
    return readers[0] if of.number(readers[0].input[1]) is not None else None


def _rows_before_copies(
    node: onnx.NodeProto, of: AttentionGraph, roles: Mapping[str, Role]
) -> tuple[str, int] | None:
    """Undo ``Reshape(Expand(Unsqueeze(rows, 2), [b, g, n, s, w]), [b, g * n, s, w])``."""
    expand = of.makers.get(node.input[0]) if standard(node, "Reshape") else None
    unsqueeze = of.makers.get(expand.input[0]) if expand is not None and standard(expand, "Expand") else None
    if expand is None or unsqueeze is None or not standard(unsqueeze, "Unsqueeze"):
        return None
    axes = of.constant(unsqueeze.input[1]) if len(unsqueeze.input) > 1 else None
    rows = unsqueeze.input[0]
    if axes is None or axes.reshape(-1).tolist() != [2] or roles.get(rows) not in OF_ROWS:
        return None
    spread, flat = _parts(expand.input[1], of), _parts(node.input[1], of)
    if len(spread) != RANK + 1 or len(flat) != RANK:
        return None
    copies = of.number(spread[2])
    heads = of.makers.get(flat[1])
    is_product = heads is not None and standard(heads, "Mul")
    if copies is None or not is_product or heads is None:
        return None
    factors = [of.number(name) for name in heads.input]
    kept = next((name for name, factor in zip(heads.input, factors, strict=True) if factor is None), "")
    is_spread = [_size_of(part, of, roles) for part in (*spread[:2], *spread[3:])] == [0, 1, 2, 3]
    is_flat = [_size_of(part, of, roles) for part in (flat[0], kept, *flat[2:])] == [0, 1, 2, 3]
    return (rows, int(copies)) if is_spread and is_flat and copies in factors else None


def _parts(name: str, of: AttentionGraph) -> list[str]:
    """List the parts of a shape, each without the dimension that was added to join it."""
    node = of.makers.get(name)
    while node is not None and not standard(node, "Concat"):
        if standard(node, "Where"):
            # Exporters write 1 in place of a size of -1, which never occurs.
            name = node.input[2]
        elif standard(node, "Reshape", "Cast", "Identity"):
            name = node.input[0]
        else:
            return []
        node = of.makers.get(name)
    return [] if node is None else [_bare(part, of) for part in node.input]


def _bare(name: str, of: AttentionGraph) -> str:
    return behind(name, of.makers, *VIEWS, "Reshape")


def _size_of(name: str, of: AttentionGraph, roles: Mapping[str, Role]) -> int | None:
    """Return the dimension of rows of a cache that has this size."""
    node = of.makers.get(_bare(name, of))
    if node is None or not standard(node, "Gather"):
        return None
    shape, index = of.makers.get(node.input[0]), of.constant(node.input[1])
    is_shape = shape is not None and standard(shape, "Shape") and roles.get(shape.input[0]) in OF_ROWS
    if not is_shape or index is None or index.size != 1:
        return None
    return int(index.reshape(-1)[0]) % RANK
