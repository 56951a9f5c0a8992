"""Computes only the changed rows of state, and copies only the attended rows.

A decoder writes one row of each cache per token with ``ScatterND``, which copies the cache. If nothing else
reads the result, the rows and their indices become outputs of the graph instead. The device writes them into
the buffer of the state after the inference succeeds.

A cache may be cast after it is read and before it is written, for example between a float16 buffer and
float32 kernels. The casts then apply to the written rows and to the values that are read from the cache. Rows
that only the caller wrote are therefore rounded when they are read, but the buffer does not change.

After `narrow-context`, three operators copy parts of a cache: ``Slice`` reads the attended slots,
``ScatterND`` replaces the changed rows, and ``Where`` blanks the slots after the last position. The device
has one operator for all three, which only moves values. The operator also decodes the MXINT8 blocks of a
cache, and rounds values that the graph casts to float16.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import onnx
from onnx import helper

from qaic.compiler.ir import graph_edits as edit
from qaic.compiler.ir.elem_types import BFLOAT16, DOUBLE, FLOAT, FLOAT16, UINT8
from qaic.compiler.ir.graph_walk import (
    DEVICE_DOMAIN,
    FreshNames,
    behind,
    consumers,
    producers,
    standard,
    uses,
)
from qaic.compiler.ir.model import Context, Model, RowTensor, RowUpdate, Skip, StateRows, compiler_pass
from qaic.compiler.ir.value_info import collect_shapes, collect_types
from qaic.compiler.passes.decoding.attention import RANK, SLOTS, AttentionGraph
from qaic.compiler.passes.legalize.legalize_qualcomm_functions import unguarded
from qaic.compiler.passes.shape_inference.engine_shapes import forms_with
from qaic.support.program_names import RETAINED_STATE_SUFFIX

#: float type -> types that represent all its values
_HOLDERS: Final[Mapping[int, frozenset[int]]] = {
    FLOAT16: frozenset({FLOAT16, FLOAT, DOUBLE}),
    BFLOAT16: frozenset({BFLOAT16, FLOAT, DOUBLE}),
    FLOAT: frozenset({FLOAT, DOUBLE}),
}

#: operators that select values of their first operand without changes
_SELECTING: Final = ("Gather", "GatherND", "Slice")


@dataclass(frozen=True, slots=True)
class _State:
    """One state whose rows are written by a scatter."""

    name: str
    scatter: onnx.NodeProto
    #: casts after the input and after the scatter, in order
    entering: Sequence[onnx.NodeProto]
    leaving: Sequence[onnx.NodeProto]
    #: indices and rows; rows with an index outside the state are not written
    indices: str
    rows: str
    skips_outside: bool


class _States:
    """Finds the states of a graph that scatters write, and removes these scatters."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.graph = model.proto.graph
        self.makers = producers(self.graph.node)
        self.shapes = model.facts.shapes
        self.count = uses(self.graph)

    def find(self, skip: Skip = lambda _reason, _node: None) -> list[_State]:
        inputs = {spec.name: spec for spec in self.model.inputs}
        found = []
        for output in self.model.outputs:
            name = output.name.removesuffix(RETAINED_STATE_SUFFIX)
            source = inputs.get(name)
            if name == output.name or source is None:
                continue
            is_same = (source.elem_type, source.dims) == (output.elem_type, output.dims)
            if not is_same or source.mxint8 != output.mxint8:
                continue
            state = self._state(name, FLOAT if source.mxint8 else source.elem_type)
            if state is not None:
                found.append(state)
            elif output.name in self.makers:
                skip(
                    "the whole state is copied: no scatter of rows computes only its next value",
                    self.makers[output.name],
                )
        return found

    def _state(self, name: str, elem_type: int) -> _State | None:
        leaving: list[onnx.NodeProto] = []
        value = f"{name}{RETAINED_STATE_SUFFIX}"
        node = self.makers.get(value)
        # Each value has one use: the next node, or the output for the last value.
        while node is not None and self.count[value] == 1 and standard(node, "Cast", "Identity"):
            leaving.append(node)
            value = node.input[0]
            node = self.makers.get(value)
        if node is None or self.count[value] != 1 or not standard(node, "ScatterND") or node.attribute:
            return None
        entering: list[onnx.NodeProto] = []
        source = self.makers.get(node.input[0])
        while source is not None and standard(source, "Cast", "Identity"):
            entering.append(source)
            source = self.makers.get(source.input[0])
        first = entering[-1].input[0] if entering else node.input[0]
        rounding = narrowed(entering, elem_type)
        if first != name or not narrowed(leaving, elem_type) <= rounding <= {FLOAT16, BFLOAT16}:
            return None
        operands = unguarded(node, self.makers, self.shapes)
        indices, rows = operands or node.input[1:3]
        if indices not in self.makers or rows not in self.makers:
            return None
        return _State(name, node, entering[::-1], leaving[::-1], indices, rows, operands is not None)

    def take_out(self, states: Sequence[_State]) -> list[tuple[str, str]]:
        """Remove the scatters; returns the names of rows and indices of each state."""
        fresh = FreshNames(self.graph)
        nodes = list(self.graph.node)
        removed = {id(node) for state in states for node in (state.scatter, *state.leaving)}
        results = []
        for state in states:
            rows = _after_casts(state.rows, state.leaving, nodes, fresh, state.name)
            results.append((rows, state.indices))
        kept = [node for node in nodes if id(node) not in removed]
        edit.set_nodes(self.graph, _select_before_casts(kept, states, fresh))
        return results


