"""Invariants of a model between two passes."""

from collections.abc import Container, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from typing import TypeAlias

import onnx

from qaic.compiler.ir.elem_types import FLOAT, type_name
from qaic.compiler.ir.graph_edits import clear_descriptions
from qaic.compiler.ir.graph_walk import STANDARD_DOMAINS, all_graphs, constant_names, subgraphs
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.operand_ranks import infer_with_valid_ranks
from qaic.compiler.ir.value_info import Dims, agree, type_and_dims

#: element type and dims of a value; 0 and None are unknown
_Type: TypeAlias = tuple[int, Dims | None]


class InvalidModelError(AssertionError):
    """A pass has created an invalid model: a defect of the compiler."""


def verify(model: Model, after: str, *, are_types_verified: bool = True) -> None:
    """Check a model.

    In each graph, a value has one producer, or none if it is an input, an initializer or a weight. The
    operands of nodes and outputs are produced before them, and the operator set of every node is imported.
    Weights are not in the graph. With `are_types_verified`, the element types and shapes of the model, its
    facts, its interface and the first of its specialized graphs must be those that onnx infers from nodes,
    inputs and constants. `after` names the last pass. Raises InvalidModelError if the model is invalid.
    """
    proto = model.proto
    domains = _domains(proto.opset_import)
    twice = constant_names(proto.graph) & model.weights.keys()
    faults = [f"weight {name!r} is also in the graph" for name in sorted(twice)]
    faults += _faults(proto.graph, set(), domains, given=set(model.weights))
    for function in proto.functions:
        known = set(function.input)
        own = _domains(function.opset_import)
        faults += _node_faults(function.node, known, own | domains, given=set(known))
        faults += [f"output {name!r} of {function.name!r}" for name in function.output if name not in known]
    if are_types_verified and not faults:
        faults = list(_type_faults(model))
    if faults:
        raise InvalidModelError(f"after the pass {after!r}: {'; '.join(faults[:5])}")


def _domains(imports: Iterable[onnx.OperatorSetIdProto]) -> set[str]:
    found = {entry.domain for entry in imports}
    return found if found.isdisjoint(STANDARD_DOMAINS) else found | STANDARD_DOMAINS


def _faults(
    graph: onnx.GraphProto, outer: set[str], domains: set[str], given: Iterable[str] = ()
) -> list[str]:
    own = set(given)
    own.update(value.name for value in graph.input)
    own |= constant_names(graph)
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
        # Comparing all names of a node as sets is faster than a loop over one; most nodes have no fault.
        inputs, outputs = node.input[:], node.output[:]
        if node.domain not in domains:
            faults.append(f"no operator set of domain {node.domain!r}, of node {node.name!r}")
        if not known.issuperset(inputs):
            faults += [
                f"{name!r} is read by {node.op_type} {node.name!r} and has no producer before it"
                for name in inputs
                if name and name not in known
            ]
        for graph in subgraphs(node):
            faults += _faults(graph, known, domains)
        if not made.isdisjoint(outputs) or not given.isdisjoint(outputs):
            faults += [f"{name!r} is computed twice" for name in outputs if name and name in made]
            faults += [f"{name!r} is both an input and computed" for name in outputs if name in given]
        made.update(outputs)
        known.update(outputs)
    return faults


def _type_faults(model: Model) -> Iterator[str]:
    """Compare the recorded element types and shapes of a model with those of its nodes."""
    view = model.copy_for_tools()
    for graph in all_graphs(view.graph):
        clear_descriptions(graph)
    for value in view.graph.output:
        value.ClearField("type")
    graphs = _inferred(view.SerializeToString())
    nodes = [node for graph in graphs for node in graph.node]
    # The type of an unread Dropout mask depends on the operator set.
    judged = set(chain.from_iterable(node.input[:] for node in nodes))
    judged.update(value.name for graph in graphs for value in (*graph.input, *graph.output))
    # Inference returns too large sizes for pools with partial windows, which the compiler corrects.
    pools = (node.attribute for node in nodes if node.op_type.endswith("Pool"))
    is_sized = not any(a.name == "ceil_mode" and a.i for a in chain.from_iterable(pools))
    known = _Inferred(graphs[0], judged, is_sized=is_sized)
    for graph, inferred in zip(all_graphs(model.proto.graph), graphs, strict=True):
        found = known if inferred is graphs[0] else _Inferred(inferred, judged, is_sized=is_sized)
        yield from found.differences("the graph", _declared(graph).items())
    specs = [] if model.known is None else [*model.inputs, *model.outputs]
    # Casts at the inputs and outputs give other values the names of the model's.
    changed = {spec.name for spec in specs if spec.model is not None}
    for form in model.specialized[:1]:
        declared = ((name, own) for name, own in _declared(form.graph).items() if name not in changed)
        yield from known.differences("a specialized graph", declared, model.facts.narrow)
    # The cached shapes are collected at the first request of a pass.
    shapes = vars(model.facts).get("shapes", {})
    values = ((name, (elem_type, shapes.get(name))) for name, elem_type in model.facts.types.items())
    yield from known.differences("the facts", values)
    for spec in specs:
        # The device decodes blocks, and buffers have the largest of several sizes.
        if spec.mxint8 is None:
            dims = None if model.specializations else spec.dims
            yield from known.differences("the interface", [(spec.name, (spec.elem_type, dims))])


# Several passes change only descriptions.
@lru_cache(1)
def _inferred(content: bytes) -> list[onnx.GraphProto]:
    return list(all_graphs(infer_with_valid_ranks(onnx.ModelProto.FromString(content)).graph))


class _Inferred:
    """Inferred element types and shapes of the values of a graph."""

    def __init__(self, graph: onnx.GraphProto, judged: Container[str], *, is_sized: bool) -> None:
        self._values = {name: own for name, own in _declared(graph).items() if name in judged}
        self._values |= {tensor.name: (tensor.data_type, tuple(tensor.dims)) for tensor in graph.initializer}
        self._is_sized = is_sized

    def differences(
        self, where: str, found: Iterable[tuple[str, _Type]], narrow: Mapping[str, int] | None = None
    ) -> Iterator[str]:
        """Compare values with the inferred ones; `narrow` values are now float32."""
        for name, value in found:
            own = self._values.get(name)
            if own is None or own == value:
                continue
            (own_type, own_dims), (elem_type, dims) = own, value
            elem_type = FLOAT if narrow and narrow.get(name) == elem_type else elem_type
            if own_type != elem_type and own_type and elem_type:
                yield f"{name!r} is {type_name(elem_type)} in {where}; inference gives {type_name(own_type)}"
            if dims is not None and self._is_sized and not agree(dims, own_dims):
                yield f"{name!r} has the dims {dims} in {where}; inference gives {own_dims}"


def _declared(graph: onnx.GraphProto) -> dict[str, _Type]:
    values = chain(graph.input, graph.value_info, graph.output)
    return {value.name: type_and_dims(value) for value in values}
