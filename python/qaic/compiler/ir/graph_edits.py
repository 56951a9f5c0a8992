"""Graph edits: the only module outside the front end and the back end that changes fields of a protobuf.

The functions have the names of onnx-ir (https://onnx.ai/ir-py) where that library has them. They copy nodes
and values of their arguments, so arguments may be parts of the same graph.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from qaic.compiler.ir.graph_walk import FreshNames, all_graphs, subgraphs, uses, values_read_by

_Message = TypeVar(
    "_Message",
    onnx.ModelProto,
    onnx.FunctionProto,
    onnx.GraphProto,
    onnx.NodeProto,
    onnx.AttributeProto,
    onnx.ValueInfoProto,
    onnx.TensorProto,
)


def clone(message: _Message) -> _Message:
    """Copy a model, or a part of one."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def clone_unnamed(node: onnx.NodeProto) -> onnx.NodeProto:
    """Copy a node without its name, which a graph may contain only once."""
    copy = clone(node)
    clear_name(copy)
    return copy


def plain(attribute: onnx.AttributeProto) -> onnx.AttributeProto:
    """Copy an attribute without its description and without the name of its tensor."""
    copy = clone(attribute)
    copy.ClearField("doc_string")
    if copy.HasField("t"):
        copy.t.ClearField("name")
    return copy


# --- the nodes of a graph or function -----------------------------------------------------------------------


