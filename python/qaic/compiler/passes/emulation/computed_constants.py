"""Computed constants that float16 cannot represent, such as an epsilon that is cast or a mask that is scaled.

Stored constants are counted and clipped where they are rounded. Only the engine knows the value of a computed
constant. This module therefore evaluates small constants of few nodes to count them, and other constants get
nodes that clip them. Constants whose operators keep them within float16 need no such nodes.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx

from qaic.compiler.ir.constants.float16_weights import Overflows, beyond_float16
from qaic.compiler.ir.constants.in_graph import dense
from qaic.compiler.ir.elem_types import FLOAT16
from qaic.compiler.ir.graph_walk import all_graphs, node_key, node_label, standard

#: operators whose results are always in [-1, 1]
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
    """Return True if a finite value of an array becomes infinite in float16."""
    return values.dtype.kind in "fiu" and bool(beyond_float16(values.astype(np.float64)).any())


def may_exceed(
    graph: onnx.GraphProto,
    folded: Collection[str],
    preserved: Callable[[onnx.NodeProto], tuple[int, ...] | None],
) -> set[str]:
    """Collect the results of folded nodes that may exceed float16.

    `folded` are the first outputs of nodes that compute constants. `preserved` returns the positions of the
    inputs from which a node selects its results; None for a node that computes.
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


#: most elements of an evaluated constant, and most nodes that compute it
_ELEMENTS: Final = 64
_NODES: Final = 8


@dataclass(slots=True)
class ConstantClasses:
    """The constants of a graph and its nested graphs."""

    #: names of initializers and of values computed only from them
    constant: set[str] = field(default_factory=set)
    #: first outputs of the nodes that are folded in float32
    folded: set[str] = field(default_factory=set)
    #: constants that a folded node, a float32 node, a parameter, a cast or an output reads unrounded
    read_plain: set[str] = field(default_factory=set)
    #: values that nodes read rounded, each with the format
    read_rounded: set[tuple[str, int]] = field(default_factory=set)


def note_computed(
    model: onnx.ModelProto,
    constants: ConstantClasses,
    shapes: Mapping[str, tuple[int, ...]],
    overflows: Overflows,
) -> None:
    """Count the computed constants of the main graph that become zero in float16 or exceed it.

    `constants` contains the values that nodes read rounded, and the nodes that compute constants.
    """
    makers = {
        name: node
        for node in model.graph.node
        if node_key(node) in constants.folded
        for name in node.output
        if name
    }
    for node in model.graph.node:
        for name in node.input:
            if (
                name not in makers
                or (name, FLOAT16) not in constants.read_rounded
                or name in overflows.readers
            ):
                continue
            values = filled = filling(makers[name])
            if values is None and name in shapes and math.prod(shapes[name]) <= _ELEMENTS:
                values = _computed(name, model, makers)
            if values is None or values.dtype.kind != "f":
                continue
            overflows.readers[name] = node_label(node)
            overflows.note_lost(name, values)
            # `_clip_filling` counts the fillings that it clips.
            if filled is None or not overflows.clip:
                overflows.note_beyond(name, values)


def _computed(
    name: str, model: onnx.ModelProto, makers: Mapping[str, onnx.NodeProto]
) -> npt.NDArray[Any] | None:
    """Compute a constant; None if this needs many nodes, large weights, or operators of other domains."""
    from onnx import reference

    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes: dict[str, onnx.NodeProto] = {}
    leaves: dict[str, onnx.TensorProto] = {}
    pending = [name]
    while pending:
        current = pending.pop()
        if current in stored:
            leaves[current] = stored[current]
        elif current not in makers or len(nodes) > _NODES:
            return None
        elif node_key(makers[current]) not in nodes:
            nodes[node_key(makers[current])] = makers[current]
            pending.extend(filter(None, makers[current].input))
    graph = onnx.helper.make_graph(
        [node for node in model.graph.node if node_key(node) in nodes],
        "constant",
        [],
        [onnx.helper.make_empty_tensor_value_info(name)],
        list(leaves.values()),
    )
    program = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, graph=graph)
    try:
        (values,) = reference.ReferenceEvaluator(program).run(None, {})
    except Exception:  # noqa: BLE001 - the evaluator may raise any exception, which must not end compilation
        return None
    return np.asarray(values)
