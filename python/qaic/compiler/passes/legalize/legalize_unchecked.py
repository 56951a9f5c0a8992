"""Operands that older engines do not check, so that wrong values end the process.

* The diagonal of Trilu is limited, which does not change results.
* These operands pass through a check: indices of MaxUnpool, except those of a MaxPool over a tensor that is
  not larger; indices of images, groups, rows or columns; the lengths of GroupQueryAttention; the axis of DFT;
  the frame length of STFT; the sizes of Col2Im.
* TopK and OneHot divide by the number of rows before their axis. If this number is known only at run time,
  the axis becomes the first. If the rank is known only at run time, they fail over no elements.

`empty_operands` checks other operands without elements, and `ml_attributes` operands that do not fit
attributes. Nodes of a graph with the same operand and limit share a check, so all layers of a decoder add as
many nodes as one layer.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from qaic.compiler.ir import graph_edits as edit
from qaic.compiler.ir.constants.in_graph import constant_reader
from qaic.compiler.ir.elem_types import BOOL, INT32, INT64
from qaic.compiler.ir.graph_walk import (
    FreshNames,
    all_graphs,
    all_nodes,
    attribute_of,
    node_label,
    operator_of,
    producers,
    standard,
    standard_version,
)
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.compiler.ir.value_info import Added, DimsInSets, ShapesInSets, dims_in, shapes_in
from qaic.compiler.passes.legalize.empty_operands import (
    OVER_NOTHING,
    checked_operands,
    drop_empty_operands,
    is_over_nothing,
    is_zero,
    nothing_fault,
    padded_sum,
    reads_nothing,
    results_in,
    with_elements,
    zeros,
)
from qaic.compiler.passes.legalize.guard_nodes import GuardNodes, refused_operand
from qaic.compiler.passes.legalize.ml_attributes import CHECKED, checked_operand
from qaic.support.text import counted

_ENGINE_DOMAIN: Final = "com.microsoft"
#: operator -> positions of the indices and of the operand that they select from, and the word for its parts
_SELECTING: Final = {
    ("", "RoiAlign"): (2, 0, "images"),
    ("", "RotaryEmbedding"): (3, 1, "rows"),
    (_ENGINE_DOMAIN, "CropAndResize"): (2, 0, "images"),
    (_ENGINE_DOMAIN, "GroupQueryAttention"): (9, 7, "rows"),
    (_ENGINE_DOMAIN, "MatMulNBits"): (4, 2, "groups"),
    (_ENGINE_DOMAIN, "RotaryEmbedding"): (1, 2, "rows"),
    ("ai.onnx.ml", "ArrayFeatureExtractor"): (1, 0, "columns"),
}
#: pool that divides by the number of windows if channels are last
_POOL: Final = (_ENGINE_DOMAIN, "QLinearAveragePool")
#: operators that this pass guards, rewrites or refuses; it skips functions
_UNCHECKED: Final = OVER_NOTHING.union(
    _SELECTING, CHECKED, [_POOL], [("", name) for name in ("Col2Im", "MaxUnpool", "Trilu")]
)
#: positions of the axis of DFT from operator set 20, and of the frame length of STFT
_AXIS, _FRAME_LENGTH = 2, 3
#: first operator set in which the axis of DFT is an input, and its default there; before, the default is 1
_DFT_AXIS_AS_INPUT, _DFT_AXIS = 20, -2
#: rank of a signal of DFT without a batch: elements, and real and imaginary parts
_SIGNAL_RANK: Final = 2
#: positions of operands of GroupQueryAttention
_QUERY, _PAST, _LENGTHS, _TOTAL, _ANGLES = 0, 3, 5, 6, 7
#: offset of a diagonal outside every tensor
_FARTHEST: Final = 2**40


def is_unchecked(node: onnx.NodeProto) -> bool:
    """Return True if the pass guards the node; a QuantizeLinear is guarded only if it has blocks."""
    is_blocked = node.op_type != "QuantizeLinear" or attribute_of(node, "block_size", 0)
    return operator_of(node) in _UNCHECKED and bool(is_blocked)


def fault(
    node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, npt.NDArray[Any]]
) -> str:
    """Return the reason why the engine would read or write outside a tensor for constant operands.

    `values` are the values of constant operands. Returns "" if there is no known fault.
    """
    indices = values.get(next(iter(node.input[1:]), "")) if standard(node, "MaxUnpool") else None
    if indices is not None and node.output[0] in shapes:
        count = math.prod(shapes[node.output[0]])
        is_inside = bool(((indices >= 0) & (indices < count)).all())
        return "" if is_inside else f"an index outside the {counted(count, 'element')} of the result"

    def known(name: str) -> tuple[tuple[int, ...], ...]:
        return (shapes[name],) if name in shapes else ()

    if is_over_nothing(node, known) and not is_zero(
        node, [shapes[name] for name in node.output if name in shapes]
    ):
        return nothing_fault(node, known)
    if (selection := _Selection.of(node, known)) is not None and selection.indices in values:
        return selection.fault(selection.counts(known), values[selection.indices])
    if standard(node, "STFT"):
        length = values.get(_frame_length(node))
        return "a frame length of 0" if length is not None and not length.all() else ""
    if standard(node, "DFT"):
        # The default axis of set 20 is valid; onnx checks the axis in older sets.
        axis = _dft_axis(node, values.get, _DFT_AXIS)
        return _dft_fault(axis, len(shapes[node.input[0]]) if node.input[0] in shapes else 0)
    if standard(node, "Col2Im") and len(node.input) > 2 and all(name in values for name in node.input[1:3]):
        return _col2im_fault(node, shapes.get(node.input[0]), *(values[name] for name in node.input[1:3]))
    return ""


@dataclass(frozen=True, slots=True)
class _Selection:
    """Indices that select rows of a table; a single position selects one row for each token."""

    at: int
    indices: str
    table: str
    tokens: str
    groups: int
    word: str
    #: true if the number of positions is known only at run time
    is_open: bool

    @classmethod
    def of(cls, node: onnx.NodeProto, shapes: ShapesInSets) -> Self | None:
        at, table, word = _SELECTING.get(operator_of(node), (len(node.input), 0, ""))
        # The engine refuses nodes with fewer operands.
        if max(at, table) >= len(node.input) or not node.input[at]:
            return None
        size = max(attribute_of(node, "block_size", 0), 1)
        groups = -(-attribute_of(node, "K", 0) // size) if word == "groups" else 0
        ranks = {len(shape) for shape in shapes(node.input[at])}
        may_be_position = word == "rows" and min(ranks, default=0) < 2
        tokens = node.input[0] if may_be_position else ""
        is_open = may_be_position and not ranks
        return cls(at, node.input[at], node.input[table], tokens, groups, word, is_open)

    @property
    def axis(self) -> int:
        """Return the axis of the table that the indices select from."""
        return -1 if self.word == "columns" else 0

    def counts(self, shapes: ShapesInSets) -> tuple[int, ...]:
        """Return the number of valid indices in each set of sizes; () if unknown."""
        if self.groups:
            return (self.groups,)
        if self.is_open:
            return ()
        rows = [shape[self.axis] for shape in shapes(self.table) if shape]
        if not self.tokens:
            return tuple(rows)
        tokens = [shape[-2] for shape in shapes(self.tokens) if len(shape) > 1]
        return tuple(row - token + 1 for row, token in zip(rows, tokens, strict=False))

    def fault(self, counts: tuple[int, ...], indices: npt.NDArray[Any]) -> str:
        if indices.dtype.kind not in "iu" or not counts:
            return ""
        least = max(min(counts), 0)
        is_inside = bool(((indices >= 0) & (indices < least)).all())
        return "" if is_inside else f"an index outside the {least} {self.word}"


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Attributes of a Col2Im, with one number for each dimension of the image."""

    dilations: npt.NDArray[np.int64]
    strides: npt.NDArray[np.int64]
    padding: npt.NDArray[np.int64]

    @classmethod
    def of(cls, node: onnx.NodeProto, rank: int) -> Self:
        given = {attribute.name: np.array(attribute.ints, np.int64) for attribute in node.attribute}
        pads = given.get("pads", np.zeros(2 * rank, np.int64))
        ones = np.ones(rank, np.int64)
        if pads.size != 2 * rank:
            raise refused_operand(
                node, f"{counted(pads.size, 'number')} in 'pads'", f"{counted(2 * rank, 'number')}"
            )
        found = cls(given.get("dilations", ones), given.get("strides", ones), pads[:rank] + pads[rank:])
        if any(numbers.size != rank or numbers.min() < 1 for numbers in (found.dilations, found.strides)):
            raise refused_operand(
                node, "strides or dilations below 1, or not one value per dimension", "others"
            )
        return found


