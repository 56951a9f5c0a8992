"""Sizes of pools with `ceil_mode`, which onnx and the engine count differently.

A last window that begins behind the input and the padding before it holds padding alone. The engine leaves
such a window out, as in operator set 22. For older sets onnx counts it, so a program would have outputs of
a size that no inference makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import onnx

from qaic.compiler.ir.constants.propagation import node_key
from qaic.compiler.ir.graph_edits import add_attribute, clear_attributes, clone
from qaic.compiler.ir.precision_ops import standard
from qaic.compiler.ir.value_info import collect_shapes

_POOLS: Final = ("AveragePool", "LpPool", "MaxPool")


def correction(found: onnx.ModelProto) -> dict[str, list[int]]:
    """Find the first pool of an inferred model that onnx gave sizes that the engine does not make.

    The sizes of pools behind it may be right once those of the first are.

    Returns
    -------
    dict of str to list of int
        First output of the pool -> the padding with which a pool without `ceil_mode` has the right sizes.
        Empty where all sizes are right.
    """
    pools = [
        node
        for node in found.graph.node
        if standard(node, *_POOLS) and any(a.name == "ceil_mode" and a.i for a in node.attribute)
    ]
    shapes = collect_shapes(found) if pools else {}
    for node in pools:
        given, made = shapes.get(node.input[0]), shapes.get(node_key(node))
        if given is None or made is None:
            continue
        right = _padding(node, given[2:])
        if right is not None and right[1] != made[2:]:
            return {node_key(node): right[0]}
    return {}


def correct(view: onnx.ModelProto, padding: Mapping[str, list[int]]) -> None:
    """Give pools of a model that is only inferred another padding in the place of `ceil_mode`."""
    for node in view.graph.node:
        if node_key(node) in padding:
            _replace(node, padding[node_key(node)])


def _padding(node: onnx.NodeProto, sizes: tuple[int, ...]) -> tuple[list[int], tuple[int, ...]] | None:
    """Compute the padding of the same pool without `ceil_mode`, and the sizes of its result."""
    values = {attribute.name: attribute for attribute in node.attribute}
    rank = len(sizes)
    if "auto_pad" in values and values["auto_pad"].s not in {b"", b"NOTSET"}:
        return None

    def ints(name: str, default: int, count: int) -> list[int]:
        return list(values[name].ints) if name in values else [default] * count

    kernel, strides, steps = (ints(name, 1, rank) for name in ("kernel_shape", "strides", "dilations"))
    pads = ints("pads", 0, 2 * rank)
    if not len(kernel) == len(strides) == len(steps) == rank == len(pads) // 2:
        return None
    begins = pads[:rank]
    ends: list[int] = []
    counts: list[int] = []
    for size, edge, stride, step, begin, end in zip(
        sizes, kernel, strides, steps, begins, pads[rank:], strict=True
    ):
        window = (edge - 1) * step + 1
        count = -(-(size + begin + end - window) // max(stride, 1)) + 1
        if (count - 1) * stride >= size + begin:
            count -= 1
        counts.append(count)
        ends.append((count - 1) * stride + window - size - begin)
    return [*begins, *(max(end, 0) for end in ends)], tuple(counts)


def _replace(node: onnx.NodeProto, pads: list[int]) -> None:
    from onnx import helper

    kept = [clone(item) for item in node.attribute if item.name not in {"ceil_mode", "pads"}]
    clear_attributes(node)
    for attribute in (*kept, helper.make_attribute("pads", pads)):
        add_attribute(node, attribute)
