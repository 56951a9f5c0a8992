"""Padding that the engine computes in another way than ONNX or shape inference.

* Pools with dilations get the padding that ONNX defines. The engine computes it without the dilations, so its
  results are smaller.
* AveragePool that counts its padding reads an operand padded with zeros, if its padding differs between axes
  or ends. Onnxruntime 1.22 confuses the ends of two axes.
* ConvTranspose with ``output_padding`` gets the padding of the engine. Its result has the size of the operand
  times the stride, to which shape inference adds ``output_padding``.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
import onnx
from onnx import helper

from qaic.compiler.ir import graph_edits as edit
from qaic.compiler.ir.constants.weights import with_weights_as_inputs
from qaic.compiler.ir.graph_walk import (
    FreshNames,
    attribute_of,
    find_nodes,
    standard,
    standard_version,
    windows_of,
)
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.compiler.ir.value_info import Added, Dims, DimsInSets, dims_in
from qaic.compiler.passes.legalize.guard_nodes import GuardNodes, refused_operand

_POOLS: Final = frozenset({"AveragePool", "LpPool", "MaxPool"})
_TRANSPOSED: Final = frozenset({"ConvTranspose"})
_SAME: Final = frozenset({b"SAME_UPPER", b"SAME_LOWER"})
#: operator set from which the engine computes AveragePool with a kernel that confuses ends
_CONFUSED: Final = 19
#: attributes that explicit padding replaces
_REPLACED: Final = frozenset({"auto_pad", "ceil_mode", "pads"})


def pads_itself(node: onnx.NodeProto) -> bool:
    """Return True if a pool or ConvTranspose may have automatic padding, also one that a call chooses."""
    return standard(node, *_POOLS, *_TRANSPOSED) and any(
        attribute.name == "auto_pad" and (attribute.ref_attr_name or attribute.s in _SAME)
        for attribute in node.attribute
    )


def counts_padding(node: onnx.NodeProto) -> bool:
    """Return True if an AveragePool may count its padding, also if a call chooses it."""
    return standard(node, "AveragePool") and any(
        attribute.name == "count_include_pad" and (attribute.ref_attr_name or attribute.i)
        for attribute in node.attribute
    )


def _pad(node: onnx.NodeProto, totals: Sequence[int]) -> None:
    """Replace automatic padding by explicit padding with a total for each axis."""
    is_upper = attribute_of(node, "auto_pad", b"") == b"SAME_UPPER"
    before = [total // 2 if is_upper else total - total // 2 for total in totals]
    pads = [*before, *(total - begin for total, begin in zip(totals, before, strict=True))]
    kept = [attribute for attribute in node.attribute if attribute.name not in _REPLACED]
    edit.set_attributes(node, [*kept, helper.make_attribute("pads", pads)])


def _pad_pool(node: onnx.NodeProto, known: Sequence[Dims], *, is_complete: bool) -> None:
    """Give a pool explicit padding if the engine computes other sizes; `known` are dims of its operand.

    Unless `is_complete`, sizes that differ in `known` may also have other values.
    """
    axes = windows_of(node, attribute_of(node, "kernel_shape", list[int]()))
    sets = [[size for size in dims[2:] if size is not None] for dims in known]
    if not axes or not sets or any(len(sizes) != len(axes) for sizes in sets):
        return
    is_rounded_up = attribute_of(node, "ceil_mode", 0)
    is_wrong = any((edge - 1) * (step - 1) >= (stride if is_rounded_up else 1) for edge, stride, step in axes)
    if not is_wrong and not counts_padding(node):
        return
    choices: list[set[int]] = []
    for (edge, stride, step), sizes in zip(axes, map(set, zip(*sets, strict=True)), strict=True):
        # The last window begins at the last multiple of the stride.
        rests = {size % stride or stride for size in sizes}
        if len(sizes) > 1 and not is_complete:
            # The padding does not grow with the rest, so the least and the greatest decide.
            rests = {1, stride}
        choices.append({max((edge - 1) * step + 1 - rest, 0) for rest in rests})
    if any(len(totals) > 1 for totals in choices):
        if not is_wrong:
            return
        listed = " and ".join(str(one) for one in sets)
        raise refused_operand(node, f"sizes {listed}, which auto_pad pads differently", "one set of sizes")
    totals = [max(totals) for totals in choices]
    if any(total - total // 2 >= edge for total, (edge, _, _) in zip(totals, axes, strict=True)):
        raise refused_operand(
            node,
            f"an operand of {sets[0]}, to which auto_pad adds {totals}",
            f"padding below the kernel {[edge for edge, _, _ in axes]} at each end",
        )
    _pad(node, totals)


def _ends(node: onnx.NodeProto, pads: Sequence[int], known: Sequence[Dims]) -> list[int] | None:
    """Return the padding that windows of a pool read at the end of each axis; None if it is not known."""
    axes = windows_of(node, attribute_of(node, "kernel_shape", list[int]()))
    begins, ends = pads[: len(axes)], list(pads[len(axes) :])
    if not attribute_of(node, "ceil_mode", 0):
        return ends
    found: list[list[int]] = []
    for dims in known:
        sizes = [size for size in dims[2:] if size is not None]
        if len(sizes) != len(axes):
            return None
        found.append([])
        for (edge, stride, step), begin, end, size in zip(axes, begins, ends, sizes, strict=True):
            length, whole = (edge - 1) * step + 1, begin + size
            last = min(-(-(whole + end - length) // stride), (whole - 1) // stride) * stride
            # Padding behind the last window would add a window that begins behind the elements.
            found[-1].append(min(last + length - whole, end))
    return found[0] if found and all(one == found[0] for one in found) else None


def _pad_averages(model: onnx.ModelProto, types: Mapping[str, int], dims: DimsInSets) -> dict[str, Added]:
    """Pad the operands of AveragePool nodes that count padding that differs; returns the added values."""
    fresh, added, version = FreshNames(model.graph), dict[str, Added](), standard_version(model)

    def padded(node: onnx.NodeProto) -> list[onnx.NodeProto]:
        pads = attribute_of(node, "pads", list[int]()) if counts_padding(node) else []
        ends = _ends(node, pads, dims(node.input[0])) if len(set(pads)) > 1 else None
        if ends is None or node.input[0] not in types:
            return [node]
        guards = GuardNodes(fresh, added, version)
        around = [0, 0, *pads[: len(ends)], 0, 0, *ends]
        widths = guards.constant(node.output[0], np.array(around))
        operand = guards.value(node.output[0], "padded", None, types[node.input[0]])
        guards.add("Pad", [node.input[0], widths], operand)
        edit.replace_input_with(node, 0, operand)
        edit.set_attributes(node, [one for one in node.attribute if one.name not in {"auto_pad", "pads"}])
        return [*guards.nodes, node]

    if version >= _CONFUSED:
        edit.rewrite_nodes(model.graph, padded)
    return added


@compiler_pass()
def legalize_pool_padding_pass(model: Model, _: Context) -> None:
    """Give pools explicit padding if the engine computes other sizes or means than ONNX."""
    dims = dims_in(*model.specialized)
    is_complete = len(model.specialized) == len(model.symbol_sizes)
    for proto in (model.proto, *model.specialized):
        for node in filter(pads_itself, find_nodes(proto.graph.node, _POOLS)):
            _pad_pool(node, dims(node.input[0]), is_complete=is_complete)
    model.rewrite(partial(_pad_averages, dims=dims))


@compiler_pass()
def legalize_transposed_padding_pass(model: Model, _: Context) -> None:
    """Give each ConvTranspose with `output_padding` explicit padding, before sizes are inferred."""
    dims: DimsInSets | None = None
    for node in filter(pads_itself, find_nodes(model.proto.graph.node, _TRANSPOSED)):
        added = attribute_of(node, "output_padding", list[int]())
        if not any(added) or attribute_of(node, "output_shape", list[int]()):
            continue
        dims = dims or dims_in(with_weights_as_inputs(model.proto, model.weights))
        kernel = next(iter(dims(node.input[1])), ())[2:]
        axes = windows_of(node, attribute_of(node, "kernel_shape", [size or 0 for size in kernel]))
        if len(axes) == len(added):
            _pad(
                node,
                [
                    max((edge - 1) * step + 1 + more - stride, 0)
                    for (edge, stride, step), more in zip(axes, added, strict=True)
                ],
            )
