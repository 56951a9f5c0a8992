"""Constants of a graph: their forms, their readers, the nodes that compute them, and those to fold.

A constant is a node, a protobuf tensor, or a weight outside the graph. Constant sub-expressions are folded in
float32 and then rounded. A node that computes only on constants therefore does not change, and its result is
rounded where other nodes read it. For fixed shapes, the results of Shape and Size are constants too, because
index arithmetic must not be rounded.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from qaic.compiler.diagnostics.messages import damaged, not_inside
from qaic.compiler.ir import elem_types
from qaic.compiler.ir.constants.weights import INLINE_LIMIT, ComputedSource, MemoryRange, Weight, read_all
from qaic.compiler.ir.elem_types import FLOAT, array_type
from qaic.compiler.ir.graph_edits import register_initializer, remove_initializers, remove_nodes
from qaic.compiler.ir.graph_walk import (
    RANDOM,
    SHAPE_READERS,
    STANDARD_DOMAINS,
    all_graphs,
    constant_names,
    find_nodes,
    producers,
    standard,
    subgraphs,
)
from qaic.compiler.ir.precision import FLOAT_FORMATS, selected_inputs
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

    Raises CompileError if its payload does not fit its dims, or is outside the model.
    """
    if tensor.data_location == tensor.EXTERNAL:
        what = f"initializer {tensor.name!r} of a nested graph"
        raise not_inside(what, "external data that was not read", "its data in the model")
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
    """Keep small constants in the graph and large ones outside it; passes may have changed their sizes."""
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


def constant_values(graph: onnx.GraphProto, constants: Collection[str]) -> set[str]:
    """Collect the constants of a graph and its nested graphs, and values computed from them alone."""
    found, _ = split_constants(graph, constants)
    values = set(found)
    for node in graph.node:
        for inner in subgraphs(node):
            values |= constant_values(inner, found)
    return values


def split_constants(
    graph: onnx.GraphProto, constants: Collection[str]
) -> tuple[set[str], list[onnx.NodeProto]]:
    """Return the constants visible in a graph, and its nodes that compute some of them."""
    local = constant_names(graph).union(constants)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        reads_shape = node.op_type in SHAPE_READERS and node.domain in STANDARD_DOMAINS
        if reads_shape or (
            node.op_type not in RANDOM
            and all(not name or name in local for name in node.input)
            and not any(True for _ in subgraphs(node))
        ):
            local.update(node.output)
            nodes.append(node)
    return local, nodes


def value_preserving_inputs(
    types: Mapping[str, int],
) -> Callable[[onnx.NodeProto, int], tuple[int, ...] | None]:
    """Return a `selected_inputs` that also handles casts.

    A cast selects if it converts between float types, or from a type whose values both formats represent
    exactly. Any other cast computes.
    """
    floats = {1, 10, 11, 16}
    exact = {2, 3, 9}  # uint8, int8, bool

    def preserved(node: onnx.NodeProto, float_format: int) -> tuple[int, ...] | None:
        if standard(node, "Cast", "CastLike"):
            source = types.get(node.input[0], 0)
            target = types.get(node.output[0], 0)
            if target not in floats or (target in FLOAT_FORMATS and target != float_format):
                return None
            if source in floats:
                return (0,)
            return () if source in exact else None
        return selected_inputs(node, float_format)

    return preserved


class ConstantReader:
    """The initializers of a main graph.

    `add_array` adds to the graph, and `add` to its large initializers.
    """

    def __init__(self, graph: onnx.GraphProto, weights: dict[str, Weight]) -> None:
        self.graph = graph
        self.weights = weights
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._small: dict[str, Weight] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.weights or name in self._tensors

    def describe(self, name: str) -> Weight | None:
        """Find a constant by name."""
        if name in self.weights:
            return self.weights[name]
        if name not in self._small and name in self._tensors:
            self._small[name] = as_weight(self._tensors[name])
        return self._small.get(name)

    def weight(self, name: str) -> Weight:
        """Find a constant that exists."""
        found = self.describe(name)
        if found is None:
            raise KeyError(name)
        return found

    def is_float(self, name: str) -> bool:
        """Return True if a name is a float32 constant."""
        if name in self.weights:
            return self.weights[name].elem_type == FLOAT
        return name in self._tensors and self._tensors[name].data_type == FLOAT

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """Read a float32 constant in its shape; raises ``KeyError`` if there is none of this name."""
        weight = self.weight(name)
        if weight.elem_type != FLOAT:
            raise KeyError(name)
        return read_array(weight)

    def add(self, weight: Weight) -> None:
        """Add a constant outside the graph."""
        self.weights[weight.name] = weight

    def add_array(self, name: str, values: npt.NDArray[Any]) -> None:
        """Add a constant to the graph."""
        self._tensors[name] = register_initializer(self.graph, numpy_helper.from_array(values, name))


def read_array(weight: Weight) -> npt.NDArray[Any]:
    """Read a constant of a type that numpy or ml_dtypes has, in its shape."""
    return np.frombuffer(read_all(weight.source), array_type(weight.elem_type)).reshape(weight.dims)


def constant_reader(
    graph: onnx.GraphProto, weights: Mapping[str, Weight] = MappingProxyType({})
) -> Callable[[str], npt.NDArray[Any] | None]:
    """Return a function that reads a constant of the model; it returns None for other values."""
    makers = producers(find_nodes(graph.node, {"Constant"}))
    stored = {tensor.name: tensor for inner in all_graphs(graph) for tensor in inner.initializer}

    def read(name: str) -> npt.NDArray[Any] | None:
        if name in weights:
            return read_array(weights[name])
        if name in stored:
            return None if stored[name].data_location == onnx.TensorProto.EXTERNAL else dense(stored[name])
        return constant_of(makers[name]) if name in makers else None

    return read


def multiplied(
    values: npt.NDArray[np.float32], factors: npt.NDArray[np.float32], axis: int
) -> npt.NDArray[np.float32]:
    """Multiply each channel along an axis by its factor."""
    shape = [1] * values.ndim
    shape[axis] = len(factors)
    return values * factors.reshape(shape)


def with_factors(weight: Weight, name: str, factors: npt.NDArray[np.float32], axis: int) -> Weight:
    """Describe a float32 weight times a factor per channel; its values are small enough for memory."""

    def chunks() -> Iterator[bytes]:
        yield multiplied(read_array(weight), factors, axis).tobytes()

    return replace(weight, name=name, source=ComputedSource(weight.source.nbytes, chunks))
