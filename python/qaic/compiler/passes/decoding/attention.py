"""Values of a graph that belong to attention, and the search for shared heads.

Exporters write ``Reshape(Expand(Unsqueeze(rows, 2)))`` to repeat heads that several queries share. A product
that broadcasts does not need these copies.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

import onnx

from qaic.compiler.ir.constants.in_graph import constant_reader
from qaic.compiler.ir.graph_walk import behind, producers, standard
from qaic.compiler.passes.legalize.legalize_qualcomm_functions import DOMAINS

#: functions that write rows of a cache, and functions that read them, each with its number of operands
SCATTERS: Final = {"CtxScatter": 3, "CtxScatterCB": 4}
GATHERS: Final = {"CtxGather": 3, "CtxGatherCB": 4}

#: index of the slots among the dimensions of a cache: [batch, heads, slots, width]
SLOTS: Final = 2
RANK: Final = 4


class Role(Enum):
    """Role of a value that depends on the length of the context."""

    #: sizes, and values computed from them
    SIZE = auto()
    #: a tensor whose elements are all equal
    FILLED = auto()
    #: the indices of the slots
    NUMBERS = auto()
    #: true for slots after the largest position of their row
    UNUSED = auto()
    #: true for slots that are not attended, such as slots after the largest position
    HIDDEN = auto()
    #: another property of single slots
    BY_SLOT = auto()
    #: indices of the rows of a cache to read; each used slot has its own index
    INDEX = auto()
    #: rows of a cache
    ROWS = auto()
    #: rows of a cache, with zeros in unused ones
    BLANKED = auto()
    #: products of queries and rows
    SCORES = auto()
    #: scores; hidden scores have a value that the softmax converts to zero
    MASKED = auto()
    #: weights of the slots, which sum to one; the weights of hidden slots are zero
    SHARES = auto()


#: operators that do not change values and may change the shape
VIEWS: Final = frozenset({"Cast", "Identity", "Unsqueeze", "Squeeze"})
OF_ROWS: Final = frozenset({Role.ROWS, Role.BLANKED})


@dataclass(slots=True)
class Attention:
    """Caches found in a graph."""

    positions: str
    scatters: list[onnx.NodeProto]
    #: values that are the length of the context -> true if the shape is [1]
    lengths: dict[str, bool] = field(default_factory=dict)
    gathers: list[onnx.NodeProto] = field(default_factory=list)
    #: sums of the rows, weighted by `Role.SHARES`, for each head: [batch, heads, positions, width]
    mixtures: list[str] = field(default_factory=list)
    roles: dict[str, Role] = field(default_factory=dict)
    #: sizes of rows that do not depend on the length -> their dimensions
    other_sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)


class AttentionGraph:
    """Lookup of the nodes of a graph by their results and operands."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.inputs = {value.name: value for value in graph.input}
        self.outputs = {value.name for value in graph.output}
        self.makers = producers(graph.node)
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in dict.fromkeys(node.input):
                self.readers.setdefault(name, []).append(node)
        #: reads a small constant; returns None for other values
        self.constant = constant_reader(graph)

    def number(self, name: str) -> float | None:
        """Return the number that all elements of a constant are equal to, or None."""
        array = self.constant(name)
        if array is None or array.size == 0 or array.dtype.kind not in "iufb":
            return None
        first = array.reshape(-1)[0]
        return float(first) if (array == first).all() else None


def calls(node: onnx.NodeProto, functions: Mapping[str, int]) -> bool:
    """Return True if a node calls one of `functions` for the card."""
    return node.domain in DOMAINS and functions.get(node.op_type) == len(node.input)


@dataclass(frozen=True, slots=True)
class SharedHeads:
    """A product with rows that are copied for each query head that shares them."""

    product: onnx.NodeProto
    #: the rows before the copies: [batch, groups, slots, width]
    rows: str
    #: number of query heads per group
    copies: int
    is_transposed: bool
    #: next node, which scales the product; the engine fuses both
    scaling: onnx.NodeProto | None
    #: constant of `scaling`
    scale: float | None


def shared_heads(graph: onnx.GraphProto, found: Attention) -> dict[str, SharedHeads]:
    """Find the products whose second operand repeats each head for several queries, by name of the result."""
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
        # After the rewriting, the engine would not fuse a factor that it computes before the run.
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
    """Return rows and n of ``Reshape(Expand(Unsqueeze(rows, 2), [b, g, n, s, w]), [b, g * n, s, w])``."""
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
    """List the parts of a shape, each without the dimension that was added for the concatenation."""
    node = of.makers.get(name)
    while node is not None and not standard(node, "Concat"):
        if standard(node, "Where"):
            # Exporters replace a size of -1 by 1, but no size is -1.
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
    return None if not is_shape or index is None or index.size != 1 else int(index.reshape(-1)[0]) % RANK
