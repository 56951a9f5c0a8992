"""The element type of every value of a model, per graph, as shape inference left them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qaic.compiler.graph_walk import all_graphs

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx


@dataclass(slots=True)
class ValueFacts:
    """What is known about values by name."""

    types: dict[str, int]
    #: of values of the main graph whose dims are all known
    shapes: dict[str, tuple[int, ...]]


def collect_types(inferred: onnx.ModelProto) -> dict[str, int]:
    """Map the name of every tensor to its ONNX element type.

    Names are unique over nested graphs that are visible to each other. Two branches may use one name for
    different values; where their types differ the name is left out, so that nothing is done to either.
    """
    types: dict[str, int] = {}
    mixed: set[str] = set()

    def note(name: str, elem_type: int) -> None:
        if elem_type and types.setdefault(name, elem_type) != elem_type:
            mixed.add(name)

    for graph in all_graphs(inferred.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.HasField("tensor_type"):
                note(value.name, value.type.tensor_type.elem_type)
        for tensor in graph.initializer:
            note(tensor.name, tensor.data_type)
        for sparse in graph.sparse_initializer:
            note(sparse.values.name, sparse.values.data_type)
    for name in mixed:
        del types[name]
    return types


def untyped_values(graph: onnx.GraphProto, types: Mapping[str, int]) -> list[str]:
    """List the outputs of nodes of the main graph that have no known type."""
    return [name for node in graph.node for name in node.output if name and name not in types]


def collect_shapes(inferred: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Map the name of every tensor of the main graph whose dims are all known to its shape."""
    graph = inferred.graph
    shapes: dict[str, tuple[int, ...]] = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.output, *graph.value_info):
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            shapes[value.name] = tuple(dim.dim_value for dim in tensor.shape.dim)
    return shapes
