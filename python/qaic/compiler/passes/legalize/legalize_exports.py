"""Rewrites patterns of exporters that the engine does not support.

* Operands of ``Range`` become scalars. In expanded functions of exporters, they may have the shape [1].
* Pieces of a tensor become slices. Some exporters split a tensor with ``SplitToSequence`` and read the pieces
  with ``SequenceAt``.
* The mask of ``Attention`` gets a row for each query. ONNX allows one row for all queries.
* ``Attention`` of the engine gets a bias of zeros, because older engines read a left out bias through a null
  pointer.
* ``STFT`` gets an explicit ``onesided``. Shape inference assumes 0 although the default is 1.
* ``MeanVarianceNormalization`` gets explicit ``axes``. Shape inference fails without them.
* Negative axes of ``Resize`` become non-negative. The engine ignores negative axes if it keeps proportions.
* A ``Dropout`` that drops nothing loses its training mode. The mask of other Dropout nodes is read, because
  the engine removes a Dropout whose mask nothing reads.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final

import onnx
from numpy.typing import NDArray
from onnx import helper

from qaic.compiler.diagnostics.messages import listing, warn
from qaic.compiler.ir import graph_edits as edit
from qaic.compiler.ir.constants.in_graph import dense
from qaic.compiler.ir.elem_types import BOOL, FLOATS, INT8, INT16, INT32, INT64, UINT16
from qaic.compiler.ir.graph_edits import NodeWriter
from qaic.compiler.ir.graph_walk import (
    STANDARD_DOMAINS,
    FreshNames,
    all_graphs,
    all_nodes,
    attribute_of,
    find_nodes,
    node_key,
    node_label,
    op_types,
    operator_of,
    producers,
    read_values,
    standard,
    standard_version,
    subgraphs,
)
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.compiler.ir.shape_arithmetic import computed_node
from qaic.compiler.ir.value_info import Added, dims_in
from qaic.compiler.passes.legalize.guard_nodes import refused_operand

#: first operator set in which a mask may have fewer columns than keys, so one column is not for all keys
_PADDED_MASKS: Final = 24

#: operators whose result has the rank of their first input
_SAME_RANK: Final = frozenset({"Cast", "Concat", "Identity", "Neg", "Slice"})

#: operators whose results are recorded
_LEARNT: Final = _SAME_RANK | {"Constant", "Gather", "Shape", "SplitToSequence"}

#: sizes, symbols, and None for unknown dims
_Dims = tuple[int | str | None, ...]


@compiler_pass()
def legalize_exports_pass(model: Model, _: Context) -> None:
    """Rewrite patterns of exporters that shape inference or the engine does not support, also in functions.

    Warns about nodes that drop values in each inference.
    """
    proto, random, added = model.proto, list[str](), model.facts.transparent
    _legalize(proto.graph, proto.graph, standard_version(proto), random, added)
    for function in proto.functions:
        graph = onnx.GraphProto(
            node=function.node,
            input=[onnx.ValueInfoProto(name=name) for name in function.input],
            output=[onnx.ValueInfoProto(name=name) for name in function.output],
            value_info=function.value_info,
        )
        _legalize(function, graph, standard_version(function), random, set())
    if random:
        warn(
            "legalize.training",
            f"the training mode of Dropout {listing(random)} is on, so each inference drops values at random;"
            " export the model in inference mode (with PyTorch, after model.eval())",
            nodes=random,
        )


def _legalize(
    body: onnx.GraphProto | onnx.FunctionProto,
    graph: onnx.GraphProto,
    version: int,
    random: list[str],
    added: set[str],
) -> None:
    """Rewrite the nodes of a body, which `graph` describes.

    Adds nodes that drop values to `random`, and the results of new nodes to `added`.
    """
    found = [node for node in all_nodes(body.node) if operator_of(node) in _REWRITTEN]
    if not found:
        return
    read = {name for node in found for name in node.input}
    scope = _Scope(NodeWriter(FreshNames(graph), version, ""), read, random, added)
    scope.declare(graph)
    scope.rewrite(body)
    if scope.splits:
        read = {name for node in all_nodes(body.node) for name in node.input}
        read |= {value.name for current in all_graphs(graph) for value in current.output}
        unread = [
            at
            for at, node in enumerate(body.node)
            if standard(node, "SplitToSequence") and node.output[0] not in read
        ]
        edit.remove_nodes(body, unread)


@dataclass(slots=True)
class _Scope:
    """Facts about the values that the nodes of a graph can read."""

    #: writes the nodes in front of a rewritten one
    writer: NodeWriter
    #: values whose dims a rewrite may need
    wanted: set[str]
    #: labels of nodes that drop values in each inference
    random: list[str]
    #: results of the nodes in front of rewritten ones
    added: set[str]
    #: ranks
    ranks: dict[str, int] = field(default_factory=dict)
    #: dims declared in the model
    shapes: dict[str, _Dims] = field(default_factory=dict)
    #: constant integers, or lists of them
    integers: dict[str, int | list[int]] = field(default_factory=dict)
    #: constants of one element
    scalars: dict[str, NDArray[Any]] = field(default_factory=dict)
    #: sequence -> node that creates it
    splits: dict[str, onnx.NodeProto] = field(default_factory=dict)

    def declare(self, graph: onnx.GraphProto) -> None:
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.name in self.wanted and value.type.tensor_type.HasField("shape"):
                dims = value.type.tensor_type.shape.dim
                self.ranks[value.name] = len(dims)
                self.shapes[value.name] = tuple(
                    dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in dims
                )
        for tensor in graph.initializer:
            if len(tensor.dims) <= 1:
                self._constant(tensor.name, tensor)

    def rewrite(self, body: onnx.GraphProto | onnx.FunctionProto) -> None:
        """Rewrite the nodes of a graph or function and of the graphs nested in it."""
        written: list[onnx.NodeProto] = []
        changed = False
        for node in body.node:
            for inner in subgraphs(node):
                nested = replace(
                    self,
                    ranks=dict(self.ranks),
                    shapes=dict(self.shapes),
                    integers=dict(self.integers),
                    scalars=dict(self.scalars),
                )
                nested.declare(inner)
                nested.rewrite(inner)
            self._learn(node)
            rewrite = _REWRITTEN.get(operator_of(node))
            if rewrite is None:
                written.append(node)
                continue
            self.writer = replace(self.writer, base=node_key(node), nodes=[])
            replacement = rewrite(self, node)
            changed = changed or replacement is not node
            self.added.update(chain.from_iterable(made.output for made in self.writer.nodes))
            written += [*self.writer.nodes, replacement]
        if changed:
            edit.set_nodes(body, written)

    def _constant(self, name: str, tensor: onnx.TensorProto) -> None:
        self.ranks[name] = len(tensor.dims)
        if len(tensor.dims) > 1 or tensor.data_location == tensor.EXTERNAL:
            return
        if tensor.data_type in {INT32, INT64}:
            self.integers[name] = dense(tensor).tolist()
        if tensor.data_type in {BOOL, INT32, INT64, *FLOATS} and math.prod(tensor.dims) == 1:
            self.scalars[name] = dense(tensor)

    def _learn(self, node: onnx.NodeProto) -> None:
        """Record the facts about the results of a node that a rewrite may need."""
        kind = node.op_type
        is_tensor = kind == "Constant" and any(attribute.name == "value" for attribute in node.attribute)
        if not is_tensor and all(name in self.scalars for name in node.input):
            value = computed_node(node, self.scalars, self.writer.version)
            if value is not None and value.size == 1:
                self.scalars[node.output[0]] = value
        if kind not in _LEARNT or node.domain not in STANDARD_DOMAINS or not node.output:
            return
        result = node.output[0]
        if kind == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    self._constant(result, attribute.t)
                elif attribute.name in {"value_int", "value_ints"} and not attribute.ref_attr_name:
                    is_list = attribute.name == "value_ints"
                    self.ranks[result] = int(is_list)
                    self.integers[result] = list(attribute.ints) if is_list else attribute.i
        elif kind == "Shape":
            self.ranks[result] = 1
        elif kind in _SAME_RANK and node.input and node.input[0] in self.ranks:
            self.ranks[result] = self.ranks[node.input[0]]
        elif kind == "Gather" and all(name in self.ranks for name in node.input):
            self.ranks[result] = sum(self.ranks[name] for name in node.input) - 1
        elif kind == "SplitToSequence":
            self.splits[result] = node


def _scalar_operands(scope: _Scope, node: onnx.NodeProto) -> onnx.NodeProto:
    """Range: reshape all operands to scalars if one is known to have a dimension."""
    if all(scope.ranks.get(name, 0) == 0 for name in node.input):
        return node
    scalars = [
        name if scope.ranks.get(name) == 0 else scope.writer.add("Squeeze", name) for name in node.input
    ]
    return _copy(node, inputs=scalars)


def _piece(scope: _Scope, node: onnx.NodeProto) -> onnx.NodeProto:
    """SequenceAt: replace the piece of a split tensor by a slice if the index of the piece is known."""
    sequence, index = node.input
    split = scope.splits.get(sequence)
    number = scope.integers.get(index)
    if split is None or not isinstance(number, int):
        return node
    attributes = {attribute.name: attribute.i for attribute in split.attribute if not attribute.ref_attr_name}
    if len(attributes) != len(split.attribute):
        return node
    lengths: int | list[int] | None = 1
    if len(split.input) > 1 and split.input[1]:
        lengths = scope.integers.get(split.input[1])
    if isinstance(lengths, list) and -len(lengths) <= number < len(lengths):
        begin = sum(lengths[: number % len(lengths)])
        end = begin + lengths[number]
    elif isinstance(lengths, int) and number >= 0:
        # The last piece may be shorter; a slice ends at the end of its tensor.
        begin, end = number * lengths, (number + 1) * lengths
    else:
        return node
    axis = attributes.get("axis", 0)
    # `keepdims` applies only to a split without lengths.
    if not ((len(split.input) > 1 and split.input[1]) or attributes.get("keepdims", 1)):
        taken = _copy(node, "Gather", [split.input[0], index])
        edit.add_attribute(taken, helper.make_attribute("axis", axis))
        return taken
    bounds = [scope.writer.constant([value]) for value in (begin, end, axis)]
    return _copy(node, "Slice", [split.input[0], *bounds])


def _whole_mask(scope: _Scope, node: onnx.NodeProto) -> onnx.NodeProto:
    """Attention: give the mask a row for each query, and a column for each key."""
    inputs = [*node.input, *[""] * (_PAST_KEY + 1 - len(node.input))]
    query, key, mask, past_key = inputs[0], inputs[1], inputs[_MASK], inputs[_PAST_KEY]
    if not mask:
        return node
    of_mask, of_query = scope.shapes.get(mask, ()), scope.shapes.get(query, ())
    has_rows = (
        min(len(of_mask), len(of_query)) >= 2 and of_mask[-2] is not None and of_mask[-2] == of_query[-2]
    )
    has_columns = scope.writer.version >= _PADDED_MASKS or (bool(of_mask) and of_mask[-1] not in {1, None})
    if has_rows and has_columns:
        return node
    add = scope.writer.add
    columns = scope.writer.constant([1])
    if not has_columns:
        columns = add("Shape", key, start=-2, end=-1)
        if past_key:
            columns = add("Add", columns, add("Shape", past_key, start=-2, end=-1))
    rows = add("Shape", query, start=-2, end=-1)
    inputs[_MASK] = add("Expand", mask, add("Concat", rows, columns, axis=0))
    return _copy(node, inputs=inputs[: max(len(node.input), _MASK + 1)])


def _with_bias(scope: _Scope, node: onnx.NodeProto) -> onnx.NodeProto:
    """Attention of the engine: add a bias of zeros, the sums over no rows of the weights."""
    if len(node.input) <= 1 or any(node.input[_BIAS : _BIAS + 1]):
        return node
    if scope.writer.version < _SUMS_OVER_INPUT:
        raise refused_operand(node, "no bias", f"a bias in operator sets before {_SUMS_OVER_INPUT}")
    zero = scope.writer.constant([0])
    rows = scope.writer.add("Slice", node.input[1], zero, zero, zero)
    bias = scope.writer.add("ReduceSum", rows, zero, keepdims=0)
    return _copy(node, inputs=[*node.input[:_BIAS], bias, *node.input[_BIAS + 1 :]])


def _with_default(_: _Scope, node: onnx.NodeProto) -> onnx.NodeProto:
    """STFT, MeanVarianceNormalization: state the default of an attribute."""
    name, value = _DEFAULTS[node.op_type]
    if any(attribute.name == name for attribute in node.attribute):
        return node
    copy = edit.clone(node)
    edit.add_attribute(copy, helper.make_attribute(name, value))
    return copy


def _known_mode(scope: _Scope, node: onnx.NodeProto) -> onnx.NodeProto:
    """Dropout: remove the training mode if the node drops nothing, else record the node."""
    if scope.writer.version < _INFERRING:
        if not attribute_of(node, "is_test", 0) and attribute_of(node, "ratio", 0.5):
            raise refused_operand(node, "training mode (is_test is 0)", "inference mode (is_test is 1)")
        return node
    _, share, mode = (*node.input, "", "")[: _TRAINING + 1]
    known = [value for name in (share, mode) if (value := scope.scalars.get(name)) is not None]
    if mode and any(value.ndim == 0 and not value for value in known):
        return _copy(node, inputs=node.input[:_TRAINING])
    if mode in scope.scalars:
        scope.random.append(node_label(node))
    return node


def read_masks(model: onnx.ModelProto) -> dict[str, str]:
    """Add a reader of the mask of each Dropout that may drop values; changes `model` in place.

    Returns each added float value, and a value with its type.
    """
    added: dict[str, str] = {}
    if not any(any(node.input[_TRAINING:]) for node in find_nodes(model.graph.node, {"Dropout"})):
        return added
    fresh = FreshNames(model.graph)

    def read(node: onnx.NodeProto) -> list[onnx.NodeProto]:
        if not standard(node, "Dropout") or not any(node.input[_TRAINING:]):
            return [node]
        result, *masks = node.output
        kept = fresh.make(result, "kept")
        mask = next(filter(None, masks), "") or fresh.make(result, "mask")
        dropout = helper.make_node("Dropout", node.input, [kept, mask], node.name)
        edit.set_attributes(dropout, node.attribute)
        added[kept] = result
        return [dropout, helper.make_node("Where", [mask, kept, kept], [result])]

    edit.rewrite_nodes(model.graph, read)
    return added


@compiler_pass()
def read_masks_pass(model: Model, _: Context) -> None:
    """Add readers of the masks of Dropout nodes that may drop values, after passes that options control."""
    model.facts.add(read_masks(model.proto))


#: Attention of the engine, position of its bias, and first operator set in which ReduceSum reads its axes
ENGINE_ATTENTION: Final = ("com.microsoft", "Attention")
_BIAS: Final = 2
_SUMS_OVER_INPUT: Final = 13

#: inputs of Attention
_MASK: Final = 3
_PAST_KEY: Final = 4

#: input of Dropout, and first operator set in which Dropout drops nothing without this input
_TRAINING: Final = 2
_INFERRING: Final = 7

#: attributes that shape inference needs, and their defaults
_DEFAULTS: Final = {"MeanVarianceNormalization": ("axes", [0, 2, 3]), "STFT": ("onesided", 1)}

_REWRITTEN: Final[dict[tuple[str, str], Callable[[_Scope, onnx.NodeProto], onnx.NodeProto]]] = {
    ("", "Attention"): _whole_mask,
    ENGINE_ATTENTION: _with_bias,
    **dict.fromkeys([("", name) for name in _DEFAULTS], _with_default),
    ("", "Dropout"): _known_mode,
    ("", "Range"): _scalar_operands,
    ("", "SequenceAt"): _piece,
}


def _copy(node: onnx.NodeProto, operator: str | None = None, inputs: Iterable[str] = ()) -> onnx.NodeProto:
    """Copy a node with other inputs; with `operator`, as another operator without attributes."""
    copy = edit.clone(node)
    edit.set_inputs(copy, inputs)
    if operator is not None:
        copy.op_type = operator
        edit.set_attributes(copy, ())
    return copy


def resizes_from_the_end(nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Find each Resize, also in nested graphs, that has or may have a negative axis."""
    return [
        node
        for node in find_nodes(nodes, {"Resize"})
        if any(
            attribute.ref_attr_name or any(axis < 0 for axis in attribute.ints)
            for attribute in node.attribute
            if attribute.name == "axes"
        )
    ]


