"""Moving constants between the three forms they have: nodes, protobuf tensors, weights beside the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from qaic.compiler import elem_types
from qaic.compiler.graph_walk import all_graphs
from qaic.compiler.onnx_file import INLINE_LIMIT
from qaic.compiler.precision_ops import standard
from qaic.compiler.weights import MemoryRange, Weight, read_all

if TYPE_CHECKING:
    import onnx

#: types of weights the engine takes from the mapping; sub-byte and 8-bit float types stay in the graph
_MAPPED_TYPES: Final = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16})

_FLOATS: Final = frozenset({elem_types.FLOAT, elem_types.DOUBLE, elem_types.FLOAT16})


def as_weight(tensor: onnx.TensorProto) -> Weight:
    """Describe a tensor of the skeleton like a weight."""
    from onnx import numpy_helper

    if tensor.HasField("raw_data"):
        data = tensor.raw_data
    elif tensor.data_type == elem_types.STRING:
        data = b""
    else:
        data = numpy_helper.to_array(tensor).tobytes()
    return Weight(tensor.name, tensor.data_type, tuple(tensor.dims), MemoryRange(data))


def lift_float_constants(model: onnx.ModelProto) -> None:
    """Turn ``Constant`` nodes with float values into initializers of their graph, nested graphs too."""
    from onnx import helper

    for graph in all_graphs(model.graph):
        lifted: list[int] = []
        for index, node in enumerate(graph.node):
            if not standard(node, "Constant") or len(node.attribute) != 1:
                continue
            attribute = node.attribute[0]
            if attribute.name == "value" and attribute.t.data_type in _FLOATS:
                tensor = graph.initializer.add()
                tensor.CopyFrom(attribute.t)
                tensor.name = node.output[0]
            elif attribute.name == "value_float":
                graph.initializer.append(
                    helper.make_tensor(node.output[0], elem_types.FLOAT, [], [attribute.f])
                )
            elif attribute.name == "value_floats":
                values = list(attribute.floats)
                graph.initializer.append(
                    helper.make_tensor(node.output[0], elem_types.FLOAT, [len(values)], values)
                )
            else:
                continue
            lifted.append(index)
        for index in reversed(lifted):
            del graph.node[index]


def settle_sizes(model: onnx.ModelProto, weights: dict[str, Weight]) -> None:
    """Keep small constants in the graph and large ones beside it; passes may have changed their sizes."""
    import onnx

    graph = model.graph
    for name in [
        name
        for name, weight in weights.items()
        if weight.source.nbytes < INLINE_LIMIT or weight.elem_type not in _MAPPED_TYPES
    ]:
        weight = weights.pop(name)
        graph.initializer.append(
            onnx.TensorProto(
                name=name, data_type=weight.elem_type, dims=weight.dims, raw_data=read_all(weight.source)
            )
        )
    large = [
        index
        for index, tensor in enumerate(graph.initializer)
        if tensor.data_type in _MAPPED_TYPES
        and elem_types.tensor_bytes(tensor.data_type, tensor.dims) >= INLINE_LIMIT
    ]
    for index in large:
        weight = as_weight(graph.initializer[index])
        weights[weight.name] = weight
    for index in reversed(large):
        del graph.initializer[index]