def _col2im_fault(
    node: onnx.NodeProto, data: tuple[int, ...] | None, image: npt.NDArray[Any], block: npt.NDArray[Any]
) -> str:
    image, block = image.reshape(-1), block.reshape(-1)
    if data is None or len(data) != 3 or image.shape != block.shape:
        return "an operand of unknown shape, or a number of sizes that differs from the dims of the image"
    if not block.size or block.min() < 1 or image.min() < 1 or max(block.max(), image.max()) > _FARTHEST:
        return "sizes that are not positive, or too large"
    given = _Blocks.of(node, image.size)
    counts = (image + given.padding - given.dilations * (block - 1) - 1) // given.strides + 1
    if counts.min() < 1 or math.prod(counts.tolist()) != data[2] or data[1] % math.prod(block.tolist()):
        return f"blocks {block.tolist()} of an image {image.tolist()}, which do not fit {list(data)}"
    return ""


def _frame_length(node: onnx.NodeProto) -> str:
    return node.input[_FRAME_LENGTH] if len(node.input) > _FRAME_LENGTH else ""


def _dft_axis(
    node: onnx.NodeProto, read: Callable[[str], npt.NDArray[Any] | None], default: int
) -> int | None:
    """Return the axis of a DFT, which is an attribute in old sets; None if it is not constant."""
    if len(node.input) > _AXIS and node.input[_AXIS]:
        value = read(node.input[_AXIS])
        return None if value is None or value.size != 1 else int(value.reshape(-1)[0])
    return attribute_of(node, "axis", default)


