"""Arithmetic on shapes: computes shapes from shapes, and adds the results to shape inference.

ONNX's inference passes sizes through a few operators and stops at the others (Range, Div, Where, ...). This
module computes each node with known inputs in numpy, if the result is small.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper, shape_inference

from qaic.compiler.ir.graph_edits import clear_shape, describe_value, redescribe
from qaic.compiler.ir.graph_walk import SHAPE_READERS, STANDARD_DOMAINS, all_nodes, standard_version
from qaic.compiler.ir.operand_ranks import infer_with_valid_ranks
from qaic.compiler.ir.value_info import is_open, known_dims, may_follow_values, type_and_dims

Array = NDArray[Any]
Attributes = Mapping[str, Any]
#: inputs, attributes and operator set -> result
Compute = Callable[[Sequence[Any], Attributes, int], Any]

#: most elements of a result: there are few sizes, and as many positions as the context is long
_MOST_ELEMENTS: Final = 4096

#: most rounds of arithmetic and inference; each one finds shapes for the next one
_MOST_ROUNDS: Final = 8


def complete(found: onnx.ModelProto) -> None:
    """Fill in shapes that follow from arithmetic on shapes, until all outputs have one; changes `found`.

    Inputs have fixed shapes, and include the weights.
    """
    follows_values = may_follow_values(found)
    computed: set[str] = set()
    for _ in range(_MOST_ROUNDS):
        known = computed_values(found)
        results = (node.output[0] for node in found.graph.node if node.output)
        values = {name: known[name] for name in results if name in known}
        if values.keys() <= computed:
            return
        computed |= values.keys()
        try:
            inferred = infer_with_valid_ranks(_with_constants(found, values), data_prop=follows_values)
        except (shape_inference.InferenceError, RuntimeError, ValueError):
            return
        _learn(found, inferred)
        if not any(is_open(value) for value in found.graph.output):
            return


def computed_values(model: onnx.ModelProto) -> dict[str, Array]:
    """Compute the small values of the main graph that follow from constants and known shapes."""
    graph = model.graph
    version = standard_version(model)
    declared = {value.name: value for value in (*graph.input, *graph.value_info, *graph.output)}
    known = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if math.prod(tensor.dims) <= _MOST_ELEMENTS and not tensor.external_data
    }
    for node in graph.node:
        compute = _OPERATORS.get(node.op_type) if node.domain in STANDARD_DOMAINS else None
        if compute is None or len(node.output) != 1:
            continue
        if node.op_type in SHAPE_READERS:
            value = declared.get(node.input[0])
            dims = None if value is None else known_dims(value)
            if dims is None:
                continue
            inputs: list[Array | None] = [np.array(dims, np.int64)]
        elif all(name in known for name in node.input if name):
            inputs = [known[name] if name else None for name in node.input]
        else:
            continue
        result = _result(node, compute, inputs, version)
        if result is not None and result.size <= _MOST_ELEMENTS:
            known[node.output[0]] = result
    return known


def computed_node(node: onnx.NodeProto, known: Mapping[str, Array], version: int) -> Array | None:
    """Compute a node whose operands are known; None if that is not possible here."""
    compute = _OPERATORS.get(node.op_type) if node.domain in STANDARD_DOMAINS else None
    if compute is None or len(node.output) != 1 or node.op_type in SHAPE_READERS:
        return None
    return _result(node, compute, [known[name] for name in node.input], version)


def _result(
    node: onnx.NodeProto, compute: Compute, inputs: Sequence[Array | None], version: int
) -> Array | None:
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute if not a.ref_attr_name}
    try:
        with np.errstate(all="ignore"):
            return np.asarray(compute(inputs, attributes, version))
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError):
        # An omitted operand has no dims.
        return None


def _with_constants(model: onnx.ModelProto, values: Mapping[str, Array]) -> onnx.ModelProto:
    """Copy a model with known values in place of the nodes that compute them.

    Only values that other nodes read are kept. Earlier inferred shapes are inferred again.
    """
    graph = model.graph
    others = [node for node in graph.node if len(node.output) != 1 or node.output[0] not in values]
    read = {name for node in all_nodes(others) for name in node.input}
    read.update(value.name for value in graph.output)
    constants = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))
        for name, value in values.items()
        if name in read
    ]
    copy = type(model)(
        ir_version=model.ir_version,
        opset_import=model.opset_import,
        functions=model.functions,
        graph=type(graph)(
            name=graph.name,
            input=graph.input,
            output=graph.output,
            initializer=graph.initializer,
            sparse_initializer=graph.sparse_initializer,
            node=(*constants, *others),
        ),
    )
    for value in copy.graph.output:
        if is_open(value):
            clear_shape(value)
    return copy


def _learn(found: onnx.ModelProto, inferred: onnx.ModelProto) -> None:
    """Add the types, the ranks, and the shapes without unknown sizes that `found` does not have."""
    declared = {value.name: value for value in (*found.graph.value_info, *found.graph.output)}
    for value in (*inferred.graph.value_info, *inferred.graph.output):
        own = declared.get(value.name)
        if own is None:
            describe_value(found.graph, value)
        elif is_open(own) and (type_and_dims(own)[1] is None or not is_open(value)):
            redescribe(own, value)


def _checked(count: int) -> int:
    """Refuse a result that is too large."""
    if not 0 <= count <= _MOST_ELEMENTS:
        raise ValueError(count)
    return count


def _operands(operation: Callable[..., Any]) -> Compute:
    """Compute with broadcast operands, in their own element type."""

    def compute(inputs: Sequence[Any], _: Attributes, __: int) -> Any:
        _checked(math.prod(np.broadcast_shapes(*(value.shape for value in inputs))))
        return operation(*inputs)

    return compute


def _extreme(function: Callable[..., Any]) -> Compute:
    """Compute the minimum or maximum of the operands."""
    return _operands(lambda *operands: functools.reduce(function, operands))


def _divide(left: Array, right: Array) -> Array:
    if left.dtype.kind == "f":
        return np.asarray(left / right)
    if not right.all():
        raise ZeroDivisionError
    # Integers round towards zero.
    quotient = np.abs(left) // np.abs(right)
    return np.asarray(np.where((left < 0) != (right < 0), -quotient, quotient), left.dtype)


def _constant(_: Sequence[Any], attributes: Attributes, __: int) -> Array:
    ((name, value),) = attributes.items()
    if name == "value" and not value.external_data:
        _checked(math.prod(value.dims))
        return np.asarray(numpy_helper.to_array(value))
    return np.array(value, {"value_int": np.int64, "value_float": np.float32}[name.removesuffix("s")])


def _gather(inputs: Sequence[Any], attributes: Attributes, _: int) -> Any:
    data, indices = inputs
    axis = attributes.get("axis", 0)
    if data.size:
        _checked(indices.size * (data.size // data.shape[axis]))
    return np.take(data, indices, axis=axis)


def _axes_of(inputs: Sequence[Any], attributes: Attributes) -> tuple[int, ...] | None:
    """Read the axes of an operator, from its input or, in older sets, its attribute."""
    if len(inputs) > 1 and inputs[1] is not None:
        return tuple(inputs[1].tolist())
    axes = attributes.get("axes")
    return None if axes is None else tuple(axes)


def _slice(inputs: Sequence[Any], attributes: Attributes, version: int) -> Any:
    data = inputs[0]
    if version < 10:
        starts, ends = attributes["starts"], attributes["ends"]
        axes, steps = attributes.get("axes"), None
    else:
        starts, ends = inputs[1].tolist(), inputs[2].tolist()
        axes = inputs[3].tolist() if len(inputs) > 3 and inputs[3] is not None else None
        steps = inputs[4].tolist() if len(inputs) > 4 and inputs[4] is not None else None
    chosen = [slice(None)] * data.ndim
    for at, axis in enumerate(range(len(starts)) if axes is None else axes):
        step = 1 if steps is None else steps[at]
        # With a negative step, an end far before the beginning includes the first element.
        end = None if step < 0 and ends[at] < -data.shape[axis] else ends[at]
        chosen[axis] = slice(starts[at], end, step)
    return data[tuple(chosen)]


def _range(inputs: Sequence[Any], _: Attributes, __: int) -> Any:
    start, limit, step = (value.reshape(()) for value in inputs)
    count = max(math.ceil((limit.item() - start.item()) / step.item()), 0)
    return np.asarray(start + np.arange(_checked(count)) * step, start.dtype)


def _constant_of_shape(inputs: Sequence[Any], attributes: Attributes, _: int) -> Any:
    shape = inputs[0].tolist()
    _checked(math.prod(shape))
    value = attributes.get("value")
    return np.full(shape, np.float32(0) if value is None else numpy_helper.to_array(value).reshape(()))


def _expand(inputs: Sequence[Any], _: Attributes, __: int) -> Any:
    shape = np.broadcast_shapes(inputs[0].shape, tuple(inputs[1].tolist()))
    _checked(math.prod(shape))
    return np.broadcast_to(inputs[0], shape)


def _reshape(inputs: Sequence[Any], attributes: Attributes, version: int) -> Any:
    data = inputs[0]
    shape = inputs[1].tolist() if version >= 5 else list(attributes["shape"])
    if not attributes.get("allowzero"):
        shape = [data.shape[axis] if size == 0 else size for axis, size in enumerate(shape)]
    return np.reshape(data, shape)


def _reduce(function: Callable[..., Any]) -> Compute:
    def compute(inputs: Sequence[Any], attributes: Attributes, _: int) -> Any:
        axes = _axes_of(inputs, attributes)
        if not axes and attributes.get("noop_with_empty_axes"):
            return inputs[0]
        result = function(inputs[0], axis=axes or None, keepdims=bool(attributes.get("keepdims", 1)))
        return np.asarray(result, inputs[0].dtype)

    return compute


_OPERATORS: Final[Mapping[str, Compute]] = {
    "Abs": _operands(np.abs),
    "Add": _operands(np.add),
    "And": _operands(np.logical_and),
    "Cast": lambda inputs, given, _: inputs[0].astype(helper.tensor_dtype_to_np_dtype(given["to"])),
    "CastLike": lambda inputs, _, __: inputs[0].astype(inputs[1].dtype),
    "Ceil": _operands(np.ceil),
    "Concat": lambda inputs, given, _: np.concatenate(inputs, axis=given["axis"]),
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Div": _operands(_divide),
    "Equal": _operands(np.equal),
    "Expand": _expand,
    "Floor": _operands(np.floor),
    "Gather": _gather,
    "Greater": _operands(np.greater),
    "GreaterOrEqual": _operands(np.greater_equal),
    "Identity": lambda inputs, _, __: inputs[0],
    "Less": _operands(np.less),
    "LessOrEqual": _operands(np.less_equal),
    "Max": _extreme(np.maximum),
    "Min": _extreme(np.minimum),
    "Mul": _operands(np.multiply),
    "Neg": _operands(np.negative),
    "Not": _operands(np.logical_not),
    "Or": _operands(np.logical_or),
    "Range": _range,
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
    "Reshape": _reshape,
    "Shape": lambda inputs, given, _: inputs[0][given.get("start", 0) : given.get("end")],
    "Size": lambda inputs, _, __: np.array(math.prod(inputs[0].tolist()), np.int64),
    "Slice": _slice,
    "Squeeze": lambda inputs, given, _: np.squeeze(inputs[0], _axes_of(inputs, given)),
    "Sub": _operands(np.subtract),
    "Transpose": lambda inputs, given, _: np.transpose(inputs[0], given.get("perm")),
    "Unsqueeze": lambda inputs, given, _: np.expand_dims(inputs[0], cast("Any", _axes_of(inputs, given))),
    "Where": _operands(np.where),
}
