"""State of which a program computes only the changed rows.

A decoder writes a row of each cache per token with ``ScatterND``, which copies the cache. Where nothing
else reads the result, the rows and their indices become the outputs of the graph in its place; the device
writes them into the one buffer of the state once the inference has succeeded.

What a cache goes through on its way in and out may be casts, as between the float16 of a buffer and the
float32 of kernels. They then apply to the rows, and to what is read of the cache. So rows that a caller gave,
and that nothing has written, are read rounded and are not rounded themselves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import onnx
from onnx import helper

from qaic.compiler.ir.context import Context, Skip, compiler_pass
from qaic.compiler.ir.elem_types import BFLOAT16, DOUBLE, FLOAT, FLOAT16
from qaic.compiler.ir.graph_edits import (
    add_output,
    clone_unnamed,
    drop_unneeded_nodes,
    rename_output,
    replace_input_with,
    set_nodes,
    set_outputs,
)
from qaic.compiler.ir.graph_walk import FreshNames, producers, uses
from qaic.compiler.ir.model import Model, RowTensor, RowUpdate, StateRows
from qaic.compiler.ir.precision_ops import standard
from qaic.compiler.ir.value_info import collect_shapes, collect_types
from qaic.compiler.passes.legalize.legalize_qualcomm_functions import unguarded
from qaic.compiler.passes.shape_inference.engine_shapes import forms_with
from qaic.support.program_names import RETAINED_STATE_SUFFIX

#: float type -> types that hold all its numbers
_HOLDERS: Final[Mapping[int, frozenset[int]]] = {
    FLOAT16: frozenset({FLOAT16, FLOAT, DOUBLE}),
    BFLOAT16: frozenset({BFLOAT16, FLOAT, DOUBLE}),
    FLOAT: frozenset({FLOAT, DOUBLE}),
}

#: operators that select numbers of their first operand without changes
_SELECTING: Final = ("Gather", "GatherND", "Slice")


@dataclass(frozen=True, slots=True)
class _State:
    """One state whose rows are written by a scatter."""

    name: str
    scatter: onnx.NodeProto
    #: casts behind the input and behind the scatter, in order
    entering: Sequence[onnx.NodeProto]
    leaving: Sequence[onnx.NodeProto]
    #: indices and rows; rows outside are not written
    indices: str
    rows: str
    skips_outside: bool


class _States:
    """Finds the states of a graph that are written by rows, and removes the writing from it."""

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
        # Each value on the way has one use, the next value; the last one is the output.
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
        for state in states:
            if state.entering:
                kept = _select_before_casts(kept, state, fresh)
        set_nodes(self.graph, kept)
        return results


def narrowed(casts: Sequence[onnx.NodeProto], elem_type: int) -> set[int]:
    """Collect the types that casts go through and that do not hold every number of a type."""
    holders = _HOLDERS.get(elem_type, frozenset({elem_type}))
    targets = {int(a.i) for node in casts for a in node.attribute if a.name == "to"}
    return targets - holders if elem_type in _HOLDERS or targets <= holders else {0}


def _after_casts(
    name: str, casts: Sequence[onnx.NodeProto], nodes: list[onnx.NodeProto], fresh: FreshNames, base: str
) -> str:
    """Apply casts to a value; returns the name of the result."""
    for node in casts:
        copy = clone_unnamed(node)
        replace_input_with(copy, 0, name)
        name = fresh.make(base, "rows")
        rename_output(copy, 0, name)
        nodes.append(copy)
    return name


def _select_before_casts(
    nodes: list[onnx.NodeProto], state: _State, fresh: FreshNames
) -> list[onnx.NodeProto]:
    """Cast the values read from a state instead of the state."""
    cast = state.entering[-1].output[0]
    made: list[onnx.NodeProto] = []
    for node in nodes:
        if cast not in node.input:
            made.append(node)
        elif standard(node, "Shape"):
            replace_input_with(node, 0, state.name)
            made.append(node)
        elif standard(node, *_SELECTING) and list(node.input).count(cast) == 1 and node.input[0] == cast:
            result = node.output[0]
            replace_input_with(node, 0, state.name)
            rename_output(node, 0, fresh.make(result, "stored"))
            made.append(node)
            casts: list[onnx.NodeProto] = []
            _after_casts(node.output[0], state.entering, casts, fresh, result)
            rename_output(casts[-1], 0, result)
            made += casts
        else:
            made.append(node)
    read = {name for node in made for name in node.input}
    for node in reversed(state.entering):
        if node.output[0] not in read:
            made = [other for other in made if other is not node]
            read = {name for other in made for name in other.input}
    return made


@compiler_pass(lambda context: context.moves_parts_of_state)
def take_out_state_rows_pass(model: Model, context: Context) -> bool:
    """Compute only the rows of state that an inference changes."""
    states = _States(model).find(context.skip)
    if not states:
        return False
    changed = model.copy()
    found = _States(changed)
    results = found.take_out(found.find())
    names = list(dict.fromkeys(name for pair in results for name in pair))
    graph = changed.proto.graph
    removed = {f"{state.name}{RETAINED_STATE_SUFFIX}" for state in states}
    set_outputs(graph, [value.name for value in graph.output if value.name not in removed])
    tensors = _tensors(changed, names)
    if not tensors:
        for state in states:
            context.skip("the whole state is copied: the sizes of its rows are unknown", state.scatter)
        return False
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
    _add_outputs(changed, tensors)
    drop_unneeded_nodes(changed.proto.graph)
    model.proto = changed.proto
    model.state_rows = StateRows(tuple(tensors), tuple(updates))
    return True


def _tensors(model: Model, names: Sequence[str]) -> list[RowTensor]:
    """Infer types and shapes of values in each specialization; empty if one is not known."""
    forms = forms_with(model, names)
    shapes = [collect_shapes(form) for form in forms]
    types = collect_types(forms[-1]) if forms else {}
    if any(name not in types or any(name not in each for each in shapes) for name in names):
        return []
    return [RowTensor(name, types[name], tuple(each[name] for each in shapes)) for name in names]


def _add_outputs(model: Model, tensors: Sequence[RowTensor]) -> None:
    for tensor in tensors:
        dims = [column[0] if len(set(column)) == 1 else None for column in zip(*tensor.dims, strict=True)]
        add_output(model.proto.graph, helper.make_tensor_value_info(tensor.name, tensor.elem_type, dims))
