"""Functions that exporters write for the card, with the behavior of the card.

Such a function represents an operator of the card. Its ONNX body does not express all of the behavior:

* An index outside a cache is padding. A scatter writes nothing for it, and no result depends on the row that
  a gather reads for it. ONNX counts negative indices from the end and refuses larger ones.
* A normalization is one operator that computes in float32 for tensors of any type. The body mixes types.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import onnx
from onnx import helper, numpy_helper

from qaic.compiler.ir.elem_types import BOOL, FLOAT, INT64
from qaic.compiler.ir.graph_edits import NodeWriter, add_attribute, replace_input_with, set_nodes
from qaic.compiler.ir.graph_walk import (
    FreshNames,
    all_nodes,
    attribute_of,
    standard,
    standard_version,
    subgraphs,
)
from qaic.compiler.ir.model import Context, Model, compiler_pass

#: domains of functions that represent operators of the card
DOMAINS: Final = frozenset({"com.qualcomm.cloud", "com.qti.aisw.onnx"})

#: functions that round once, which are expanded after the passes for precision
UNITS: Final = frozenset({("com.qti.aisw.onnx", "CustomRMSNorm")})

#: first operator set in which the axes of a reduction are an input
_AXES_AS_INPUT: Final = 18

#: first operator set with CastLike
_CAST_LIKE: Final = 15


def legalize(model: onnx.ModelProto) -> bool:
    """Rewrite the bodies of functions for the card so that the engine computes the results of a card.

    Returns True if there are such functions.
    """
    found = False
    for function in model.functions:
        if function.domain not in DOMAINS:
            continue
        found = True
        version = standard_version(function)
        if _is_rms_norm(function) and version >= _CAST_LIKE:
            _write_rms_norm(function, version)
        elif any(standard(node, *_REWRITTEN) for node in all_nodes(function.node)):
            _rewrite(function, FreshNames(onnx.GraphProto(node=function.node)), version)
    return found


def is_unit(function: onnx.FunctionProto) -> bool:
    """Return True if a function is rounded as one operator."""
    return (function.domain, function.name) in UNITS


def _rewrite(body: onnx.GraphProto | onnx.FunctionProto, fresh: FreshNames, version: int) -> None:
    rewritten: list[onnx.NodeProto] = []
    for node in body.node:
        for inner in subgraphs(node):
            _rewrite(inner, fresh, version)
        rewrite = _REWRITTEN.get(node.op_type) if standard(node, node.op_type) else None
        if rewrite is not None:
            writer = NodeWriter(fresh, version, node.output[0], "legal", node.domain)
            rewrite(node, writer)
            rewritten += writer.nodes
        rewritten.append(node)
    set_nodes(body, rewritten)


def _guard_gather(node: onnx.NodeProto, writer: NodeWriter) -> None:
    """GatherND: replace an index outside the cache by the nearest index."""
    skipped = attribute_of(node, "batch_dims", 0)
    nearest = _nearest(writer, _wide_indices(node, writer), _sizes(node, writer, skipped))
    replace_input_with(node, 1, nearest)


def _guard_scatter(node: onnx.NodeProto, writer: NodeWriter) -> None:
    """ScatterND: replace a write outside the cache by a copy of the first write inside it.

    Equal writes at one index have the same result in any order. If all writes are outside, a row of the cache
    is rewritten unchanged. Gather selects the rows, because it supports every element type.
    """
    data, _, updates = node.input[:3]
    indices = _wide_indices(node, writer)
    add, constant = writer.add, writer.constant
    sizes = _sizes(node, writer, 0)
    number = add("Cast", add("Equal", indices, _nearest(writer, indices, sizes)), to=INT64)
    valid = writer.reduced("ReduceMin", number, -1, keepdims=0)
    valid = add("Cast", add("Reshape", valid, [-1]), to=BOOL)
    count = add("Shape", valid)
    first = add("ArgMax", add("Cast", valid, to=INT64), axis=0, keepdims=1)
    has_first = add("Gather", valid, first, axis=0)

    # The tuple to repeat is appended to the tuples, and the row at its index to the rows.
    tuples = add("Reshape", indices, add("Concat", constant([-1]), add("Shape", sizes), axis=0))
    spare = _nearest(writer, add("Gather", tuples, first, axis=0), sizes)
    row_shape = add("Concat", count, [-1], axis=0)
    rows = add("Reshape", updates, row_shape)
    there = add("Reshape", add("GatherND", data, spare), [1, -1])
    one = constant([1])
    counting = add("Range", add("Squeeze", [0]), add("Squeeze", count), add("Squeeze", one))
    of_tuples = add("Where", valid, counting, count)
    of_rows = add("Where", valid, counting, add("Where", has_first, first, count))
    tuples = add("Gather", add("Concat", tuples, spare, axis=0), of_tuples, axis=0)
    rows = add("Gather", add("Concat", rows, there, axis=0), of_rows, axis=0)
    replace_input_with(node, 1, add("Reshape", tuples, add("Shape", indices)))
    replace_input_with(node, 2, add("Reshape", rows, add("Shape", updates)))


def unguarded(
    scatter: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto], shapes: Mapping[str, Sequence[int | str]]
) -> tuple[str, str] | None:
    """Find the original indices and rows of a scatter that `_guard_scatter` changed.

    `shapes` are the known shapes of values. Returns indices and rows; indices outside the cache must be
    skipped. Returns None for other scatters.
    """
    found = []
    places = []
    for name in scatter.input[1:3]:
        reshape = makers.get(name)
        gather = _maker(makers, reshape, 0, "Reshape", "Gather")
        concat = _maker(makers, gather, 0, "Gather", "Concat")
        chosen = _maker(makers, gather, 1, "Gather", "Where")
        flat = _maker(makers, concat, 0, "Concat", "Reshape")
        if reshape is None or chosen is None or flat is None:
            return None
        shape = makers.get(reshape.input[1])
        if shape is None or not _gives_shape(shape, flat.input[0], shapes):
            return None
        found.append(flat.input[0])
        places.append(list(chosen.input[:2]))
    # Both selections must keep the same rows.
    return (found[0], found[1]) if places[0] == places[1] else None


def _gives_shape(node: onnx.NodeProto, name: str, shapes: Mapping[str, Sequence[int | str]]) -> bool:
    """Return True if a node computes the shape of a value, or is a constant of its known sizes."""
    if standard(node, "Shape"):
        return node.input[0] == name
    values = [numpy_helper.to_array(a.t).tolist() for a in node.attribute if a.name == "value"]
    return standard(node, "Constant") and values == [list(shapes.get(name, ()))]


def _maker(
    makers: Mapping[str, onnx.NodeProto], node: onnx.NodeProto | None, place: int, kind: str, wanted: str
) -> onnx.NodeProto | None:
    """Return the producer of operand `place` if the node is of `kind` and the producer is `wanted`."""
    if node is None or not standard(node, kind):
        return None
    maker = makers.get(node.input[place])
    return maker if maker is not None and standard(maker, wanted) else None


def _wide_indices(node: onnx.NodeProto, writer: NodeWriter) -> str:
    """Cast the indices to int64, the only type in ONNX; the card also accepts int32."""
    return writer.add("Cast", node.input[1], to=INT64)


def _sizes(node: onnx.NodeProto, writer: NodeWriter, skipped: int) -> str:
    """Return the sizes of the indexed dimensions, which follow `skipped` other dimensions."""
    data, indices = node.input[:2]
    width = writer.add("Gather", writer.add("Shape", indices), [-1], axis=0)
    start = writer.constant([skipped])
    return writer.add("Slice", writer.add("Shape", data), start, writer.add("Add", width, start))


def _nearest(writer: NodeWriter, indices: str, sizes: str) -> str:
    last = writer.add("Sub", sizes, [1])
    return writer.add("Max", writer.add("Min", indices, last), [0])


_REWRITTEN: Final = {"GatherND": _guard_gather, "ScatterND": _guard_scatter}


def _is_rms_norm(function: onnx.FunctionProto) -> bool:
    return (
        is_unit(function)
        and len(function.input) == 2
        and len(function.output) == 1
        and [*function.attribute, *(attribute.name for attribute in function.attribute_proto)] == ["epsilon"]
    )


def _write_rms_norm(function: onnx.FunctionProto, version: int) -> None:
    """Write ``y = x / sqrt(mean(x ** 2) + epsilon) * weight`` over the last axis, in float32.

    The engine fuses operators in this order into a single kernel.
    """
    source, weight = function.input
    result = function.output[0]
    names = FreshNames(onnx.GraphProto(input=[onnx.ValueInfoProto(name=n) for n in (source, weight, result)]))
    nodes: list[onnx.NodeProto] = []

    def add(operator: str, *inputs: str, **attributes: Any) -> str:
        name = names.make(result, operator)
        nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    wide = add("Cast", source, to=FLOAT)
    squares = add("Pow", wide, add("Constant", value_float=2.0))
    if version < _AXES_AS_INPUT:
        mean = add("ReduceMean", squares, axes=[-1], keepdims=1)
    else:
        mean = add("ReduceMean", squares, add("Constant", value_ints=[-1]), keepdims=1)
    epsilon = add("Constant")
    add_attribute(
        nodes[-1],
        onnx.AttributeProto(
            name="value_float", ref_attr_name="epsilon", type=onnx.AttributeProto.AttributeType.FLOAT
        ),
    )
    scaled = add("Div", wide, add("Sqrt", add("Add", mean, epsilon)))
    product = add("Mul", scaled, add("Cast", weight, to=FLOAT))
    nodes.append(helper.make_node("CastLike", [product, source], [result]))
    set_nodes(function, nodes)


@compiler_pass()
def legalize_qualcomm_functions_pass(model: Model, _: Context) -> None:
    """Replace the bodies of functions for operators of the card by operators of the engine."""
    model.has_fused_functions = legalize(model.proto)