def narrowed(casts: Sequence[onnx.NodeProto], elem_type: int) -> set[int]:
    """Collect the types of casts that do not represent every value of `elem_type`."""
    holders = _HOLDERS.get(elem_type, frozenset({elem_type}))
    targets = {int(a.i) for node in casts for a in node.attribute if a.name == "to"}
    return targets - holders if elem_type in _HOLDERS or targets <= holders else {0}


def _after_casts(
    name: str, casts: Sequence[onnx.NodeProto], nodes: list[onnx.NodeProto], fresh: FreshNames, base: str
) -> str:
    """Apply casts to a value; returns the name of the result."""
    for node in casts:
        copy = edit.clone_unnamed(node)
        edit.replace_input_with(copy, 0, name)
        name = fresh.make(base, "rows")
        edit.rename_output(copy, 0, name)
        nodes.append(copy)
    return name


def _select_before_casts(
    nodes: list[onnx.NodeProto], states: Iterable[_State], fresh: FreshNames
) -> list[onnx.NodeProto]:
    """Cast the values read from states instead of the states."""
    by_cast = {state.entering[-1].output[0]: state for state in states if state.entering}
    made: list[onnx.NodeProto] = []
    for node in nodes:
        made.append(node)
        cast = node.input[0] if node.input else ""
        state = by_cast.get(cast)
        if state is None:
            continue
        if standard(node, "Shape"):
            edit.replace_input_with(node, 0, state.name)
        elif standard(node, *_SELECTING) and list(node.input).count(cast) == 1:
            result = node.output[0]
            edit.replace_input_with(node, 0, state.name)
            edit.rename_output(node, 0, fresh.make(result, "stored"))
            casts: list[onnx.NodeProto] = []
            _after_casts(node.output[0], state.entering, casts, fresh, result)
            edit.rename_output(casts[-1], 0, result)
            made += casts
    reads = Counter(name for node in made for name in node.input)
    unread: set[int] = set()
    for state in by_cast.values():
        for node in reversed(state.entering):
            if not reads[node.output[0]]:
                unread.add(id(node))
                reads.subtract(node.input)
    return [node for node in made if id(node) not in unread]


@compiler_pass(lambda context: context.moves_parts_of_state)
def take_out_state_rows_pass(model: Model, context: Context) -> None:
    """Compute only the rows of state that an inference changes."""
    states = _States(model).find(context.skip)
    if not states:
        return
    changed = model.copy()
    found = _States(changed)
    results = found.take_out(found.find())
    names = list(dict.fromkeys(name for pair in results for name in pair))
    graph = changed.proto.graph
    removed = {f"{state.name}{RETAINED_STATE_SUFFIX}" for state in states}
    edit.set_outputs(graph, [value.name for value in graph.output if value.name not in removed])
    tensors = _tensors(changed, names)
    if not tensors:
        for state in states:
            context.skip("the whole state is copied: the sizes of its rows are unknown", state.scatter)
        return
    inputs = [spec.name for spec in model.inputs]
    outputs = [spec.name for spec in model.outputs]
    updates = [
        RowUpdate(
            inputs.index(state.name),
            outputs.index(f"{state.name}{RETAINED_STATE_SUFFIX}"),
            names.index(rows),
            names.index(indices),
            state.skips_outside,
        )
        for state, (rows, indices) in zip(states, results, strict=True)
    ]
    for tensor in tensors:
        dims = [column[0] if len(set(column)) == 1 else None for column in zip(*tensor.dims, strict=True)]
        edit.add_output(graph, helper.make_tensor_value_info(tensor.name, tensor.elem_type, dims))
    edit.drop_unneeded_nodes(changed.proto.graph)
    model.proto, model.forms = changed.proto, changed.forms
    model.state_rows = StateRows(tuple(tensors), tuple(updates))