def _dft_fault(axis: int | None, rank: int) -> str:
    is_last = axis is not None and (axis == -1 or (rank and axis == rank - 1))
    return f"axis {axis}, which contains the real and imaginary parts" if is_last else ""


def _guarded(
    proto: onnx.ModelProto, types: Mapping[str, int], shapes: ShapesInSets, dims: DimsInSets, model: Model
) -> dict[str, Added]:
    """Guard the operands that engines do not check; returns the added values."""
    added: dict[str, Added] = {}
    if not any(map(is_unchecked, all_nodes(proto.graph.node))):
        return added
    fresh, version = FreshNames(proto.graph), standard_version(proto)
    makers = producers(all_nodes(proto.graph.node))
    read = constant_reader(proto.graph, model.weights)
    for graph in all_graphs(proto.graph):
        nodes: list[onnx.NodeProto] = []
        checked: dict[tuple[Any, ...], str] = {}
        for node in graph.node:
            guards = GuardNodes(fresh, added, version, types=types, shapes=shapes, dims=dims)
            guarded, axis, rank = edit.clone(node), None, 0
            is_ended = is_over_nothing(node, shapes)
            results = results_in(node, shapes) if is_ended else []
            if is_ended and len(results) == 1 and is_zero(node, results[0]):
                nodes += zeros(node, results[0], guards)
                continue
            if (divided := _divided_axis(node, dims)) is not None:
                nodes += _along_first_axis(node, *divided, guards)
                continue
            if summed := padded_sum(node, guards):
                nodes += summed
                continue
            # OneHot and TopK divide only by the number of rows before their axis.
            has_rows = standard(node, "OneHot", "TopK") and len({*map(len, dims(node.input[0]))}) == 1
            if is_ended and not has_rows:
                empty = nothing_fault(node, shapes)
                raise refused_operand(node, empty, "at least one element, in each set of sizes")
            if standard(node, "Trilu") and len(node.input) > 1 and node.input[1]:
                diagonal = read(node.input[1])
                if diagonal is not None and diagonal.size != 1:
                    raise refused_operand(
                        node, f"a diagonal of {counted(diagonal.size, 'element')}", "one element"
                    )
                if diagonal is not None and -_FARTHEST < diagonal.min() <= diagonal.max() < _FARTHEST:
                    nodes.append(node)
                    continue
                edit.replace_input_with(guarded, 1, _limited(node.input[1], guards))
            elif standard(node, "MaxUnpool") and not _is_of_pool(node, makers.get(node.input[1]), shapes):
                edit.replace_input_with(guarded, 1, _inside(node, shapes(node.output[0]), guards))
            elif operator_of(node) in CHECKED and node.input:
                edit.replace_input_with(guarded, *checked_operand(node, guards))
            elif standard(node, "Col2Im"):
                image, block = (read(name) for name in node.input[1:3])
                if image is None or block is None:
                    edit.replace_input_with(guarded, 2, _fitting(node, guards))
                else:
                    found = [
                        _col2im_fault(node, data, image, block) for data in shapes(node.input[0]) or (None,)
                    ]
                    if reason := next(filter(None, found), ""):
                        raise refused_operand(node, reason, "sizes that fit the operand")
            elif operator_of(node) == _POOL and attribute_of(node, "channels_last", 0):
                edit.replace_input_with(guarded, 0, _with_a_window(node, guards))
            elif standard(node, "STFT") and _frame_length(node):
                length = read(_frame_length(node))
                if length is None:
                    edit.replace_input_with(guarded, _FRAME_LENGTH, _not_empty(node, guards))
                elif not length.all():
                    raise refused_operand(node, "a frame length of 0", "another length")
            elif standard(node, "OneHot", "TopK") and not dims(node.input[0]) and node.input[0] in types:
                edit.replace_input_with(guarded, 0, with_elements(node, guards))
            elif standard(node, "DFT"):
                rank = next((len(shape) for shape in shapes(node.input[0])), 0)
                axis = _dft_axis(node, read, 1 if version < _DFT_AXIS_AS_INPUT else _DFT_AXIS)
                if reason := _dft_fault(axis, rank):
                    raise refused_operand(node, reason, "another axis")
                if axis is None:
                    edit.replace_input_with(guarded, _AXIS, _not_last(node, rank, guards))
            for at, name in checked_operands(node, guards, checked, dft_axis=axis):
                edit.replace_input_with(guarded, at, name)
            if axis is not None and rank == _SIGNAL_RANK and node.output[0] in types:
                nodes += _in_a_batch(guarded, guards)
                continue
            if (selection := _Selection.of(node, shapes)) is not None:
                counts, held = selection.counts(shapes), read(selection.indices)
                table = (selection.table, selection.axis, selection.tokens)
                key: tuple[Any, ...] = (selection.indices, counts or table)
                if held is not None and counts:
                    if reason := selection.fault(counts, held):
                        raise refused_operand(node, reason, "other indices")
                    checked[key] = selection.indices
                elif key not in checked:
                    checked[key] = _selected(node, selection, counts, guards)
                edit.replace_input_with(guarded, selection.at, checked[key])
            is_cached = node.op_type == "GroupQueryAttention" and node.domain == _ENGINE_DOMAIN
            if is_cached and all(node.input[_LENGTHS : _TOTAL + 1]) and len(node.input) > _TOTAL:
                sizes = [node.input[at] if at < len(node.input) else "" for at in (_QUERY, _PAST, _ANGLES)]
                key = (*node.input[_LENGTHS : _TOTAL + 1], *(shapes(name) or name for name in sizes))
                if key not in checked:
                    checked[key] = _lengths(node, sizes, guards)
                edit.replace_input_with(guarded, _LENGTHS, checked[key])
            nodes += [*guards.nodes, guarded]
        if len(nodes) != len(graph.node):
            edit.set_nodes(graph, nodes)
    return added


