"""Shapes of tensors that are made from lists.

Exporters write a list to which a loop appends as a sequence, and its use as a ConcatFromSequence. Onnx does
not count the tensors of a sequence; their number follows from the iterations of the loop.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import onnx

from qaic.compiler.ir import graph_edits as edit
from qaic.compiler.ir.graph_walk import attribute_of, behind, node_key, producers, standard
from qaic.compiler.ir.value_info import collect_shapes, known_dims

Dims: TypeAlias = tuple[int, ...]
#: shapes of the tensors of a sequence, each with the number of tensors that have it
Pieces: TypeAlias = tuple[tuple[Dims, int], ...]


def complete(found: onnx.ModelProto, loops: Mapping[str, tuple[onnx.ModelProto, int | None]]) -> bool:
    """Add the shapes of tensors that ConcatFromSequence makes; changes `found`.

    `loops` maps the first output of each Loop to its inferred body and its iterations, None if these are not
    known. Returns True if a shape was added.
    """
    concatenations = [node for node in found.graph.node if standard(node, "ConcatFromSequence")]
    declared = {value.name: value for value in (*found.graph.value_info, *found.graph.output)}
    open_ones = {
        node.output[0]
        for node in concatenations
        if node.output[0] in declared and known_dims(declared[node.output[0]]) is None
    }
    if not open_ones:
        return False
    pieces = _pieces(found, loops)
    learned = False
    for node in concatenations:
        dims = _joined(node, pieces.get(node.input[0], ()))
        if node.output[0] in open_ones and dims is not None:
            edit.set_shape(declared[node.output[0]], dims)
            learned = True
    return learned


def _pieces(
    found: onnx.ModelProto, loops: Mapping[str, tuple[onnx.ModelProto, int | None]]
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
                added = None if first not in pieces or trips is None else _appended(body, at)
                if added is not None:
                    repeated = tuple((dims, count * (trips or 0)) for dims, count in added)
                    pieces[result] = (*pieces[first], *repeated)
    return pieces


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