def _tensors(model: Model, names: Sequence[str]) -> list[RowTensor]:
    """Infer types and shapes of values in each specialization; empty if one is unknown."""
    # One inference of shapes serves this pass and `fold-sizes`.
    forms = model.forms = forms_with(model, names)
    shapes = [collect_shapes(form) for form in forms]
    types = collect_types(forms[-1]) if forms else {}
    if any(name not in types or any(name not in each for each in shapes) for name in names):
        return []
    return [RowTensor(name, types[name], tuple(each[name] for each in shapes)) for name in names]


OPERATOR: Final = "AttendedRows"


@dataclass(frozen=True, slots=True)
class _Copies:
    """The operators that copy the attended rows of one cache."""

    state: str
    length: str
    indices: str
    rows: str
    #: value that is true for slots that are blanked; empty if no slots are
    blanked: str
    #: true if values of the state are rounded to float16 when they are read
    is_rounded: bool
    last: onnx.NodeProto


@compiler_pass(lambda context: context.moves_parts_of_state)
def copy_attended_rows_pass(model: Model, context: Context) -> None:
    """Copy the attended rows of caches with one operator."""
    if model.state_rows is None:
        return
    found = _Finder(model).find(context.skip)
    if not found:
        return
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


def _read_blocks(model: Model) -> None:
    """Change inputs of state to MXINT8 blocks if only the operator of the device reads their values."""
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
            # The last size of the blocks is a number of bytes; readers of the shape need the width.
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
    edit.set_nodes(graph, [made for node in graph.node for made in nodes[id(node)]])


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
        # Rows are float32, so their destination must be float32 too.
        indices, rows = operands
        state = self.states[part.input[0]]
        rounding = narrowed(casts, FLOAT if state.mxint8 else state.elem_type)
        if self.types.get(rows) != FLOAT or not rounding <= {FLOAT16}:
            return None
        blank = self._blank(scatter.output[0])
        blanked, last = ("", scatter) if blank is None else (blank.input[0], blank)
        return _Copies(part.input[0], part.input[2], indices, rows, blanked, bool(rounding), last)

    def _is_attended(self, part: onnx.NodeProto) -> bool:
        """Return True if a node reads the first slots of a state."""
        state = self.states.get(part.input[0])
        if state is None or not standard(part, "Slice") or len(part.input) != RANK:
            return False
        start, axes = (self.of.constant(name) for name in (part.input[1], part.input[3]))
        is_first = start is not None and start.tolist() == [0]
        is_of_slots = axes is not None and axes.tolist() == [SLOTS]
        is_known = state.mxint8 is not None or state.elem_type in {FLOAT, FLOAT16}
        return is_first and is_of_slots and is_known and len(state.dims) == RANK

    def _blank(self, rows: str) -> onnx.NodeProto | None:
        """Find the only reader of rows if the reader sets the rows of some slots to zero."""
        readers = self.readers.get(rows, [])
        if len(readers) != 1 or rows in self.of.outputs or not standard(readers[0], "Where"):
            return None
        (node,) = readers
        condition, nothing, otherwise = node.input
        # Casts do not change zero.
        number = self.of.number(behind(nothing, self.of.makers, "Cast", "Identity"))
        is_blank = otherwise == rows and condition != rows and number == 0
        return node if is_blank and self._is_by_slot(condition) else None

    def _is_by_slot(self, name: str) -> bool:
        """Return True if a value has the shape [batch or 1, 1, slots, 1] in every set of shapes."""
        batches = {spec.dims[0] for spec in self.states.values()}
        for sizes in self.sizes:
            value = sizes.get(name)
            dims = [] if value is None else list(value.type.tensor_type.shape.dim)
            if len(dims) != RANK or (dims[1].dim_value, dims[3].dim_value) != (1, 1):
                return False
            # An unknown number of slots is the attended length.
            if dims[SLOTS].HasField("dim_value") or {dims[0].dim_value} - {1} > batches:
                return False
            if dims[0].dim_value != 1 and batches != {dims[0].dim_value}:
                return False
        return bool(self.sizes)
