"""Explicit padding in place of attributes from which padding is computed."""

from collections.abc import Sequence
from typing import Final

import onnx
from onnx import helper

from qaic.compiler.ir.graph_edits import set_attributes
from qaic.compiler.ir.graph_walk import attribute_of, standard, windows_of
from qaic.compiler.ir.value_info import DimsInSets

#: operator -> position of its weights
_WEIGHTS: Final = {"Conv": 1, "ConvInteger": 1, "ConvTranspose": 1, "QLinearConv": 3}
#: attributes that explicit padding replaces
_REPLACED: Final = frozenset({"auto_pad", "ceil_mode", "output_shape", "pads"})


def windows_over(node: onnx.NodeProto, dims: DimsInSets) -> list[tuple[int, int, int]]:
    """Return kernel, stride and dilation of each axis of a pool or convolution; [] if they are not known."""
    weights = node.input[_WEIGHTS[node.op_type]] if node.op_type in _WEIGHTS else ""
    kernel = next(iter(dims(weights)), ())[2:]
    return windows_of(node, attribute_of(node, "kernel_shape", [edge or 0 for edge in kernel]))


def pad_explicitly(node: onnx.NodeProto, totals: Sequence[int]) -> None:
    """Replace computed padding by explicit padding with a total for each axis."""
    is_upper = attribute_of(node, "auto_pad", b"") == b"SAME_UPPER"
    before = [total // 2 if is_upper else total - total // 2 for total in totals]
    set_padding(node, [*before, *(total - begin for total, begin in zip(totals, before, strict=True))])


def set_padding(node: onnx.NodeProto, pads: Sequence[int]) -> None:
    """Replace the padding of a node, computed or not, by explicit padding; negative numbers mean 0."""
    kept = [attribute for attribute in node.attribute if attribute.name not in _REPLACED]
    set_attributes(node, [*kept, helper.make_attribute("pads", [max(pad, 0) for pad in pads])])


def has_output_shape(node: onnx.NodeProto) -> bool:
    """Return True if a ConvTranspose may state the sizes of its result, also those that a call chooses."""
    return standard(node, "ConvTranspose") and any(one.name == "output_shape" for one in node.attribute)


def pad_small_result(node: onnx.NodeProto, dims: DimsInSets) -> None:
    """Replace `output_shape` by padding if a size of the result is below that of the operand.

    Inference of onnx and of the engine ends at such a size, and gives the result too few dims. The attribute
    stays if sets of sizes need different padding, because inference reads no size that differs between sets.
    """
    sizes = attribute_of(node, "output_shape", list[int]()) if has_output_shape(node) else []
    operands = {dims_in_set[2:] for dims_in_set in dims(node.input[0])} if sizes else set()
    if len(operands) != 1 or len(operand := operands.pop()) != len(sizes):
        return
    axes = windows_over(node, dims)
    added = attribute_of(node, "output_padding", [0] * len(sizes))
    known = [given for given in operand if given is not None]
    if not len(known) == len(axes) == len(added) == len(sizes):
        return
    if any(size < given for size, given in zip(sizes, known, strict=True)):
        whole = [
            (given - 1) * stride + (edge - 1) * step + 1 + more
            for given, (edge, stride, step), more in zip(known, axes, added, strict=True)
        ]
        pad_explicitly(node, [max(all_of - size, 0) for all_of, size in zip(whole, sizes, strict=True)])


def rounded_up_padding(
    node: onnx.NodeProto, sizes: Sequence[int]
) -> tuple[list[int], tuple[int, ...]] | None:
    """Compute the padding with which a pool without `ceil_mode` has the same result, and its sizes.

    The padding is [] if it is automatic. At an end that no window reaches, it is less than that of the pool,
    or negative. Returns None if the attributes do not fit the sizes of the operand.
    """
    rank = len(sizes)
    axes = windows_of(node, attribute_of(node, "kernel_shape", [1] * rank))
    mode, none = attribute_of(node, "auto_pad", b"NOTSET"), [0] * (2 * rank)
    pads = none if mode == b"VALID" else attribute_of(node, "pads", none)
    if not len(axes) == rank == len(pads) // 2:
        return None
    if mode.startswith(b"SAME"):
        return [], tuple(-(-size // stride) for size, (_, stride, _) in zip(sizes, axes, strict=True))
    begins = pads[:rank]
    ends: list[int] = []
    counts: list[int] = []
    for size, (edge, stride, step), begin, end in zip(sizes, axes, begins, pads[rank:], strict=True):
        window = (edge - 1) * step + 1
        count = -(-(size + begin + end - window) // stride) + 1
        if (count - 1) * stride >= size + begin:
            count -= 1
        counts.append(count)
        ends.append((count - 1) * stride + window - size - begin)
    return [*begins, *ends], tuple(counts)
