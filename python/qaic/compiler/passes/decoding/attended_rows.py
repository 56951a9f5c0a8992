"""The attended rows of a cache, copied once.

What `narrow-context` writes reads a cache with three operators that copy all they read: ``Slice`` of the
attended slots, ``ScatterND`` of the rows that change, and ``Where`` that blanks the slots behind the last
position. The device has one operator for the three. It moves numbers and computes none; it also decodes the
MXINT8 blocks of a cache, and rounds what it reads where the graph casts that to float16.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import onnx
from onnx import helper

from qaic.compiler.ir.context import Context, Skip, compiler_pass
from qaic.compiler.ir.elem_types import FLOAT, FLOAT16, UINT8
from qaic.compiler.ir.graph_edits import set_nodes
from qaic.compiler.ir.graph_walk import DEVICE_DOMAIN, FreshNames, consumers
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.precision_ops import behind, standard
from qaic.compiler.passes.decoding.attention import RANK, SLOTS, AttentionGraph
from qaic.compiler.passes.decoding.state_rows import narrowed
from qaic.compiler.passes.legalize.legalize_qualcomm_functions import unguarded

OPERATOR: Final = "AttendedRows"


@dataclass(frozen=True, slots=True)
class _Copies:
    """The operators that copy the attended rows of one cache."""

    state: str
    length: str
    indices: str
    rows: str
    #: value that tells which slots are blanked; empty if none are
    blanked: str
    #: true if numbers of the state are rounded to float16 when they are read
    is_rounded: bool
    last: onnx.NodeProto


@compiler_pass(lambda context: context.moves_parts_of_state)
def copy_attended_rows_pass(model: Model, context: Context) -> bool:
    """Copy the attended rows of caches with one operator."""
    if model.state_rows is None:
        return False
    found = _Finder(model).find(context.skip)
    if not found:
        return False
    graph = model.proto.graph
    replaced = {
        id(copies.last): helper.make_node(
            OPERATOR,
            [copies.state, copies.length, copies.indices, copies.rows, copies.blanked],
            list(copies.last.output),
            name=copies.last.name,
            domain=DEVICE_DOMAIN,
            # Attributes with the value None are omitted.
            rounding=FLOAT16 if copies.is_rounded else None,
        )
        for copies in found
    }
    model.set_device_nodes([replaced.get(id(node), node) for node in graph.node], [OPERATOR])
    _read_blocks(model)
    return True


def _read_blocks(model: Model) -> None:
    """Make the blocks of a state inputs of the graph if only the operator reads its numbers."""
    graph, rows = model.proto.graph, model.state_rows
    if rows is None:
        return
    readers, fresh = consumers(graph.node), FreshNames(graph)
    values = {value.name: value for value in graph.input}
    updates, nodes = [], {id(node): [node] for node in graph.node}
    for update in rows.updates:
        spec = model.inputs[update.input]
        found = readers.get(spec.name, [])
        shapes = [node for node in found if standard(node, "Shape")]
        if spec.mxint8 is None or not all(
            node.domain == DEVICE_DOMAIN or (node in shapes and not node.attribute) for node in found
        ):
            updates.append(update)
            continue
        updates.append(replace(update, reads_blocks=True))
        tensor = values[spec.name].type.tensor_type
        tensor.elem_type, tensor.shape.dim[-1].dim_value = UINT8, spec.dims[-1]
        model.facts.learn(values[spec.name])
        for node in shapes:
            # The last size is that of a row in bytes.
            of_blocks, width, last = (
                fresh.make(node.output[0], part) for part in ("blocks", "width", "last")
            )
            nodes[id(node)] = [
                helper.make_node("Shape", [spec.name], [of_blocks], name=of_blocks),
                helper.make_node("Constant", [], [last], name=last, value_ints=[len(spec.dims) - 1]),
                helper.make_node("Constant", [], [width], name=width, value_ints=[spec.mxint8]),
                helper.make_node(
                    "ScatterElements", [of_blocks, last, width], list(node.output), name=node.name
                ),
            ]
    model.state_rows = replace(rows, updates=tuple(updates))
    set_nodes(graph, [made for node in graph.node for made in nodes[id(node)]])


class _Finder:
    def __init__(self, model: Model) -> None:
        self.graph = model.proto.graph
        self.of = AttentionGraph(self.graph)
        self.readers = consumers(self.graph.node)
        self.types, self.shapes = model.facts.types, model.facts.shapes
        rows = model.state_rows
        updates = () if rows is None else rows.updates
        self.states = {model.inputs[update.input].name: model.inputs[update.input] for update in updates}
        #: known sizes of values, in each set of shapes
        self.sizes: list[Mapping[str, onnx.ValueInfoProto]] = [
            {value.name: value for value in form.graph.value_info} for form in model.specialized
        ]

    def find(self, skip: Skip) -> list[_Copies]:
        found = []
        for node in self.graph.node:
            if standard(node, "ScatterND"):
                copies = self._copies(node)
                if copies is None:
                    skip("the scatter does not write float rows to the attended slots of a cache", node)
                else:
                    found.append(copies)
        return found

    def _copies(self, scatter: onnx.NodeProto) -> _Copies | None:
        part = self.of.makers.get(scatter.input[0])
        casts: list[onnx.NodeProto] = []
        while part is not None and standard(part, "Cast", "Identity"):
            casts.append(part)
            part = self.of.makers.get(part.input[0])
        operands = unguarded(scatter, self.of.makers, self.shapes)
        if part is None or operands is None or scatter.attribute or not self._is_attended(part):
            return None
        # Rows are float32, so their destination is float32, too.
        indices, rows = operands
        state = self.states[part.input[0]]
        rounding = narrowed(casts, FLOAT if state.mxint8 else state.elem_type)
        if self.types.get(rows) != FLOAT or not rounding <= {FLOAT16}:
            return None
        blank = self._blank(scatter.output[0])
        blanked, last = ("", scatter) if blank is None else (blank.input[0], blank)
        return _Copies(part.input[0], part.input[2], indices, rows, blanked, bool(rounding), last)

    def _is_attended(self, part: onnx.NodeProto) -> bool:
        """Return whether a node reads the first slots of a state."""
        state = self.states.get(part.input[0])
        if state is None or not standard(part, "Slice") or len(part.input) != RANK:
            return False
        start, axes = (self.of.constant(name) for name in (part.input[1], part.input[3]))
        is_first = start is not None and start.tolist() == [0]
        is_of_slots = axes is not None and axes.tolist() == [SLOTS]
        is_known = state.mxint8 is not None or state.elem_type in {FLOAT, FLOAT16}
        return is_first and is_of_slots and is_known and len(state.dims) == RANK

    def _blank(self, rows: str) -> onnx.NodeProto | None:
        """Find the only reader of rows, if it sets rows of some slots to zero."""
        readers = self.readers.get(rows, [])
        if len(readers) != 1 or rows in self.of.outputs or not standard(readers[0], "Where"):
            return None
        (node,) = readers
        condition, nothing, otherwise = node.input
        is_blank = otherwise == rows and condition != rows and self._is_zero(nothing)
        return node if is_blank and self._is_by_slot(condition) else None

    def _is_zero(self, name: str) -> bool:
        """Return whether a value is zero, which no cast changes."""
        return self.of.number(behind(name, self.of.makers, "Cast", "Identity")) == 0

    def _is_by_slot(self, name: str) -> bool:
        """Return whether a value has the shape [batch or 1, 1, slots, 1] in every set of shapes."""
        batches = {spec.dims[0] for spec in self.states.values()}
        for sizes in self.sizes:
            value = sizes.get(name)
            dims = [] if value is None else list(value.type.tensor_type.shape.dim)
            if len(dims) != RANK or (dims[1].dim_value, dims[3].dim_value) != (1, 1):
                return False
            # The number of slots is the one that follows from the positions.
            if dims[SLOTS].HasField("dim_value") or {dims[0].dim_value} - {1} > batches:
                return False
            if dims[0].dim_value != 1 and batches != {dims[0].dim_value}:
                return False
        return bool(self.sizes)
