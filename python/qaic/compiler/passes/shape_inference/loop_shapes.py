"""Shapes inside nested graphs: states of Loop, rows of Scan, values of branches.

Onnx does not infer the states of a Loop, because an iteration may change their shapes. If an iteration
returns a state with the shape of its first value, the state has this shape in every iteration. Bodies without
type annotations, which older exporters write, are inferred with these shapes.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import onnx
from onnx import helper

from qaic.compiler.ir import graph_edits as edit
from qaic.compiler.ir.explicit_padding import rounded_up_padding, set_padding
from qaic.compiler.ir.graph_walk import (
    all_nodes,
    attribute_of,
    behind,
    find_nodes,
    node_key,
    producers,
    read_values,
    standard,
    subgraphs,
    windows_of,
)
from qaic.compiler.ir.shape_arithmetic import computed_values
from qaic.compiler.ir.value_info import declared_dims, is_open, known_dims
from qaic.compiler.passes.shape_inference import sequence_shapes
from qaic.compiler.passes.shape_inference.sequence_shapes import Infer
from qaic.errors import CompileError

#: indices of the operands of a Loop; states begin at the last index
_COUNT, _CONDITION, _STATES = 0, 1, 2


def complete(found: onnx.ModelProto, infer: Infer) -> bool:
    """Add the shapes of the results of loops, and of branches that contain loops; changes `found`.

    Inputs have fixed shapes. Returns True if a shape was added.
    """
    learned = False
    loops: dict[str, tuple[onnx.ModelProto, int | None]] = {}
    declared = {value.name: value for value in (*found.graph.value_info, *found.graph.output)}
    for node, _, body, is_stable in bodies(found, infer):
        states = len(node.input) - _STATES
        trips = _trips(found, node, body)
        loops[node_key(node)] = (body, trips)
        for at, (name, result) in enumerate(zip(node.output, body.graph.output[1:], strict=False)):
            dims = known_dims(result)
            own = declared.get(name)
            if not name or dims is None or (own is not None and known_dims(own) is not None):
                continue
            if at >= states and trips is None:
                continue
            if at < states and not is_stable[at]:
                continue
            value = edit.describe_value(found.graph, name) if own is None else own
            described = edit.clone(result)
            described.name = name
            edit.redescribe(value, described)
            edit.set_shape(value, dims if at < states else (trips, *dims))
            learned = True
    for node in found.graph.node:
        results = [declared.get(name) for name in node.output] if standard(node, "If") else []
        if any(value is not None and known_dims(value) is None for value in results):
            learned |= _complete_branches(results, _branches(found, node, infer))
    return sequence_shapes.complete(found, loops, infer) or learned


def _branches(found: onnx.ModelProto, node: onnx.NodeProto, infer: Infer) -> list[onnx.ModelProto]:
    """Infer the branches of an If that may run; [] if one does not fit, because this branch may never run."""
    condition = computed_values(found).get(node.input[0])
    if condition is not None:
        chosen = "then_branch" if condition.all() else "else_branch"
        branch = [attribute for attribute in node.attribute if attribute.name == chosen]
        node = onnx.NodeProto(op_type=node.op_type, attribute=branch)
    try:
        return list(nested(found, node, infer))
    except CompileError:
        return []


def _complete_branches(
    results: Sequence[onnx.ValueInfoProto | None], branches: Sequence[onnx.ModelProto]
) -> bool:
    """Give the results of an If the shapes that all branches have; returns True if a shape was added."""
    learned = False
    for at, value in enumerate(results):
        found = {known_dims(branch.graph.output[at]) for branch in branches}
        dims = found.pop() if len(found) == 1 else None
        if value is not None and is_open(value) and dims is not None:
            edit.set_shape(value, dims)
            learned = True
    return learned


def declare_rows(graph: onnx.GraphProto, forms: Sequence[onnx.ModelProto], infer: Infer) -> None:
    """Declare the shapes of rows in the bodies of loops, also of nested ones; changes `graph`.

    For a loop without iterations, the engine reads the shapes of its results from these declarations. `forms`
    are the inferred forms of the graph, one for each set of shapes.
    """
    if not any(map(_open_rows, find_nodes(graph.node, {"Loop"}))):
        return
    loops = [{node_key(node): body for node, _, body, _ in bodies(form, infer)} for form in forms]
    makers = [producers(form.graph.node) for form in forms]
    for node in graph.node:
        key = node_key(node)
        found = [
            [loop[key]] if key in loop else list(nested(form, made[key], infer))
            for form, loop, made in zip(forms, loops, makers, strict=True)
            if any(subgraphs(node))
        ]
        for at, row in _open_rows(node).items():
            rows = {known_dims(body.graph.output[at]) for (body,) in found}
            dims = rows.pop() if len(rows) == 1 else None
            if dims is not None:
                edit.set_shape(row, dims)
        for at, inner in enumerate(subgraphs(node)):
            declare_rows(inner, [inferred[at] for inferred in found], infer)


def _open_rows(node: onnx.NodeProto) -> dict[int, onnx.ValueInfoProto]:
    """Map the positions of rows in the body of a Loop to those that declare no shape."""
    if not standard(node, "Loop"):
        return {}
    first_row = 1 + len(node.input) - _STATES
    return {
        at: row
        for body in subgraphs(node)
        for at, row in enumerate(body.output)
        if at >= first_row and is_open(row)
    }


def bodies(
    found: onnx.ModelProto, infer: Infer
) -> Iterator[tuple[onnx.NodeProto, onnx.ModelProto, onnx.ModelProto, Sequence[bool]]]:
    """Yield the loops of the main graph with two inferred bodies, and True for states that keep their shape.

    The first body has the shapes of the first iteration, the second those that all iterations share.
    """
    loops = [node for node in found.graph.node if standard(node, "Loop")]
    if not loops:
        return
    outer = _described(found.graph)
    for node in loops:
        body = attribute_of(node, "body", onnx.GraphProto())
        firsts = [outer.get(name) for name in node.input[_STATES:]]
        stable = [first is not None and known_dims(first) is not None for first in firsts]
        first_body = None
        while True:
            inner = infer(_model_of(found, body, firsts, stable, outer, start=_STATES))
            first_body = first_body or inner
            results = inner.graph.output[1 : 1 + len(firsts)]
            kept = [
                is_stable and first is not None and known_dims(first) == known_dims(result)
                for is_stable, first, result in zip(stable, firsts, results, strict=False)
            ]
            if kept == stable:
                break
            stable = kept
        yield node, first_body, inner, stable


def called(found: onnx.ModelProto, infer: Infer) -> onnx.ModelProto | None:
    """Infer a model of the calls of functions in the main graph; None without calls."""
    functions = {(body.domain, body.name) for body in found.functions}
    calls = [node for node in found.graph.node if functions and (node.domain, node.op_type) in functions]
    if not calls:
        return None
    results = [helper.make_empty_tensor_value_info(name) for call in calls for name in call.output if name]
    branch = helper.make_graph(calls, "calls", [], results)
    return next(nested(found, helper.make_node("If", [], [], then_branch=branch), infer))


def nested(found: onnx.ModelProto, node: onnx.NodeProto, infer: Infer) -> Iterator[onnx.ModelProto]:
    """Yield the inferred branches or the inferred body of a node that is not a Loop."""
    # Descriptions of the whole graph for every node would take quadratic time.
    outer = _described(found.graph) if any(subgraphs(node)) else {}
    for body in subgraphs(node):
        given: list[onnx.ValueInfoProto | None] = [None] * len(body.input)
        if standard(node, "Scan") and len(node.input) == len(body.input):
            # The engine refuses a Scan with more inputs than operands, or with another number of axes.
            count = sum(one.i for one in node.attribute if one.name == "num_scan_inputs")
            axes = [axis for one in node.attribute if one.name == "scan_input_axes" for axis in one.ints]
            axes = axes or [0] * min(max(count, 0), len(given))
            if len(axes) == count <= len(given):
                given = [outer.get(name) for name in node.input]
                for at, axis in enumerate(axes, len(given) - count):
                    given[at] = _row(given[at], axis)
        yield infer(_model_of(found, body, given, [True] * len(given), outer, start=0))


def _row(value: onnx.ValueInfoProto | None, axis: int) -> onnx.ValueInfoProto | None:
    """Describe the part of a value that a Scan reads in one iteration; None if its dims are not known."""
    dims = None if value is None else known_dims(value)
    if value is None or not dims or not -len(dims) <= axis < len(dims):
        return None
    row = edit.clone(value)
    edit.set_shape(row, [size for at, size in enumerate(dims) if at != axis % len(dims)])
    return row


def _described(graph: onnx.GraphProto) -> dict[str, onnx.ValueInfoProto]:
    """Map the values of a graph to their descriptions."""
    outer = {
        tensor.name: helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in graph.initializer
    }
    return outer | {value.name: value for value in (*graph.input, *graph.value_info, *graph.output)}


def _model_of(
    found: onnx.ModelProto,
    body: onnx.GraphProto,
    firsts: Sequence[onnx.ValueInfoProto | None],
    stable: Sequence[bool],
    outer: Mapping[str, onnx.ValueInfoProto],
    *,
    start: int,
) -> onnx.ModelProto:
    """Create a model of a body whose inputs from `start` have the shapes of their first values."""
    graph = edit.clone(body)
    edit.clear_descriptions(graph)
    for value, first, is_stable in zip(graph.input[start:], firsts, stable, strict=False):
        if first is not None:
            described = edit.clone(first)
            described.name = value.name
            if not is_stable:
                edit.clear_shape(described)
            edit.redescribe(value, described)
    for value in graph.input[:start]:
        edit.set_shape(value, ())
    for value in graph.output:
        edit.clear_shape(value)
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    captured = read_values(body) - own - {name for node in body.node for name in node.output}
    for tensor in found.graph.initializer:
        if tensor.name in captured:
            captured.discard(tensor.name)
            edit.register_initializer(graph, tensor)
    # Inputs have no values, and sequences have no shape.
    copied: list[onnx.NodeProto] = []
    for one in reversed(found.graph.node):
        if standard(one, "Constant", "SequenceConstruct", "SequenceEmpty") and one.output[0] in captured:
            copied.insert(0, one)
            captured.discard(one.output[0])
            captured.update(one.input)
    for name in sorted(captured):
        if name in outer:
            edit.add_input(graph, outer[name])
    if copied:
        edit.set_nodes(graph, [*copied, *graph.node])
    return type(found)(
        ir_version=found.ir_version, opset_import=found.opset_import, functions=found.functions, graph=graph
    )


def _trips(found: onnx.ModelProto, node: onnx.NodeProto, body: onnx.ModelProto) -> int | None:
    """Count the iterations of a loop; None if they depend on data."""
    going_on = behind(body.graph.output[0].name, producers(body.graph.node), "Identity")
    values = computed_values(found)
    is_endless = going_on == body.graph.input[_CONDITION].name or bool(
        (constant := computed_values(body).get(going_on)) is not None and constant.all()
    )
    count, first = (node.input[at] for at in (_COUNT, _CONDITION))
    if not is_endless or count not in values:
        return None
    if first and first not in values:
        return None
    is_entered = not first or bool(values[first].all())
    return max(int(values[count].reshape(())), 0) if is_entered else 0


_POOLS: Final = frozenset({"AveragePool", "LpPool", "MaxPool"})


def correction(found: onnx.ModelProto) -> dict[str, list[int]]:
    """Find the first pool whose sizes inferred by onnx differ from those that the engine computes.

    The sizes of later pools may depend on this pool. Returns first output of the pool -> the padding with
    which the pool has the right sizes without `ceil_mode`, [] for automatic padding; empty if all sizes are
    right.
    """
    pools = [node for node in find_nodes(found.graph.node, _POOLS) if attribute_of(node, "ceil_mode", 0)]
    dims = declared_dims(found) if pools else {}
    for node in pools:
        given, made = dims.get(node.input[0], (None,)), dims.get(node_key(node), (None,))
        sizes = [size for size in given[2:] if size is not None]
        if None in given or None in made:
            continue
        right = rounded_up_padding(node, sizes)
        if right is not None and right[1] != made[2:]:
            return {node_key(node): right[0]}
    return {}


def correct(view: onnx.ModelProto, padding: Mapping[str, list[int]]) -> None:
    """Replace `ceil_mode` by padding in the pools of a model that is used only for inference."""
    for node in all_nodes(view.graph.node):
        if node_key(node) in padding:
            pads = padding[node_key(node)]
            if pads:
                _widen_windows(node)
                set_padding(node, pads)
            else:
                edit.set_attributes(node, [item for item in node.attribute if item.name != "ceil_mode"])


def _widen_windows(node: onnx.NodeProto) -> None:
    """Give a pool dense windows of the same size; the engine refuses padding that is not below the kernel."""
    axes = windows_of(node, attribute_of(node, "kernel_shape", list[int]()))
    kept = [item for item in node.attribute if item.name not in {"dilations", "kernel_shape"}]
    windows = [(edge - 1) * step + 1 for edge, _, step in axes]
    edit.set_attributes(node, [*kept, helper.make_attribute("kernel_shape", windows)])