@compiler_pass()
def legalize_resize_pass(model: Model, _: Context) -> None:
    """Replace negative axes of Resize with non-negative ones."""
    dims = dims_in(*model.specialized)
    found = resizes_from_the_end(model.proto.graph.node)
    for node in chain(found, *(resizes_from_the_end(one.graph.node) for one in model.specialized)):
        ranks = {len(sizes) for sizes in dims(node.input[0])}
        if len(ranks) != 1 or 0 in ranks:
            raise refused_operand(node, "negative axes of an operand of unknown or no rank", "positive axes")
        rank = ranks.pop()
        for attribute in node.attribute:
            if attribute.name == "axes":
                attribute.ints[:] = [axis % rank for axis in attribute.ints]


#: types without a kernel in some supported engine
_WITHOUT_KERNEL: Final = frozenset({BOOL, INT8, INT16, UINT16})


def selects_without_kernel(model: onnx.ModelProto, types: Mapping[str, int]) -> bool:
    """Return True if a Where outside functions has a type for which the engine has no kernel."""
    nodes = find_nodes(model.graph.node, {"Where"})
    return any(_elem_type(node, types) in _WITHOUT_KERNEL for node in nodes)


def legalize_where(model: onnx.ModelProto, types: Mapping[str, int]) -> dict[str, Added]:
    """Rewrite the Where nodes for which the engine has no kernel; changes `model` in place.

    The model has no functions with such nodes. Returns the added values.
    """
    added: dict[str, Added] = {}
    if not selects_without_kernel(model, types):
        return added
    fresh = FreshNames(model.graph)

    def with_kernel(node: onnx.NodeProto) -> list[onnx.NodeProto]:
        is_without = standard(node, "Where") and _elem_type(node, types) in _WITHOUT_KERNEL
        return _as_int32(node, types, fresh, added) if is_without else [node]

    edit.rewrite_nodes(model.graph, with_kernel)
    return added