def set_nodes(body: onnx.GraphProto | onnx.FunctionProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Replace the nodes of a graph or function, in this order; the new nodes may include existing ones.

    Earlier references to nodes become invalid.
    """
    _assign(body.node, nodes)


def rewrite_nodes(graph: onnx.GraphProto, rule: Callable[[onnx.NodeProto], Sequence[onnx.NodeProto]]) -> None:
    """Replace each node by the nodes that a rule returns for it, in nested graphs too.

    A rule returns the node itself if nothing changes.
    """
    for current in all_graphs(graph):
        nodes = list(current.node)
        made = [rule(node) for node in nodes]
        if any(len(new) != 1 or new[0] is not node for node, new in zip(nodes, made, strict=True)):
            set_nodes(current, chain.from_iterable(made))


def append_nodes(body: onnx.GraphProto | onnx.FunctionProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Add nodes behind the others."""
    body.node.extend(nodes)


def remove_nodes(body: onnx.GraphProto | onnx.FunctionProto, positions: Collection[int]) -> None:
    """Remove the nodes at these positions."""
    _remove(body.node, positions)


def remove_unused_nodes(
    graph: onnx.GraphProto, candidates: Collection[str], made_elsewhere: Collection[str] = ()
) -> None:
    """Remove nodes whose results nothing reads, and the nodes before them that only these read.

    A node can be removed if all of its results are among `candidates`. Constants have replaced the values
    `made_elsewhere`, so reading these requires no node.
    """
    count = uses(graph)
    for name in made_elsewhere:
        count[name] = 0
    allowed = frozenset(candidates)
    dead: list[int] = []
    for position in reversed(range(len(graph.node))):
        node = graph.node[position]
        results = [name for name in node.output if name]
        if results and allowed.issuperset(results) and not any(count[name] for name in results):
            count.subtract(node.input)
            dead.append(position)
    remove_nodes(graph, dead)


def drop_unneeded_nodes(graph: onnx.GraphProto) -> set[str]:
    """Remove the nodes that no output of a graph needs; returns the names of the needed values."""
    needed = {value.name for value in graph.output}
    dead: list[int] = []
    for index in reversed(range(len(graph.node))):
        node = graph.node[index]
        if any(name in needed for name in node.output if name):
            needed |= values_read_by(node)
        else:
            dead.append(index)
    remove_nodes(graph, dead)
    return needed


def replace_graph(model: onnx.ModelProto, other: onnx.ModelProto) -> None:
    """Replace the graph of a model by that of another, with its operator sets."""
    model.graph.CopyFrom(other.graph)
    _assign(model.opset_import, other.opset_import)


def add_function(model: onnx.ModelProto, function: onnx.FunctionProto) -> onnx.FunctionProto:
    """Add a function; returns the function in the model."""
    model.functions.append(function)
    return model.functions[-1]


def import_opset(body: onnx.ModelProto | onnx.FunctionProto, domain: str, version: int) -> None:
    """Import an operator set, unless one of the domain is imported."""
    if all(entry.domain != domain for entry in body.opset_import):
        body.opset_import.add(domain=domain, version=version)


# --- one node -----------------------------------------------------------------------------------------------


def set_inputs(node: onnx.NodeProto, names: Iterable[str]) -> None:
    """Replace the inputs of a node by these values."""
    _assign(node.input, names)


def replace_input_with(node: onnx.NodeProto, position: int, name: str) -> None:
    """Replace one input of a node by another value."""
    node.input[position] = name


def rename_output(node: onnx.NodeProto, position: int, name: str) -> None:
    """Rename a result of a node; its readers do not change."""
    node.output[position] = name


def rename_operands(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Rename the operands and results of a node; nested graphs do not change."""
    _rename(node.input, names)
    _rename(node.output, names)


def clear_name(node: onnx.NodeProto) -> None:
    """Remove the name of a node."""
    node.ClearField("name")


def add_attribute(node: onnx.NodeProto, attribute: onnx.AttributeProto) -> None:
    """Add an attribute that a node does not have."""
    node.attribute.append(attribute)


def set_attributes(node: onnx.NodeProto, attributes: Iterable[onnx.AttributeProto]) -> None:
    """Replace the attributes of a node; the new ones may include existing ones."""
    _assign(node.attribute, attributes)


# --- values -------------------------------------------------------------------------------------------------


def replace_all_uses_with(nodes: Iterable[onnx.NodeProto], replacements: Mapping[str, str]) -> None:
    """Replace values that nodes and their nested graphs read. The results of nodes keep their names."""
    for node in nodes:
        _rename(node.input, replacements)
        for graph in subgraphs(node):
            replace_all_uses_with(graph.node, replacements)
            for value in graph.output:
                value.name = replacements.get(value.name, value.name)


def rename_values(nodes: Iterable[onnx.NodeProto], names: Mapping[str, str]) -> None:
    """Rename values wherever nodes read or produce them, including in nested graphs.

    A name must identify one value.
    """
    for node in nodes:
        rename_operands(node, names)
        for graph in subgraphs(node):
            rename_declared(graph, names)
            rename_values(graph.node, names)


def rename_declared(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename the inputs, outputs, initializers and described values of a graph."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = names.get(value.name, value.name)
    rename_initializers(graph, names)


def rename_initializers(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename the initializers of a graph; their readers do not change."""
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = names.get(sparse.values.name, sparse.values.name)


def add_input(graph: onnx.GraphProto, value: onnx.ValueInfoProto, name: str = "") -> None:
    """Add an input with the declaration of `value`, under another name if given."""
    graph.input.append(value)
    graph.input[-1].name = name or value.name


def add_output(
    graph: onnx.GraphProto, value: onnx.ValueInfoProto | str, name: str = ""
) -> onnx.ValueInfoProto:
    """Add an output with the declaration of `value`; for a name, only the name is declared."""
    if isinstance(value, str):
        return graph.output.add(name=value)
    graph.output.append(value)
    graph.output[-1].name = name or value.name
    return graph.output[-1]


def set_outputs(graph: onnx.GraphProto, names: Iterable[str]) -> None:
    """Make these values the outputs, with their descriptions in the graph."""
    described = {value.name: value for value in (*graph.output, *graph.value_info)}
    fresh = type(graph)()
    for name in names:
        if name in described:
            fresh.output.append(described[name])
        else:
            fresh.output.add(name=name)
    _assign(graph.output, fresh.output)


def remove_inputs(graph: onnx.GraphProto, names: Collection[str]) -> None:
    """Remove inputs by their names."""
    _remove(graph.input, [at for at, value in enumerate(graph.input) if value.name in names])


def describe_value(graph: onnx.GraphProto, value: onnx.ValueInfoProto | str) -> onnx.ValueInfoProto:
    """Describe a value of a graph that has no description yet: like another value, or by its name alone."""
    if isinstance(value, str):
        return graph.value_info.add(name=value)
    graph.value_info.append(value)
    return graph.value_info[-1]


def redescribe(value: onnx.ValueInfoProto, other: onnx.ValueInfoProto) -> None:
    """Replace a description by that of another value, name included."""
    value.CopyFrom(other)


def set_shape(value: onnx.ValueInfoProto, sizes: Iterable[int | str | None]) -> None:
    """Declare the dims of a tensor: sizes, symbols, and None for an unknown size."""
    tensor = value.type.tensor_type
    tensor.ClearField("shape")
    tensor.shape.SetInParent()
    for size in sizes:
        dim = tensor.shape.dim.add()
        if isinstance(size, str):
            dim.dim_param = size
        elif size is not None:
            dim.dim_value = size


def permute_shape(value: onnx.ValueInfoProto, order: Sequence[int]) -> None:
    """Declare the dims of a tensor in another order; symbols stay with their dims."""
    dims = value.type.tensor_type.shape.dim
    _assign(dims, [dims[position] for position in order])


def clear_shape(value: onnx.ValueInfoProto) -> None:
    """Remove the declared dims of a tensor, and their number."""
    # Protobuf makes a tensor of a sequence if a field of another type is cleared.
    if value.type.HasField("tensor_type"):
        value.type.tensor_type.ClearField("shape")


def clear_dim(value: onnx.ValueInfoProto, position: int) -> None:
    """Remove the declaration of one dim of a tensor."""
    value.type.tensor_type.shape.dim[position].Clear()


def clear_descriptions(graph: onnx.GraphProto) -> None:
    """Remove the descriptions of values inside a graph."""
    graph.ClearField("value_info")


# --- constants ----------------------------------------------------------------------------------------------


def register_initializer(
    graph: onnx.GraphProto, tensor: onnx.TensorProto, name: str = ""
) -> onnx.TensorProto:
    """Add a constant, with another name if given; returns the constant in the graph."""
    graph.initializer.append(tensor)
    added = graph.initializer[-1]
    added.name = name or tensor.name
    return added


def register_sparse_initializer(graph: onnx.GraphProto, tensor: onnx.SparseTensorProto, name: str) -> None:
    """Add a sparse constant under a name."""
    graph.sparse_initializer.append(tensor)
    graph.sparse_initializer[-1].values.name = name


def set_initializers(graph: onnx.GraphProto, tensors: Iterable[onnx.TensorProto]) -> None:
    """Replace the constants of a graph, in this order; the new ones may include existing ones."""
    _assign(graph.initializer, tensors)


def remove_initializers(graph: onnx.GraphProto, positions: Collection[int]) -> None:
    """Remove the constants at these positions."""
    _remove(graph.initializer, positions)


def set_values(tensor: onnx.TensorProto, values: npt.NDArray[np.generic]) -> None:
    """Replace the values of a tensor, with type and shape; its name does not change."""
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def set_payload(tensor: onnx.TensorProto, elem_type: int, data: bytes) -> None:
    """Replace the values of a tensor by bytes of the same shape; its name does not change."""
    name, dims = tensor.name, list(tensor.dims)
    tensor.Clear()
    tensor.name, tensor.data_type, tensor.raw_data = name, elem_type, data
    tensor.dims.extend(dims)


# --- repeated fields ----------------------------------------------------------------------------------------


def _assign(field: MutableSequence[Any], items: Iterable[Any]) -> None:
    """Replace the items of a repeated field; the new items may be among the old ones."""
    held = len(field)
    # The new items are appended first, because emptying a field may empty its messages.
    field.extend(list(items))
    del field[:held]


def _remove(field: MutableSequence[Any], positions: Collection[int]) -> None:
    """Remove items of a repeated field; the others keep their identity."""
    for position in sorted(positions, reverse=True):
        del field[position]


def _rename(names: MutableSequence[str], renamed: Mapping[str, str]) -> None:
    for position, name in enumerate(names):
        if name in renamed:
            names[position] = renamed[name]


#: a value, integers, or numbers of another type
Operand: TypeAlias = str | int | Sequence[int] | np.generic | npt.NDArray[Any]


@dataclass
class NodeWriter:
    """Collects nodes in order.

    A result is named after `base`, with `suffix` or, without one, with the operator in lower case.
    """

    fresh: FreshNames
    #: operator set
    version: int
    base: str
    suffix: str = ""
    domain: str | None = None
    #: true if nodes have the names of their results
    names_nodes: bool = False
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def add(self, operator: str, *operands: Operand, output: str = "", **attributes: Any) -> str:
        """Append a node, after constants for its numbers; returns its result."""
        names = [operand if isinstance(operand, str) else self.constant(operand) for operand in operands]
        result = output or self.fresh.make(self.base, self.suffix or operator.lower())
        node = helper.make_node(operator, names, [result], domain=self.domain, **attributes)
        if self.names_nodes:
            node.name = result
        self.nodes.append(node)
        return result

    def constant(self, value: Operand) -> str:
        """Append a constant; returns its name."""
        is_typed = isinstance(value, np.generic | np.ndarray)
        array = np.asarray(value) if is_typed else np.array(value, np.int64)
        return self.add("Constant", value=numpy_helper.from_array(array))

    def reduced(self, operator: str, value: str, axis: int, **attributes: Any) -> str:
        """Append a reduction along an axis, which is an attribute in old operator sets."""
        if self.version < 18:
            return self.add(operator, value, axes=[axis], **attributes)
        return self.add(operator, value, [axis], **attributes)