def _divided_axis(node: onnx.NodeProto, dims: DimsInSets) -> tuple[int, int] | None:
    """Return axis and rank of a TopK or OneHot that may have no rows before its axis; else None."""
    if not standard(node, "OneHot", "TopK"):
        return None
    known = dims(node.input[0])
    # The result of OneHot has one more axis than its indices.
    ranks = {len(sizes) + (node.op_type == "OneHot") for sizes in known}
    if len(ranks) != 1 or not (rank := ranks.pop()):
        return None
    axis = attribute_of(node, "axis", -1) % rank
    return None if all(all(sizes[:axis]) for sizes in known) else (axis, rank)


def _without_axis(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = edit.clone(node)
    edit.set_attributes(copy, [attribute for attribute in node.attribute if attribute.name != "axis"])
    return copy


def _along_first_axis(node: onnx.NodeProto, axis: int, rank: int, guards: GuardNodes) -> list[onnx.NodeProto]:
    """Create nodes that compute a TopK or OneHot along the first axis, which has one row before it."""
    moved, types = _without_axis(node), guards.types
    edit.add_attribute(moved, helper.make_attribute("axis", 0))
    order = list(range(rank))
    if node.op_type == "TopK":
        order[0], order[axis] = axis, 0
        source = node.input[0]
        turned = guards.value(source, "turned", None, types[source])
        edit.replace_input_with(moved, 0, guards.add("Transpose", [source], turned, perm=order))
    else:
        order.insert(axis, order.pop(0))
    guards.nodes.append(moved)
    for position, result in enumerate(node.output):
        if result:
            found = guards.move(moved, position, "along_first", types[result])
            guards.add("Transpose", [found], result, perm=order)
    return guards.nodes


def _in_a_batch(node: onnx.NodeProto, guards: GuardNodes) -> list[onnx.NodeProto]:
    """Create nodes that compute a DFT of one signal as a batch, because onnxruntime 1.22 needs a batch."""
    result, first = node.output[0], np.array([0])
    elem_type = guards.types[result]
    batch = guards.compute(result, "Unsqueeze", node.input[0], first, elem_type=elem_type)
    moved = _without_axis(node)
    # The only valid axis is that of the elements, which is the default for a batch in every set.
    if len(moved.input) > _AXIS:
        edit.replace_input_with(moved, _AXIS, guards.constant(result, np.array(_DFT_AXIS)))
    edit.replace_input_with(moved, 0, batch)
    found = guards.move(moved, 0, "batch", elem_type)
    guards.nodes.append(moved)
    guards.add("Squeeze", [found, guards.constant(result, first)], result)
    return guards.nodes


def _limited(diagonal: str, guards: GuardNodes) -> str:
    low, high = (guards.constant(diagonal, np.array(number)) for number in (-_FARTHEST, _FARTHEST))
    least = guards.add("Max", [diagonal, low], guards.value(diagonal, "least", diagonal, INT64))
    return guards.add("Min", [least, high], guards.value(diagonal, "limited", diagonal, INT64))


def _is_of_pool(node: onnx.NodeProto, pool: onnx.NodeProto | None, shapes: ShapesInSets) -> bool:
    """Return True if a MaxPool over a tensor that is not larger computes the indices, in every set."""
    if pool is None or not standard(pool, "MaxPool"):
        return False
    before, after = shapes(pool.input[0]), shapes(node.output[0])
    return bool(before and after) and all(
        math.prod(one) <= math.prod(other) for one, other in zip(before, after, strict=True)
    )


def _inside(node: onnx.NodeProto, results: tuple[tuple[int, ...], ...], guards: GuardNodes) -> str:
    counts = {math.prod(shape) for shape in results}
    if len(counts) != 1:
        raise refused_operand(
            node,
            "indices from another operator than MaxPool, and results of several sizes or of an unknown size",
            "one set of sizes, or indices from a MaxPool over a tensor of the size of the result",
        )
    count = guards.constant(node.input[1], np.array(counts.pop()))
    return _below(node.input[1], count, f"{node_label(node)} (index beyond the result)", guards)


def _selected(
    node: onnx.NodeProto, selection: _Selection, counts: tuple[int, ...], guards: GuardNodes
) -> str:
    indices = selection.indices
    if len(set(counts)) == 1:
        count = guards.constant(indices, np.array(counts[0]))
    else:
        count = guards.size(indices, selection.table, selection.axis)
        if selection.tokens:
            others = guards.compute(indices, "Sub", guards.size(indices, selection.tokens, -2), 1)
            if selection.is_open:
                # A single index with several dims belongs to one token, so `others` must be 0.
                given = guards.compute(indices, "Size", indices)
                is_single = guards.compute(indices, "Equal", given, 1, elem_type=BOOL)
                number = guards.compute(indices, "Cast", is_single, to=INT64)
                others = guards.compute(indices, "Mul", others, number)
            count = guards.compute(indices, "Sub", count, others)
    title = f"{node_label(node)} (index beyond the {selection.word})"
    return _below(indices, count, title, guards, guards.types.get(indices, INT64))


def _lengths(node: onnx.NodeProto, sizes: list[str], guards: GuardNodes) -> str:
    """Append nodes that compare the lengths of GroupQueryAttention, each minus one, with its cache."""
    lengths, total = node.input[_LENGTHS : _TOTAL + 1]

    def size(name: str, axis: int) -> str | int:
        known = {shape[axis] for shape in guards.shapes(name) if axis < len(shape)}
        return known.pop() if len(known) == 1 else guards.size(lengths, name, axis)

    compute, test = partial(guards.compute, lengths), partial(guards.compute, lengths, elem_type=BOOL)
    tokens, past = size(sizes[0], 1), size(sizes[1], 2) if sizes[1] else 0

    def least_of(one: str, other: str | int) -> str:
        # Min and Max support integers only from operator set 12.
        return compute("Where", test("Less", one, other), one, other)

    last, most = (compute("Cast", name, to=INT64) for name in (lengths, total))
    # The cache has space for the total length, or for the rows that it already contains.
    held = compute("Where", test("Less", most, past), past, most)
    end = least_of(held, compute("Add", past, tokens))
    if sizes[2]:
        end = least_of(end, size(sizes[2], 0))
    # All tokens are new in the first step, and samples may have different lengths.
    least = compute("Where", test("Equal", most, tokens), 0, compute("Sub", tokens, 1))
    title = f"{node_label(node)} (length beyond the cache)"
    return guards.reject(
        lengths, INT32, title, test("Less", last, least), test("Not", test("Less", last, end))
    )


def _below(indices: str, count: str, title: str, guards: GuardNodes, elem_type: int = INT64) -> str:
    given, zero = indices, guards.constant(indices, np.array(0))
    if elem_type != INT64:
        given = guards.add("Cast", [indices], guards.value(indices, "wide", indices, INT64), to=INT64)
    is_low, is_inside, is_high = (
        guards.value(indices, suffix, indices, BOOL) for suffix in ("is_low", "is_inside", "is_high")
    )
    guards.add("Less", [given, zero], is_low)
    guards.add("Not", [guards.add("Less", [given, count], is_inside)], is_high)
    return guards.reject(indices, elem_type, title, is_low, is_high)


def _not_empty(node: onnx.NodeProto, guards: GuardNodes) -> str:
    length = _frame_length(node)
    title = f"{node_label(node)} (frame length of 0)"
    return guards.reject(length, guards.types.get(length, INT64), title, guards.is_zero(length))


def _with_a_window(node: onnx.NodeProto, guards: GuardNodes) -> str:
    """Return the operand of a pool with the channels last, after a check if its sizes are not known."""
    source, window = node.input[0], attribute_of(node, "kernel_shape", list[int]())
    mode, pads = attribute_of(node, "auto_pad", b"NOTSET"), attribute_of(node, "pads", list[int]())
    # Padding to the same size leaves a window for each element.
    window = [1] * len(window) if mode.startswith(b"SAME") else window
    pads = pads if mode == b"NOTSET" else []
    least = [max(size - sum(pads[at :: len(window)]), 1) for at, size in enumerate(window)]
    known = guards.dims(source)
    for sizes in known:
        if any(size is not None and size < needed for size, needed in zip(sizes[1:-1], least, strict=False)):
            raise refused_operand(
                node,
                f"an operand of {list(sizes)} without a window",
                f"sizes of at least {least} between the batch and the channels",
            )
    if (known and not any(None in sizes for sizes in known)) or source not in guards.types:
        return source
    compute = partial(guards.compute, source)
    image = compute("Slice", compute("Shape", source), np.array([1]), np.array([-1]))
    is_less = compute("Less", image, np.array(least), elem_type=BOOL)
    return guards.reject(
        source, guards.types[source], f"{node_label(node)} (no window in the operand)", is_less
    )


def _fitting(node: onnx.NodeProto, guards: GuardNodes) -> str:
    """Append nodes that compare the sizes of a Col2Im with the shapes of its operand and its result."""
    known = set(zip(guards.shapes(node.input[0]), guards.shapes(node.output[0]), strict=False))
    if len(known) != 1 or len((pair := known.pop())[0]) != 3 or len(pair[1]) < 3:
        raise refused_operand(
            node, "sizes that are not constant, and several shapes or an unknown shape", "constant sizes"
        )
    (_, channels, columns), (_, made, *image) = pair
    given = _Blocks.of(node, len(image))
    sizes, block = node.input[1:3]

    computed = partial(guards.compute, block)

    def differs(value: str, expected: int | npt.NDArray[Any]) -> str:
        return computed("Not", computed("Equal", value, expected, elem_type=BOOL), elem_type=BOOL)

    # The number of steps is the padded image minus the extent of a block, divided by the strides.
    reach = computed("Mul", computed("Sub", block, 1), given.dilations)
    steps = computed("Div", computed("Sub", np.array(image) + given.padding - 1, reach), given.strides)
    counts = computed("Add", steps, 1)
    title = f"{node_label(node)} (sizes that do not fit)"
    return guards.reject(
        block,
        INT64,
        title,
        differs(sizes, np.array(image)),
        computed("Less", block, 1, elem_type=BOOL),
        computed("Less", np.array(image) + given.padding - 1, reach, elem_type=BOOL),
        differs(computed("ReduceProd", block, keepdims=0), channels // max(made, 1)),
        differs(computed("ReduceProd", counts, keepdims=0), columns),
    )


def _not_last(node: onnx.NodeProto, rank: int, guards: GuardNodes) -> str:
    axis = node.input[_AXIS]
    names = [guards.value(axis, suffix, axis, BOOL) for suffix in ("is_minus_one", "is_last")]
    for number, name in zip((-1, rank - 1), names, strict=True):
        guards.add("Equal", [axis, guards.constant(axis, np.array(number))], name)
    title = f"{node_label(node)} (axis of the real and imaginary parts)"
    return guards.reject(axis, INT64, title, *names)


@compiler_pass()
def legalize_unchecked_pass(model: Model, _: Context) -> None:
    """Check operands that the engine does not check."""
    shapes, dims = shapes_in(*model.specialized), dims_in(*model.specialized)
    if any(map(reads_nothing, model.specialized)):
        for proto in (model.proto, *model.specialized):
            drop_empty_operands(proto, model.facts.types, dims)
    model.rewrite(partial(_guarded, shapes=shapes, dims=dims, model=model))
