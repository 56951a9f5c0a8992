"""Invariants of a model between two passes."""

from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import chain

import onnx
from onnx import shape_inference

from qaic.compiler.ir.elem_types import FLOAT, type_name
from qaic.compiler.ir.graph_edits import clear_descriptions, clear_type
from qaic.compiler.ir.graph_walk import STANDARD_DOMAINS, all_graphs, all_nodes, subgraphs
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.value_info import Dims, agree, dims_of


class InvalidModelError(AssertionError):
    """A pass has left a model that is none: a defect of the compiler."""


def verify(model: Model, after: str, *, are_types_verified: bool = True) -> None:
    """Check a model.

    In each graph, a value has one producer, and none if it is an input, an initializer or a weight. What a
    node or an output reads is there before it; the operator set of every node is imported. Weights are not in
    the graph too. With `are_types_verified`, the element types and shapes of the model, its facts, its
    interface and the first of its specialized graphs are those that onnx infers from nodes, inputs and
    constants. `after` names the pass that left the model. Raises InvalidModelError if it is not valid.
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
    if are_types_verified and not faults:
        faults = list(_type_faults(model))
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


def _type_faults(model: Model) -> Iterator[str]:
    """Compare the element types and shapes that a model holds with those that its nodes have."""
    view = model.copy_for_tools()
    for graph in all_graphs(view.graph):
        clear_descriptions(graph)
    for value in view.graph.output:
        clear_type(value)
    nodes = list(all_nodes(view.graph.node))
    graphs = list(all_graphs(shape_inference.infer_shapes(view).graph))
    # A mask of Dropout that nothing reads has other types in later operator sets.
    judged = {name for node in nodes for name in node.input}
    judged.update(value.name for graph in graphs for value in (*graph.input, *graph.output))
    # Inference gives pools with partial windows too large sizes, which the compiler corrects.
    is_sized = not any(a.name == "ceil_mode" and a.i for node in nodes for a in node.attribute)
    known = _Inferred(graphs[0], judged, is_sized=is_sized)
    for graph, inferred in zip(all_graphs(model.proto.graph), graphs, strict=True):
        found = known if inferred is graphs[0] else _Inferred(inferred, judged, is_sized=is_sized)
        yield from found.differences("the graph", graph, (), {})
    facts = model.facts
    specs = [] if model.known is None else [*model.inputs, *model.outputs]
    # The border has other values under the names of the model's.
    changed = {spec.name for spec in specs if spec.model is not None}
    for form in model.specialized[:1]:
        yield from known.differences("a specialized graph", form.graph, changed, facts.narrow)
    # The cached shapes are not collected before a pass asks for them.
    shapes = vars(facts).get("shapes", {})
    for name in facts.types.keys() & known.types.keys():
        yield from known.difference(name, "the facts", facts.types[name], shapes.get(name))
    for spec in specs:
        # The device decodes blocks, and buffers have the largest of several sizes.
        if spec.mxint8 is None:
            dims = None if model.specializations else spec.dims
            yield from known.difference(spec.name, "the interface", spec.elem_type, dims)


class _Inferred:
    """Element types and shapes of the values of a graph, as inference gives them."""

    def __init__(self, graph: onnx.GraphProto, judged: Container[str], *, is_sized: bool) -> None:
        self._values = {name: tensor for name, tensor in _declared(graph).items() if name in judged}
        self._is_sized = is_sized
        self.types = {name: tensor.elem_type for name, tensor in self._values.items()}
        self._dims: dict[str, Dims | None] = {}
        for constant in graph.initializer:
            self.types[constant.name], self._dims[constant.name] = constant.data_type, tuple(constant.dims)

    def differences(
        self,
        where: str,
        graph: onnx.GraphProto,
        left_out: Container[str],
        narrow: Mapping[str, int],
    ) -> Iterator[str]:
        """Compare what a graph declares; `narrow` values are float32 now."""
        for name, tensor in _declared(graph).items():
            own = self._values.get(name)
            if own is None or tensor == own or name in left_out:
                continue
            elem_type = FLOAT if narrow.get(name) == tensor.elem_type else tensor.elem_type
            dims = None if tensor.shape == own.shape else dims_of(tensor)
            yield from self.difference(name, where, elem_type, dims)

    def difference(self, name: str, where: str, elem_type: int, dims: Dims | None) -> Iterator[str]:
        """Compare one value; an element type of 0 and dims of None are not known."""
        own_type = self.types.get(name, 0)
        if own_type != elem_type and own_type and elem_type:
            yield f"{name!r} is {type_name(elem_type)} in {where}; inference gives {type_name(own_type)}"
        if dims is None or name not in self.types or not self._is_sized:
            return
        if name not in self._dims:
            self._dims[name] = dims_of(self._values[name])
        if not agree(dims, self._dims[name]):
            yield f"{name!r} has the dims {dims} in {where}; inference gives {self._dims[name]}"


def _declared(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto.Tensor]:
    return {
        value.name: value.type.tensor_type for value in chain(graph.input, graph.value_info, graph.output)
    }
