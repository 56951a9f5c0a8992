"""Conversion of constants between their three forms: nodes, protobuf tensors, weights next to the graph."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from qaic.compiler.diagnostics.compile_error import damaged, refuse
from qaic.compiler.ir import elem_types
from qaic.compiler.ir.constants.weights import INLINE_LIMIT, MemoryRange, Weight, read_all
from qaic.compiler.ir.graph_edits import register_initializer, remove_initializers, remove_nodes
from qaic.compiler.ir.graph_walk import all_graphs
from qaic.compiler.ir.precision_ops import standard
from qaic.errors import CompileError

#: types of weights that the engine reads from the mapping; sub-byte and 8-bit float types stay in the graph
_MAPPED_TYPES: Final = elem_types.OF_NUMPY | {elem_types.BFLOAT16}


def as_weight(tensor: onnx.TensorProto) -> Weight:
    """Describe a tensor of the model like a weight."""
    if tensor.data_type == elem_types.STRING:
        data = b""
    elif tensor.HasField("raw_data") and tensor.data_type in elem_types.TABLE:
        data = tensor.raw_data
        expected = elem_types.tensor_bytes(tensor.data_type, tensor.dims)
        if len(data) != expected:
            raise _damaged(tensor, f"{len(data)} bytes of data, {expected} needed")
    else:
        data = dense(tensor).tobytes()
    return Weight(tensor.name, tensor.data_type, tuple(tensor.dims), MemoryRange(data))


def dense(tensor: onnx.TensorProto) -> npt.NDArray[Any]:
    """Read a tensor of the model.

    Raises CompileError if its payload does not fit its dims, or lies outside the model.
    """
    if tensor.data_location == tensor.EXTERNAL:
        raise refuse(
            f"initializer {tensor.name!r} of a nested graph",
            code="external_data",
            found="external data that was not read",
            expected="its data in the model",
            fix="pass the path of the model instead of its content",
        )
    try:
        if tensor.data_type in elem_types.NARROW_FLOATS:
            # For these types, onnx returns float32, codes or arrays of ml_dtypes, depending on its version.
            codes = np.frombuffer(elem_types.narrow_float_bytes(tensor), np.uint8)
            return codes.view(elem_types.array_type(tensor.data_type)).reshape(tuple(tensor.dims))
        return np.asarray(numpy_helper.to_array(tensor))
    except (ValueError, TypeError, KeyError) as error:
        raise _damaged(tensor, str(error)) from error


def constant_of(node: onnx.NodeProto) -> npt.NDArray[Any] | None:
    """Read the numbers of a Constant; None for other nodes, text, and numbers from calls or files."""
    if not standard(node, "Constant") or len(node.attribute) != 1 or node.attribute[0].ref_attr_name:
        return None
    (attribute,) = node.attribute
    value = helper.get_attribute_value(attribute)
    if attribute.name == "value":
        is_number = value.data_type != elem_types.STRING and value.data_location != value.EXTERNAL
        return dense(value) if is_number else None
    numbers = {"value_int": np.int64, "value_float": np.float32}.get(attribute.name.removesuffix("s"))
    return None if numbers is None else np.array(value, numbers)


def _damaged(tensor: onnx.TensorProto, found: str) -> CompileError:
    expected = f"the data of {elem_types.type_name(tensor.data_type)} {list(tensor.dims)}"
    return damaged(f"initializer {tensor.name!r}", found, expected)


def lift_float_constants(model: onnx.ModelProto) -> None:
    """Turn ``Constant`` nodes with float values into initializers of their graph, nested graphs too."""
    for graph in all_graphs(model.graph):
        lifted: list[int] = []
        for index, node in enumerate(graph.node):
            if not standard(node, "Constant") or len(node.attribute) != 1:
                continue
            attribute = node.attribute[0]
            if attribute.name == "value" and attribute.t.data_type in elem_types.FLOATS:
                register_initializer(graph, attribute.t, node.output[0])
            elif (
                attribute.name == "sparse_value"
                and attribute.sparse_tensor.values.data_type == elem_types.FLOAT
            ):
                register_initializer(graph, _densified(attribute.sparse_tensor), node.output[0])
            elif attribute.name in {"value_float", "value_floats"}:
                numbers = np.array(helper.get_attribute_value(attribute), np.float32)
                tensor = helper.make_tensor("", elem_types.FLOAT, numbers.shape, numbers.reshape(-1).tolist())
                register_initializer(graph, tensor, node.output[0])
            else:
                continue
            lifted.append(index)
        remove_nodes(graph, lifted)


def _densified(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    """Make a sparse tensor dense; an index is one number, or one for each dim."""
    values, places = dense(sparse.values), dense(sparse.indices)
    numbers = np.zeros(tuple(sparse.dims), values.dtype)
    if places.ndim == 1:
        numbers.reshape(-1)[places] = values
    else:
        numbers[tuple(places.T)] = values
    return numpy_helper.from_array(numbers)


def externalize_constants(model: onnx.ModelProto, weights: dict[str, Weight]) -> None:
    """Keep small constants in the graph and large ones next to it; passes may have changed their sizes."""
    graph = model.graph
    for name in [
        name
        for name, weight in weights.items()
        if weight.blocks is None
        and (weight.source.nbytes < INLINE_LIMIT or weight.elem_type not in _MAPPED_TYPES)
    ]:
        weight = weights.pop(name)
        data = read_all(weight.source)
        register_initializer(
            graph, onnx.TensorProto(name=name, data_type=weight.elem_type, dims=weight.dims, raw_data=data)
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
    remove_initializers(graph, large)
