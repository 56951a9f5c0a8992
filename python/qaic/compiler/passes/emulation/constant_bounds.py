"""Which computed constants may lie beyond float16, so that they have to be clipped before they are rounded.

A constant that is stored is clipped there. One that the model computes - a mask times the most negative
float32, a tensor filled with it - is known only to the engine, so nodes have to clip it. They are left out
where the operators show that they are not needed.
"""

from collections.abc import Callable, Collection
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx

from qaic.compiler.ir.constants.initializers import dense
from qaic.compiler.ir.constants.propagation import node_key
from qaic.compiler.ir.graph_walk import all_graphs
from qaic.compiler.ir.precision_ops import standard

#: operators whose results lie in [-1, 1] whatever they read
_OF_ONE: Final = (
    *("Cos", "Erf", "HardSigmoid", "Sigmoid", "Sin", "Softmax", "Softsign", "Tanh"),
    *("EyeLike", "RandomUniform"),
)


def filling(node: onnx.NodeProto) -> npt.NDArray[np.generic] | None:
    """Return the value that ConstantOfShape fills a tensor with; None for other operators."""
    if not standard(node, "ConstantOfShape"):
        return None
    for attribute in node.attribute:
        if attribute.name == "value":
            return np.asarray(dense(attribute.t))
    return np.zeros(1, np.float32)


def exceeds(values: npt.NDArray[np.generic]) -> bool:
    """Return whether a finite value of an array becomes infinite in float16."""
    if values.dtype.kind not in "fiu":
        return False
    magnitudes = np.abs(values.astype(np.float64))
    with np.errstate(over="ignore"):
        return bool((np.isfinite(magnitudes) & np.isinf(magnitudes.astype(np.float16))).any())


def may_exceed(
    graph: onnx.GraphProto,
    folded: Collection[str],
    preserved: Callable[[onnx.NodeProto], tuple[int, ...] | None],
) -> set[str]:
    """Collect the results of folded nodes that may lie beyond float16.

    `folded` are first outputs of the nodes that compute constants. `preserved` returns the positions of the
    inputs that a node picks its results from; None for a node that computes.
    """
    if not folded:
        return set()
    within: set[str] = set()
    found: set[str] = set()
    read = {
        name
        for current in all_graphs(graph)
        for node in current.node
        if node_key(node) in folded
        for name in node.input
    }
    for current in all_graphs(graph):
        for tensor in current.initializer:
            if tensor.name in read and not exceeds(dense(tensor)):
                within.add(tensor.name)
        for node in current.node:
            if node_key(node) not in folded:
                continue
            if _stays_within(node, within, preserved(node)):
                within.update(node.output)
            else:
                found.update(filter(None, node.output))
    return found


def _stays_within(node: onnx.NodeProto, within: set[str], picked: tuple[int, ...] | None) -> bool:
    value = filling(node)
    if value is not None:
        return not exceeds(value)
    if standard(node, *_OF_ONE):
        return True
    return picked is not None and all(
        node.input[position] in within
        for position in picked
        if position < len(node.input) and node.input[position]
    )
