"""Proof that a decoder computes the same results with a shorter context.

Each value that depends on the caches or on the length of the context gets a role. The proof fails if a node
has no rule for the roles of its operands. It assumes that the softmax of a hidden score is zero next to a
visible score (`HIDDEN_SCORE`), and that each query except padding attends to at least one slot.
"""

from collections.abc import Sequence
from typing import Final

import onnx
from onnx import numpy_helper

from qaic.compiler.ir.graph_walk import STANDARD_DOMAINS, attribute_of, behind, standard, subgraphs
from qaic.compiler.passes.decoding.attention import (
    GATHERS,
    OF_ROWS,
    RANK,
    SCATTERS,
    SLOTS,
    VIEWS,
    Attention,
    AttentionGraph,
    Role,
    calls,
)
from qaic.support.program_names import RETAINED_STATE_SUFFIX

#: largest hidden score; its softmax is zero if there is a visible score
HIDDEN_SCORE: Final = -1e4

_ARITHMETIC: Final = frozenset({"Add", "Sub", "Mul", "Div", "Neg", "Tanh", "Cast", "Identity"})
_SIZES: Final = frozenset(
    {
        *("Add", "Cast", "Concat", "ConstantOfShape", "Div", "Equal", "Gather", "Identity", "Mul", "Reshape"),
        *("Shape", "Slice", "Squeeze", "Sub", "Unsqueeze", "Where"),
    }
)
#: roles whose last dimension is the slots
_BY_COLUMN: Final = frozenset({Role.SCORES, Role.MASKED, Role.SHARES})
_OF_BOOLS: Final = frozenset({Role.UNUSED, Role.HIDDEN, Role.BY_SLOT})
_COMPARISONS: Final = frozenset({"Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"})


class _NotProvedError(Exception):
    """Results may change; the message states the reason."""


def find_attention(graph: onnx.GraphProto) -> Attention | str:
    """Prove that a graph computes the same results with a shorter context.

    Functions that write and read caches must not be expanded. Returns the values and nodes to rewrite, or the
    reason why the graph must not change.
    """
    try:
        return _Proof(graph).run()
    except _NotProvedError as error:
        return str(error)


