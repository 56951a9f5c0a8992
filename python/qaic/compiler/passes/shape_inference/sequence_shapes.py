"""Shapes of tensors that are made from lists.

Exporters write a list to which a loop appends as a sequence, and its use as a ConcatFromSequence. Onnx does
not count the tensors of a sequence; their number follows from the iterations of the loop.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qaic.compiler.ir import graph_edits as edit
from qaic.compiler.ir.graph_walk import attribute_of, behind, node_key, producers, standard
from qaic.compiler.ir.value_info import collect_shapes, known_dims

Dims: TypeAlias = tuple[int, ...]
#: shapes of the tensors of a sequence, each with the number of tensors that have it
Pieces: TypeAlias = tuple[tuple[Dims, int], ...]
#: infers the types and shapes of a model
Infer: TypeAlias = Callable[[onnx.ModelProto], onnx.ModelProto]

#: most iterations that are inferred one by one
_MOST_ITERATIONS: Final = 64


def complete(
    found: onnx.ModelProto, loops: Mapping[str, tuple[onnx.ModelProto, int | None]], infer: Infer
) -> bool:
    """Add the shapes of tensors that ConcatFromSequence and SequenceAt make; changes `found`.

    `loops` maps the first output of each Loop to its inferred body and its iterations, None if these are not
    known. Returns True if a shape was added.
    """
    readers = [node for node in found.graph.node if standard(node, "ConcatFromSequence", "SequenceAt")]
    declared = {value.name: value for value in (*found.graph.value_info, *found.graph.output)}
    open_ones = {
        node.output[0]
        for node in readers
        if node.output[0] in declared and known_dims(declared[node.output[0]]) is None
    }
    if not open_ones:
        return False
    pieces = _pieces(found, loops, infer)
    learned = False
    for node in readers:
        held = pieces.get(node.input[0], ())
        if node.op_type == "SequenceAt":
            dims = _only(dims for dims, count in held if count)
        else:
            dims = _joined(node, held)
        if node.output[0] in open_ones and dims is not None:
            edit.set_shape(declared[node.output[0]], dims)
            learned = True
    return learned


def _only(all_dims: Iterable[Dims]) -> Dims | None:
    """Return the shape that all tensors have; None if they differ."""
    shapes = set(all_dims)
    return shapes.pop() if len(shapes) == 1 else None


def _pieces(
    found: onnx.ModelProto, loops: Mapping[str, tuple[onnx.ModelProto, int | None]], infer: Infer
) -> dict[str, Pieces]:
    """Map the sequences of the main graph to their pieces, if all shapes are known."""
    shapes, pieces = collect_shapes(found), dict[str, Pieces]()
    for node in found.graph.node:
        if standard(node, "SequenceEmpty", "SequenceConstruct"):
            if all(name in shapes for name in node.input):
                pieces[node.output[0]] = tuple((shapes[name], 1) for name in node.input)
        elif standard(node, "SequenceInsert"):
            if node.input[0] in pieces and node.input[1] in shapes:
                pieces[node.output[0]] = (*pieces[node.input[0]], (shapes[node.input[1]], 1))
        elif standard(node, "Loop") and node_key(node) in loops:
            body, trips = loops[node_key(node)]
            for at, (first, result) in enumerate(zip(node.input[2:], node.output, strict=False), 2):
                added = (
                    None if first not in pieces or trips is None else _all_appended(body, at, trips, infer)
                )
                if added is not None:
                    pieces[result] = (*pieces[first], *added)
    return pieces


def _all_appended(body: onnx.ModelProto, at: int, trips: int, infer: Infer) -> Pieces | None:
    """Return the pieces that all iterations add to the sequence that is input `at`; None if not known."""
    added = _appended(body, at)
    if added is not None or trips > _MOST_ITERATIONS:
        return None if added is None else tuple((dims, count * trips) for dims, count in added)
    pieces = list[tuple[Dims, int]]()
    for number in range(trips):
        # Starts of slices follow from the number of the iteration.
        numbered = edit.clone(body)
        graph = numbered.graph
        constant = numpy_helper.from_array(np.array(number, np.int64), graph.input[0].name)
        edit.set_nodes(
            graph, [helper.make_node("Constant", [], [constant.name], value=constant), *graph.node]
        )
        edit.rename_declared(graph, {constant.name: f"{constant.name}/number"})
        added = _appended(infer(numbered), at)
        if added is None:
            return None
        pieces += added
    return tuple(pieces)


def _appended(body: onnx.ModelProto, at: int) -> Pieces | None:
    """Return the pieces that an iteration adds to the sequence that is input `at`; None if not known."""
    makers, shapes = producers(body.graph.node), collect_shapes(body)
    name, added = body.graph.output[at - 1].name, list[tuple[Dims, int]]()
    while (name := behind(name, makers, "Identity")) != body.graph.input[at].name:
        maker = makers.get(name)
        if maker is None or not standard(maker, "SequenceInsert") or maker.input[1] not in shapes:
            return None
        added.append((shapes[maker.input[1]], 1))
        name = maker.input[0]
    return tuple(added)


def _joined(node: onnx.NodeProto, pieces: Sequence[tuple[Dims, int]]) -> Dims | None:
    """Return the shape of the result of a ConcatFromSequence; None if the pieces do not fit."""
    held = [(dims, count) for dims, count in pieces if count]
    ranks = {len(dims) for dims, _ in held}
    if len(ranks) != 1:
        return None
    is_stacked = attribute_of(node, "new_axis", 0) == 1
    rank = ranks.pop() + is_stacked
    axis = attribute_of(node, "axis", 0)
    if not -rank <= axis < rank:
        return None
    axis %= rank
    if is_stacked:
        held = [((*dims[:axis], 1, *dims[axis:]), count) for dims, count in held]
    rests = {(dims[:axis], dims[axis + 1 :]) for dims, _ in held}
    if len(rests) != 1:
        return None
    before, after = rests.pop()
    return (*before, sum(dims[axis] * count for dims, count in held), *after)
