"""External data where the reader does not follow it: in attributes, nested graphs and functions.

The engine would look for such a file in the folder the process happens to be in when the program is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qaic.compiler.graph_walk import all_graphs, all_nodes
from qaic.compiler.refusal import refuse

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx

#: TensorProto.data_location
_EXTERNAL = 1


def check_inner_tensors(model: onnx.ModelProto) -> None:
    """Refuse tensors whose data is in a file, after those of the main graph's initializers were taken out.

    Raises
    ------
    CompileError
        The message names the tensor and the place.
    """
    for tensor, place in _tensors(model):
        if tensor.data_location == _EXTERNAL:
            raise refuse(
                f"tensor {tensor.name!r} in {place}",
                code="external_data",
                found="external data",
                expected="external data of initializers of the main graph only",
                fix="store the others inside the model (onnx.save_model with convert_attribute=False)",
                context={"tensor": tensor.name},
            )


def _tensors(model: onnx.ModelProto) -> Iterator[tuple[onnx.TensorProto, str]]:
    """Yield every tensor of a model with words for where it is."""
    nodes = [*model.graph.node]
    for function in model.functions:
        nodes += function.node
        for attribute in function.attribute_proto:
            yield from _of_attribute(attribute, f"function {function.name!r}")
            for graph in (attribute.g, *attribute.graphs):
                nodes += graph.node
    for node in all_nodes(nodes):
        place = f"node {node.name!r} ({node.op_type})"
        for attribute in node.attribute:
            yield from _of_attribute(attribute, place)
    for graph in all_graphs(model.graph):
        yield from _of_graph(graph, f"graph {graph.name!r}")


def _of_attribute(attribute: onnx.AttributeProto, place: str) -> Iterator[tuple[onnx.TensorProto, str]]:
    for tensor in (attribute.t, *attribute.tensors):
        yield tensor, place
    for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
        yield sparse.values, place
        yield sparse.indices, place
    for graph in (attribute.g, *attribute.graphs):
        yield from _of_graph(graph, place)


def _of_graph(graph: onnx.GraphProto, place: str) -> Iterator[tuple[onnx.TensorProto, str]]:
    for tensor in graph.initializer:
        yield tensor, place
    for sparse in graph.sparse_initializer:
        yield sparse.values, place
        yield sparse.indices, place
