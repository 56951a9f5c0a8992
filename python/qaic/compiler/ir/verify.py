"""Invariants of a model between two passes."""

from collections.abc import Iterable

import onnx

from qaic.compiler.ir.graph_walk import STANDARD_DOMAINS, subgraphs
from qaic.compiler.ir.model import Model


class InvalidModelError(AssertionError):
    """A pass has left a model that is none: a defect of the compiler."""


def verify(model: Model, after: str) -> None:
    """Check a model.

    In each graph, a value has one producer, and none if it is an input, an initializer or a weight. What a
    node or an output reads is there before it; the operator set of every node is imported. Weights are not in
    the graph too. `after` names the pass that left it. Raises InvalidModelError if it is not valid.
    """
    proto = model.proto
    domains = {_domain(entry.domain) for entry in proto.opset_import}
    declared = {tensor.name for tensor in proto.graph.initializer}
    declared |= {tensor.values.name for tensor in proto.graph.sparse_initializer}
    twice = declared & model.weights.keys()
    faults = [f"weight {name!r} is in the graph too" for name in sorted(twice)]
    faults += _faults(proto.graph, set(), domains, given=set(model.weights))
    for function in proto.functions:
        own = {_domain(entry.domain) for entry in function.opset_import}
        known = set(function.input)
        faults += _node_faults(function.node, known, own | domains, given=set(known))
        faults += [f"output {name!r} of {function.name!r}" for name in function.output if name not in known]
    if faults:
        raise InvalidModelError(f"after the pass {after!r}: {'; '.join(faults[:5])}")


def _domain(name: str) -> str:
    return "" if name in STANDARD_DOMAINS else name


def _faults(
    graph: onnx.GraphProto, outer: set[str], domains: set[str], given: Iterable[str] = ()
) -> list[str]:
    own = set(given)
    own.update(value.name for value in graph.input)
    own.update(tensor.name for tensor in graph.initializer)
    own.update(tensor.values.name for tensor in graph.sparse_initializer)
    known = outer | own
    faults = _node_faults(graph.node, known, domains, own)
    faults += [f"output {value.name!r} has no producer" for value in graph.output if value.name not in known]
    return faults


def _node_faults(
    nodes: Iterable[onnx.NodeProto], known: set[str], domains: set[str], given: set[str]
) -> list[str]:
    """Check nodes and add their results to `known`; `given` are values without a node."""
    faults = []
    made: set[str] = set()
    for node in nodes:
        if _domain(node.domain) not in domains:
            faults.append(f"no operator set of domain {node.domain!r}, of node {node.name!r}")
        faults += [
            f"{name!r} is read by {node.op_type} {node.name!r} and has no producer before it"
            for name in node.input
            if name and name not in known
        ]
        for graph in subgraphs(node):
            faults += _faults(graph, known, domains)
        faults += [f"{name!r} is made twice" for name in node.output if name and name in made]
        faults += [f"{name!r} is given and made too" for name in node.output if name in given]
        made.update(node.output)
        known.update(node.output)
    return faults