class _Proof:
    def __init__(self, graph: onnx.GraphProto) -> None:
        self.of = AttentionGraph(graph)
        self.caches: set[str] = set()
        self.positions = ""
        self.filled: dict[str, float] = {}
        #: values with rows in the order of a cache, and values with their shapes
        self.in_order: set[str] = set()
        self.row_shapes: set[str] = set()

    def run(self) -> Attention:
        scatters = [self._scatter(output.name) for output in self.of.graph.output if self._is_state(output)]
        if not scatters:
            raise _NotProvedError("the model has no caches")
        positions = {self._positions(node.input[-2]) for node in scatters}
        if len(positions) != 1:
            raise _NotProvedError("rows are written at positions of several inputs")
        self.positions = positions.pop()
        found = Attention(self.positions, scatters)
        self.caches = {node.output[0] for node in scatters}
        for node in scatters:
            self._lengths(found, node)
        self._walk(found)
        return found

    def _is_state(self, output: onnx.ValueInfoProto) -> bool:
        base = output.name.removesuffix(RETAINED_STATE_SUFFIX)
        return base != output.name and base in self.of.inputs

    def _scatter(self, output: str) -> onnx.NodeProto:
        """Find the node that writes a cache; the cache is an input with a symbolic number of slots."""
        node = self.of.makers.get(output)
        cache = output.removesuffix(RETAINED_STATE_SUFFIX)
        if node is None or not calls(node, SCATTERS) or node.input[0] != cache:
            raise _NotProvedError(f"{output} is not {cache} with written rows")
        dims = self.of.inputs[cache].type.tensor_type.shape.dim
        if len(dims) != RANK or not dims[SLOTS].dim_param or not dims[1].dim_value:
            raise _NotProvedError(f"{cache} does not have a symbolic number of slots")
        others = [reader for reader in self.of.readers[cache] if reader is not node]
        if list(node.input).count(cache) != 1 or not all(standard(reader, "Shape") for reader in others):
            raise _NotProvedError(f"{cache} is read by more than one node")
        return node

    def _positions(self, name: str) -> str:
        """Find the input with the positions of the written rows; negative positions are padding."""
        name = behind(name, self.of.makers, "Cast", "Identity")
        node = self.of.makers.get(name)
        if node is not None and standard(node, "Where"):
            condition, written = self.of.makers.get(node.input[0]), node.input[2]
            is_padding = (
                condition is not None
                and standard(condition, "Less")
                and condition.input[0] == written
                and self.of.number(condition.input[1]) == 0
                and self.of.number(node.input[1]) is not None
            )
            if not is_padding:
                raise _NotProvedError(f"{name} does not contain positions of an input")
            return self._positions(written)
        value = self.of.inputs.get(name)
        if value is None or len(value.type.tensor_type.shape.dim) != 2:
            raise _NotProvedError(f"{name} does not contain positions of an input")
        return name

    def _lengths(self, found: Attention, scatter: onnx.NodeProto) -> None:
        """Find the values that are the number of slots of a cache; its other sizes do not change."""
        for cache in (scatter.input[0], scatter.output[0]):
            for shape in self.of.readers.get(cache, ()):
                if not standard(shape, "Shape"):
                    continue
                for reader in self.of.readers.get(shape.output[0], ()):
                    index = self.of.constant(reader.input[1]) if standard(reader, "Gather") else None
                    if shape.attribute or index is None or index.size != 1 or index.ndim > 1:
                        raise _NotProvedError(f"{shape.output[0]} is used for more than one size")
                    if int(index.reshape(-1)[0]) % RANK == SLOTS:
                        found.lengths[reader.output[0]] = index.ndim == 1
                        found.roles[reader.output[0]] = Role.SIZE
                if shape.output[0] in self.of.outputs:
                    raise _NotProvedError(f"{shape.output[0]} is an output")

    def _walk(self, found: Attention) -> None:
        roles = found.roles
        for node in self.of.graph.node:
            for inner in subgraphs(node):
                self._refuse_inside(inner, roles)
            if node in found.scatters or (standard(node, "Shape") and self._is_cache(node.input[0])):
                continue
            if any(name in roles or name in self.caches for name in node.input):
                if node.output[0] in roles:
                    continue
                role = self._role(node, found)
                if role is None:
                    continue
                for name in node.output:
                    if name in self.of.outputs:
                        raise _NotProvedError(f"{name} is an output")
                    roles[name] = role

    def _is_cache(self, name: str) -> bool:
        return name in self.caches or f"{name}{RETAINED_STATE_SUFFIX}" in self.caches

    def _refuse_inside(self, graph: onnx.GraphProto, roles: dict[str, Role]) -> None:
        for node in graph.node:
            for name in node.input:
                if name in roles or self._is_cache(name):
                    raise _NotProvedError(f"{name} is read in a nested graph")
            for inner in subgraphs(node):
                self._refuse_inside(inner, roles)

    def _role(self, node: onnx.NodeProto, found: Attention) -> Role | None:
        """Find the role of the results of a node; None if they do not depend on the length."""
        roles = [found.roles.get(name) for name in node.input]
        dependent = {role for role in roles if role is not None}
        refused = _NotProvedError(f"{node.op_type} {node.name or node.output[0]} has no rule")
        if calls(node, GATHERS):
            if node.input[0] not in self.caches or roles[-2:] != [Role.INDEX, Role.SIZE]:
                raise refused
            if node.input[-1] not in found.lengths:
                raise refused
            found.gathers.append(node)
            self.in_order.add(node.output[0])
            return Role.ROWS
        if node.domain not in STANDARD_DOMAINS or any(name in self.caches for name in node.input):
            raise refused
        kind = node.op_type
        first = roles[0] if roles else None
        if kind == "Shape":
            if node.input[0] in self.in_order and not node.attribute:
                self.row_shapes.add(node.output[0])
            return Role.SIZE
        if kind in {"Gather", "Slice"} and node.input[0] in self.row_shapes:
            chosen = self._other_sizes(node)
            if chosen:
                found.other_sizes[node.output[0]] = chosen
                return None
        if kind == "Range":
            is_count = self.of.number(node.input[0]) == 0 and self.of.number(node.input[2]) == 1
            if is_count and roles[1] is Role.SIZE and self._is_length(node.input[1], found):
                return Role.NUMBERS
            raise refused
        if dependent <= {Role.SIZE, Role.FILLED} and kind in _SIZES:
            return self._of_sizes(node)
        if kind in {"Reshape", "Expand"} and roles[1] in {None, Role.SIZE}:
            if first is None or first in _BY_COLUMN | {Role.INDEX}:
                raise refused
            return first
        if len(dependent) == 1 and first is not None and kind in VIEWS:
            if first in _BY_COLUMN and kind not in {"Cast", "Identity"}:
                raise refused
            return first
        if kind in _COMPARISONS:
            return self._compared(node, roles, refused)
        if kind in {"Or", "And"} and dependent <= _OF_BOOLS:
            are_hidden = [role in {Role.UNUSED, Role.HIDDEN} for role in roles]
            is_hidden = any(are_hidden) if kind == "Or" else all(are_hidden)
            return Role.HIDDEN if is_hidden else Role.BY_SLOT
        if kind == "Where":
            return self._where(node, roles, refused)
        if kind == "Transpose" and first in {Role.ROWS, Role.BLANKED}:
            return first
        if kind == "MatMul":
            if roles[0] is None and roles[1] in {Role.ROWS, Role.BLANKED}:
                return Role.SCORES
            if roles == [Role.SHARES, Role.BLANKED]:
                found.mixtures.append(node.output[0])
                return None
            raise refused
        if kind in _ARITHMETIC:
            return self._computed(dependent, refused)
        is_along_rows = kind == "Softmax" and attribute_of(node, "axis", -1) in {-1, RANK - 1}
        if is_along_rows and first is Role.MASKED:
            return Role.SHARES
        raise refused

    def _other_sizes(self, node: onnx.NodeProto) -> tuple[int, ...]:
        """Return the dimensions whose sizes a node selects; none if the slots are among them."""
        numbers = [self.of.constant(name) for name in node.input[1:]]
        chosen = [int(array.reshape(-1)[0]) for array in numbers if array is not None and array.size == 1]
        if len(chosen) != len(numbers):
            return ()
        if node.op_type == "Gather":
            sizes: tuple[int, ...] = (chosen[0] % RANK,)
        else:
            is_plain = chosen[2:] in ([], [0], [0, 1])
            sizes = tuple(range(RANK)[chosen[0] : chosen[1]]) if is_plain else ()
        return () if SLOTS in sizes else sizes

    def _is_length(self, name: str, found: Attention) -> bool:
        """Return True if a size is the length of the context."""
        node = self.of.makers.get(name)
        while name not in found.lengths:
            if node is None or not standard(node, *VIEWS, "Reshape"):
                return False
            name = node.input[0]
            node = self.of.makers.get(name)
        return True

    def _of_sizes(self, node: onnx.NodeProto) -> Role:
        if node.op_type != "ConstantOfShape":
            return Role.SIZE
        value = attribute_of(node, "value", None)
        number = 0.0 if value is None else float(numpy_helper.to_array(value).reshape(-1)[0])
        self.filled[node.output[0]] = number
        return Role.FILLED

    def _number(self, name: str) -> float | None:
        return self.filled[name] if name in self.filled else self.of.number(name)

    def _compared(self, node: onnx.NodeProto, roles: Sequence[Role | None], refused: Exception) -> Role:
        if not {role for role in roles if role is not None} <= {Role.NUMBERS, Role.BY_SLOT}:
            raise refused
        if node.op_type == "Greater" and roles[0] is Role.NUMBERS and roles[1] is None:
            return self._behind(node.input[1]) or Role.BY_SLOT
        if node.op_type == "Less" and roles[1] is Role.NUMBERS and roles[0] is None:
            return self._behind(node.input[0]) or Role.BY_SLOT
        return Role.BY_SLOT

    def _behind(self, name: str) -> Role | None:
        """Return the role of slots after this value: `UNUSED`, `HIDDEN`, or None if they may be attended."""
        is_largest = False
        node = self.of.makers.get(name)
        while node is not None:
            views = standard(node, *VIEWS, "Reshape", "Expand")
            reduces = standard(node, "ReduceMax") and self._is_by_row(node)
            if not views and not reduces:
                return None
            is_largest |= reduces
            name = node.input[0]
            node = self.of.makers.get(name)
        if name != self.positions:
            return None
        return Role.UNUSED if is_largest else Role.HIDDEN

    def _is_by_row(self, node: onnx.NodeProto) -> bool:
        axes = attribute_of(node, "axes", None)
        if axes is None and len(node.input) > 1:
            array = self.of.constant(node.input[1])
            axes = None if array is None else array.reshape(-1).tolist()
        return axes in ([1], [-1]) and node.input[0] == self.positions

    def _where(self, node: onnx.NodeProto, roles: Sequence[Role | None], refused: Exception) -> Role:
        condition, then, otherwise = roles
        number = self._number(node.input[1])
        is_number = then in {None, Role.FILLED} and number is not None
        if not is_number or number is None:
            raise refused
        if condition is Role.UNUSED and otherwise is Role.NUMBERS:
            return Role.INDEX
        if condition is Role.UNUSED and otherwise in OF_ROWS and number == 0:
            if node.input[2] in self.in_order:
                self.in_order.add(node.output[0])
            return Role.BLANKED
        is_hiding = condition in {Role.UNUSED, Role.HIDDEN} and number <= HIDDEN_SCORE
        if is_hiding and otherwise in {Role.SCORES, Role.MASKED}:
            return Role.MASKED
        raise refused

    def _computed(self, dependent: set[Role], refused: Exception) -> Role:
        by_slot = {Role.NUMBERS, Role.BY_SLOT}
        if dependent <= by_slot:
            return Role.BY_SLOT
        if dependent <= by_slot | {Role.SCORES}:
            return Role.SCORES
        raise refused
