"""Padding that the engine computes in another way than ONNX or shape inference.

* Pools and convolutions with dilations get the padding that ONNX defines. The engine computes the padding of
  pools without the dilations, so their results are smaller, and refuses such convolutions when they run.
* Pools and convolutions whose windows leave out elements get the padding that ONNX defines, which is never
  negative. The engine refuses such pools, or begins with elements behind the first one.
* AveragePool that counts its padding reads an operand padded with zeros, if onnxruntime 1.22 counts wrongly:
  from operator set 19, it confuses the ends of two axes; before, it counts positions of a rounded-up window
  beyond the padding. The same applies to padding that is not below the kernel, which every engine refuses.
* A Reshape, which copies nothing, separates Pad from pools. Onnxruntime 1.22 would join them, and then pads a
  MaxPool with the lowest number, and counts a rounded-up window that begins in the padding differently.
* Pools with ``ceil_mode`` in sets before 22 get padding, or an operand without unread elements, if a window
  would begin behind the elements. Shape inference of the engine counts this window, and the engine compares
  the result with the inferred sizes.
* ConvTranspose with ``output_padding`` gets the padding of the engine. Its result has the size of the operand
  times the stride, to which shape inference adds ``output_padding``.
* ConvTranspose with an ``output_shape`` below the sizes of its operand gets explicit padding. Shape inference
  of the engine gives its result too few dims, and onnxruntime 1.22 may end the process.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qaic.compiler.ir import graph_edits as edit
from qaic.compiler.ir.constants.weights import with_weights_as_inputs
from qaic.compiler.ir.explicit_padding import (
    has_output_shape,
    pad_explicitly,
    pad_small_result,
    rounded_up_padding,
    set_padding,
    windows_over,
)
from qaic.compiler.ir.graph_walk import (
    FreshNames,
    all_nodes,
    attribute_of,
    find_nodes,
    op_types,
    producers,
    standard,
    standard_version,
)
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.compiler.ir.value_info import Added, Dims, DimsInSets, dims_in
from qaic.compiler.passes.legalize.guard_nodes import GuardNodes, refused_operand

_POOLS: Final = frozenset({"AveragePool", "LpPool", "MaxPool"})
CONVOLUTIONS: Final = frozenset({"Conv", "ConvInteger", "QLinearConv"})
_TRANSPOSED: Final = frozenset({"ConvTranspose"})
_SAME: Final = frozenset({b"SAME_UPPER", b"SAME_LOWER"})
#: operator set from which the engine computes AveragePool with a kernel that confuses ends
_CONFUSED: Final = 19
#: first operator set for which inference drops windows that begin behind the elements
_DROPPED: Final = 22
#: pools that the engine joins with a Pad
_JOINED: Final = frozenset({"AveragePool", "MaxPool"})
#: first operator set in which the padding of Pad is an input
_PADS_AS_INPUT: Final = 11
#: greatest dilations and strides with which the engine pads every convolution right
_DENSE: Final = {"dilations": 1, "strides": 2}
#: attributes without effect on an AveragePool whose operand is padded
_COUNTED: Final = frozenset({"auto_pad", "count_include_pad", "pads"})
#: operator -> least padding of an axis that the engine computes right; 0 for others
_LEAST: Final = {**dict.fromkeys(CONVOLUTIONS, -1), "LpPool": -1}


def pads_itself(node: onnx.NodeProto) -> bool:
    """Return True if a node may have padding that the pass replaces, also padding that a call chooses."""
    if has_output_shape(node):
        return True
    if standard(node, *CONVOLUTIONS) and not _is_sparse(node):
        return False
    return standard(node, *_POOLS, *CONVOLUTIONS, *_TRANSPOSED) and any(
        attribute.name == "auto_pad" and (attribute.ref_attr_name or attribute.s in _SAME)
        for attribute in node.attribute
    )


def is_padded_pool(node: onnx.NodeProto) -> bool:
    """Return True if a pool may have automatic padding."""
    return standard(node, *_POOLS) and pads_itself(node)


def rounds_up(node: onnx.NodeProto) -> bool:
    """Return True if a pool may have `ceil_mode`, also if a call chooses it."""
    return standard(node, *_POOLS) and any(
        attribute.name == "ceil_mode" and (attribute.ref_attr_name or attribute.i)
        for attribute in node.attribute
    )


def _is_sparse(node: onnx.NodeProto) -> bool:
    """Return True if a convolution has dilations, or windows that may be two or more elements apart."""
    return any(
        one.ref_attr_name or max(one.ints, default=1) > _DENSE[one.name]
        for one in node.attribute
        if one.name in _DENSE
    )


def counts_padding(node: onnx.NodeProto) -> bool:
    """Return True if an AveragePool may count its padding, also if a call chooses it."""
    return standard(node, "AveragePool") and any(
        attribute.name == "count_include_pad" and (attribute.ref_attr_name or attribute.i)
        for attribute in node.attribute
    )


def _pad_windows(node: onnx.NodeProto, dims: DimsInSets, *, is_complete: bool) -> None:
    """Give a pool or convolution explicit padding if the engine computes another one than ONNX."""
    axes = windows_over(node, dims)
    sets = [[size for size in known[2:] if size is not None] for known in dims(node.input[0])]
    if not axes or not sets or any(len(sizes) != len(axes) for sizes in sets):
        return
    is_pool = standard(node, *_POOLS)
    is_rounded_up = attribute_of(node, "ceil_mode", 0)
    if is_pool:
        is_wrong = any(
            (edge - 1) * (step - 1) >= (stride if is_rounded_up else 1) for edge, stride, step in axes
        )
    else:
        is_wrong = any(step > 1 for _, _, step in axes)
    choices: list[set[int]] = []
    for (edge, stride, step), sizes in zip(axes, map(set, zip(*sets, strict=True)), strict=True):
        # The last window begins at the last multiple of the stride.
        rests = {size % stride or stride for size in sizes}
        if len(sizes) > 1 and not is_complete:
            # The padding does not grow with the rest, so the least and the greatest decide.
            rests = {1, stride}
        missing = {(edge - 1) * step + 1 - rest for rest in rests}
        is_wrong |= min(missing) < _LEAST.get(node.op_type, 0)
        choices.append({max(total, 0) for total in missing})
    if not is_wrong and not counts_padding(node):
        return
    if any(len(totals) > 1 for totals in choices):
        if not is_wrong:
            return
        listed = " and ".join(str(one) for one in sets)
        raise refused_operand(node, f"sizes {listed}, which auto_pad pads differently", "one set of sizes")
    totals = [max(totals) for totals in choices]
    is_wide = any(total - total // 2 >= edge for total, (edge, _, _) in zip(totals, axes, strict=True))
    if is_pool and is_wide and not counts_padding(node):
        raise refused_operand(
            node,
            f"an operand of {sets[0]}, to which auto_pad adds {totals}",
            f"padding below the kernel {[edge for edge, _, _ in axes]} at each end",
        )
    pad_explicitly(node, totals)


def _rounded_up(node: onnx.NodeProto, known: Sequence[Dims]) -> list[int]:
    """Return the padding that replaces `ceil_mode` of a pool; [] if there is none for all sets of sizes."""
    found = {
        tuple(right[0])
        for sizes in known
        if None not in sizes and (right := rounded_up_padding(node, [size or 0 for size in sizes[2:]]))
    }
    return list(found.pop()) if len(found) == 1 else []


def _is_below_kernel(node: onnx.NodeProto, pads: Sequence[int]) -> bool:
    """Return True if the engine accepts the padding of a pool."""
    kernel = attribute_of(node, "kernel_shape", list[int]())
    return all(pad < edge for pad, edge in zip(pads, kernel * 2, strict=False))


def _round_up(node: onnx.NodeProto, pads: Sequence[int]) -> None:
    """Replace `ceil_mode` by padding, unless the engine refuses it because it is not below the kernel."""
    if _is_below_kernel(node, pads):
        set_padding(node, pads)


def _pad_operand(
    node: onnx.NodeProto, pads: Sequence[int], guards: GuardNodes, elem_type: int, version: int
) -> list[onnx.NodeProto]:
    """Pad the operand of a pool with zeros, or remove elements for negative numbers; returns all nodes."""
    half = len(pads) // 2
    around = [0, 0, *pads[:half], 0, 0, *pads[half:]]
    operand = guards.value(node.output[0], "padded", None, elem_type)
    if version < _PADS_AS_INPUT:
        guards.add("Pad", [node.input[0]], operand, pads=around)
    else:
        guards.add("Pad", [node.input[0], guards.constant(node.output[0], np.array(around))], operand)
    edit.replace_input_with(node, 0, operand)
    return [*guards.nodes, node]


def _pad_averages(model: onnx.ModelProto, types: Mapping[str, int], dims: DimsInSets) -> dict[str, Added]:
    """Pad the operands of AveragePool nodes that count padding wrongly; returns the added values."""
    fresh, added, version = FreshNames(model.graph), dict[str, Added](), standard_version(model)

    def padded(node: onnx.NodeProto) -> list[onnx.NodeProto]:
        if not counts_padding(node) or pads_itself(node) or node.input[0] not in types:
            return [node]
        given = attribute_of(node, "pads", [0] * (2 * len(attribute_of(node, "kernel_shape", list[int]()))))
        is_rounded_up = bool(attribute_of(node, "ceil_mode", 0))
        read = _rounded_up(node, dims(node.input[0])) if is_rounded_up else given
        is_confused = version >= _CONFUSED and len(set(given)) > 1
        is_wrong = is_confused or (is_rounded_up and version < _DROPPED) or not _is_below_kernel(node, given)
        if not is_wrong or (any(given) and not read):
            return [node]
        # The mean does not count padding behind the elements that a rounded-up window reads.
        counted = [max(min(pair), 0) for pair in zip(given, read, strict=False)]
        edit.set_attributes(node, [one for one in node.attribute if one.name not in _COUNTED])
        _round_up(node, [pad - own for pad, own in zip(read, counted, strict=True)])
        if not any(counted):
            return [node]
        return _pad_operand(node, counted, GuardNodes(fresh, added, version), types[node.input[0]], version)

    edit.rewrite_nodes(model.graph, padded)
    return added


def _drop_windows(model: onnx.ModelProto, types: Mapping[str, int], dims: DimsInSets) -> dict[str, Added]:
    """Give pools padding with which no rounded-up window begins behind the elements; returns added values."""
    fresh, added, version = FreshNames(model.graph), dict[str, Added](), standard_version(model)

    def dropped(node: onnx.NodeProto) -> list[onnx.NodeProto]:
        if not standard(node, *_POOLS) or not rounds_up(node) or node.input[0] not in types:
            return [node]
        read = _rounded_up(node, dims(node.input[0]))
        given = attribute_of(node, "pads", [0] * len(read))
        fitting = [min(pair) for pair in zip(read, given, strict=False)]
        if fitting == given or not read:
            return [node]
        if _is_below_kernel(node, read):
            set_padding(node, read)
            return [node]
        # The other axes keep `ceil_mode`, and elements that no window reads are removed.
        set_padding(node, fitting)
        edit.add_attribute(node, helper.make_attribute("ceil_mode", 1))
        unread = [min(pad, 0) for pad in fitting]
        if not any(unread):
            return [node]
        return _pad_operand(node, unread, GuardNodes(fresh, added, version), types[node.input[0]], version)

    edit.rewrite_nodes(model.graph, dropped)
    return added


def legalize_padding(
    model: onnx.ModelProto,
    dims: DimsInSets,
    operators: frozenset[str] = _POOLS | CONVOLUTIONS | _TRANSPOSED,
    *,
    is_complete: bool = True,
) -> None:
    """Give nodes of some operators explicit padding; changes `model` in place.

    Unless `is_complete`, sizes that differ in `dims` may also have other values.
    """
    for node in filter(pads_itself, find_nodes(model.graph.node, operators)):
        if standard(node, *_TRANSPOSED):
            pad_small_result(node, dims)
        else:
            _pad_windows(node, dims, is_complete=is_complete)


@compiler_pass()
def legalize_padding_pass(model: Model, _: Context) -> None:
    """Give nodes explicit padding if the engine computes other sizes or values than ONNX."""
    dims = dims_in(*model.specialized)
    is_complete = len(model.specialized) == len(model.symbol_sizes)
    for proto in (model.proto, *model.specialized):
        legalize_padding(proto, dims, is_complete=is_complete)
    if any(map(counts_padding, find_nodes(model.proto.graph.node, {"AveragePool"}))):
        model.rewrite(partial(_pad_averages, dims=dims))
    is_dropped = standard_version(model.proto) < _DROPPED
    if is_dropped and any(map(rounds_up, find_nodes(model.proto.graph.node, _POOLS))):
        model.rewrite(partial(_drop_windows, dims=dims))


def joins_in_functions(model: onnx.ModelProto) -> bool:
    """Return True if functions of a model may contain a Pad or a pool that the engine joins."""
    in_functions = {node.op_type for function in model.functions for node in all_nodes(function.node)}
    operators = in_functions | op_types(model)
    return "Pad" in operators and bool(_JOINED & operators) and bool(({"Pad"} | _JOINED) & in_functions)


def separate_pads(model: onnx.ModelProto) -> dict[str, str]:
    """Insert a Reshape to the same shape between each Pad and a pool; changes `model` in place.

    The model has no functions. Returns each added value, and the value that it equals.
    """
    added: dict[str, str] = {}
    makers = producers(find_nodes(model.graph.node, {"Pad"}))
    if not makers:
        return added
    fresh = FreshNames(model.graph)

    def separated(node: onnx.NodeProto) -> list[onnx.NodeProto]:
        if not standard(node, *_JOINED) or node.input[0] not in makers:
            return [node]
        source = node.input[0]
        shape, same = fresh.make(source, "shape"), fresh.make(source, "separate")
        added[same] = source
        # Zeros keep the dims of the operand.
        zeros = [0] * (2 + len(attribute_of(node, "kernel_shape", list[int]())))
        edit.replace_input_with(node, 0, same)
        return [
            helper.make_node("Constant", [], [shape], value=numpy_helper.from_array(np.array(zeros))),
            helper.make_node("Reshape", [source, shape], [same]),
            node,
        ]

    edit.rewrite_nodes(model.graph, separated)
    return added


@compiler_pass()
def separate_pads_pass(model: Model, _: Context) -> None:
    """Separate Pad from pools that read it, because onnxruntime 1.22 joins them wrongly."""
    model.facts.add(separate_pads(model.proto))


@compiler_pass()
def legalize_transposed_padding_pass(model: Model, _: Context) -> None:
    """Give each ConvTranspose with `output_padding` explicit padding, before sizes are inferred."""
    dims: DimsInSets | None = None
    for node in filter(pads_itself, find_nodes(model.proto.graph.node, _TRANSPOSED)):
        added = attribute_of(node, "output_padding", list[int]())
        if not any(added) or attribute_of(node, "output_shape", list[int]()):
            continue
        dims = dims or dims_in(with_weights_as_inputs(model.proto, model.weights))
        axes = windows_over(node, dims)
        if len(axes) == len(added):
            pad_explicitly(
                node,
                [
                    max((edge - 1) * step + 1 + more - stride, 0)
                    for (edge, stride, step), more in zip(axes, added, strict=True)
                ],
            )