def _elem_type(node: onnx.NodeProto, types: Mapping[str, int]) -> int:
    """Return the element type of a Where, from any value whose type is known."""
    return next((types[name] for name in (*node.input[1:], *node.output) if name in types), 0)


def _as_int32(
    node: onnx.NodeProto, types: Mapping[str, int], fresh: FreshNames, added: dict[str, Added]
) -> list[onnx.NodeProto]:
    condition, *sides = node.input
    result = node.output[0]
    wide = [fresh.make(result, "int32") for _ in (*sides, result)]
    added.update({name: Added(INT32, like) for name, like in zip(wide, sides, strict=False)})
    added[wide[2]] = Added(INT32, result, result)
    casts = [
        helper.make_node("Cast", [side], [name], to=INT32) for side, name in zip(sides, wide, strict=False)
    ]
    selected = helper.make_node("Where", [condition, *wide[:2]], [wide[2]], name=node.name)
    narrow = helper.make_node("Cast", [wide[2]], [result], to=_elem_type(node, types))
    return [*casts, selected, narrow]


@compiler_pass()
def legalize_where_pass(model: Model, _: Context) -> None:
    """Compute Where in int32 for types without a kernel in the engine."""
    model.rewrite(legalize_where)


#: operators whose results may be moved or reused
MOVING: Final = (
    *("DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "If", "Loop", "MaxPool", "Pad", "Reshape"),
    *("Scan", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
)


def moved_captures(graph: onnx.GraphProto) -> set[str]:
    """Find the results of `MOVING` that bodies of control flow capture from the graph around them."""
    made_by = producers(graph.node)
    return {
        name
        for node in graph.node
        for body in subgraphs(node)
        for name in read_values(body)
        if name in made_by and standard(made_by[name], *MOVING)
    }


def legalize_captured_values(model: onnx.ModelProto, types: Mapping[str, int]) -> dict[str, str]:
    """Insert a Max of one value between moved floats and bodies of control flow that read them.

    The model has no functions, and a name means one value. Returns each added value, and the value that it
    equals.
    """
    if "DequantizeLinear" not in op_types(model):
        return {}
    fresh: FreshNames | None = None
    added: dict[str, str] = {}
    for graph in all_graphs(model.graph):
        moved = {name for name in moved_captures(graph) if types.get(name) in FLOATS}
        if not moved:
            continue
        fresh = fresh or FreshNames(model.graph)
        apart = {name: fresh.make(name, "captured") for name in sorted(moved)}
        added.update((new, name) for name, new in apart.items())
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            nodes.append(node)
            nodes += [helper.make_node("Max", [name], [apart[name]]) for name in node.output if name in apart]
        # Operands of these nodes are also renamed, which is correct because both values are equal.
        edit.replace_all_uses_with([node for node in graph.node if any(subgraphs(node))], apart)
        edit.set_nodes(graph, nodes)
    return added


@compiler_pass()
def legalize_captured_values_pass(model: Model, _: Context) -> None:
    """Separate values of quantized graphs from the control flow that captures them."""
    model.facts.add(legalize_captured_values(model.proto, model.facts.types))
