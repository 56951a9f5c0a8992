"""Finds the node that the engine refuses, if the engine's message does not name the node.

The refused node is the last node of the shortest beginning of the graph that the engine refuses.
"""

import re
from typing import Final, NoReturn

import onnx
from onnx import helper, numpy_helper

from qaic.compiler.diagnostics.messages import engine_reason, engine_refused
from qaic.compiler.ir.constants.in_graph import read_array
from qaic.compiler.ir.constants.weights import with_weights_as_inputs
from qaic.compiler.ir.elem_types import OF_NUMPY
from qaic.compiler.ir.engine_session import engine_session
from qaic.compiler.ir.graph_edits import add_output, clone, remove_nodes, set_outputs
from qaic.compiler.ir.graph_walk import all_nodes, node_label, subgraphs
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.precision import UNROUNDED
from qaic.errors import QaicError

#: most bytes of a weight whose values a kernel may check
_SMALL_WEIGHT: Final = 1 << 16


#: node in a message of the engine
_NODE: Final = re.compile(r"Node \((.*?)\) Op \((\w+)\)")

#: codes of the errors of an engine that does not load a graph
_REFUSALS: Final = frozenset({"compile.engine_refused", "engine.graph"})


def raise_with_node(error: QaicError, model: Model) -> NoReturn:
    """Raise a refusal of the engine with the refused node.

    Raises the same error if it contains the node, or if the engine accepts each beginning of the graph. Other
    errors are raised unchanged, also those of models with custom operators, which only the device loads.
    """
    named = None
    if (
        error.code in _REFUSALS
        and "node" not in error.context
        and not (model.library_paths or model.own_operators)
    ):
        named = _with_node(model)
    if named is None:
        raise error
    raise named from error


def _with_node(model: Model) -> QaicError | None:
    small = {
        name: weight
        for name, weight in model.weights.items()
        if weight.source.nbytes <= _SMALL_WEIGHT and weight.elem_type in OF_NUMPY and weight.blocks is None
    }
    whole = clone(model.proto)
    whole.graph.initializer.extend(numpy_helper.from_array(read_array(w), w.name) for w in small.values())
    large = {name: w for name, w in model.weights.items() if name not in small}
    whole = with_weights_as_inputs(whole, large)
    _name_inner_nodes(whole.graph)
    low, high = 0, len(whole.graph.node)
    error = _refusal(whole, high)
    if not error:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        found = _refusal(whole, middle)
        low, high, error = (low, middle, found) if found else (middle, high, error)
    node = whole.graph.node[high - 1]
    name, operator = node_label(node).removesuffix(UNROUNDED), node.op_type
    if any(subgraphs(node)):
        # The innermost node is last.
        name, operator = [(name, operator), *_NODE.findall(str(error))][-1]
    return engine_refused(name, operator, engine_reason(error))


def _name_inner_nodes(graph: onnx.GraphProto) -> None:
    """Name the nodes of nested graphs after their results, because messages name them."""
    taken = {node.name for node in all_nodes(graph.node)}
    for outer in graph.node:
        for inner in subgraphs(outer):
            for node in all_nodes(inner.node):
                label = node_label(node)
                if not node.name and label not in taken:
                    node.name = label
                    taken.add(label)


def _refusal(whole: onnx.ModelProto, count: int) -> Exception | None:
    """Return the engine's error about the first nodes of a graph; None if the engine accepts them."""
    begun = clone(whole)
    if count < len(whole.graph.node):
        remove_nodes(begun.graph, range(count, len(whole.graph.node)))
        set_outputs(begun.graph, ())
        for name in filter(None, begun.graph.node[-1].output):
            add_output(begun.graph, helper.make_empty_tensor_value_info(name))
    try:
        engine_session(begun.SerializeToString(), "ORT_DISABLE_ALL")
    except Exception as error:  # noqa: BLE001 - the engine has no exception type of its own
        return error
    return None
