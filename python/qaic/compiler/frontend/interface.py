"""Reads the inputs and outputs of a model, and refuses those that do not fit a buffer."""

from collections.abc import Iterable
from typing import Final

import onnx

from qaic.compiler.diagnostics.compile_error import refuse
from qaic.compiler.ir.constants.propagation import node_label
from qaic.compiler.ir.elem_types import BFLOAT16, INTERFACE_TYPES, TABLE, type_name
from qaic.compiler.ir.graph_walk import producers
from qaic.compiler.ir.interface import TensorSpec, check_size
from qaic.compiler.ir.value_info import known_dims

MAX_DIMS: Final = 8
#: the only hardware family with bfloat16
BFLOAT16_HARDWARE: Final = "ai200"

_OPEN: Final = "the operator whose output size depends on data (NonZero, NonMaxSuppression, Loop, ...)"


def read_spec(value: onnx.ValueInfoProto, kind: str, graph: onnx.GraphProto | None = None) -> TensorSpec:
    """Check one graph input or output whose shape was inferred.

    `kind` is ``input`` or ``output`` and `graph` computes the value, both for messages. Raises CompileError
    if the value is no dense tensor, its type, rank or size has no place in a buffer, or its shape is not
    known.
    """
    what = f"{kind} {value.name!r}"
    context: dict[str, object] = {"tensor": value.name}
    form = value.type.WhichOneof("value")
    if form is not None and form != "tensor_type":
        raise refuse(
            what,
            code="unsupported_type",
            found=f"{'an' if form.startswith('o') else 'a'} {form.removesuffix('_type').replace('_', ' ')}",
            expected="a dense tensor",
            fix="remove it from the interface of the model",
            context=context,
        )
    tensor = value.type.tensor_type
    # The options may still give a bfloat16 another type.
    if tensor.elem_type not in INTERFACE_TYPES and tensor.elem_type != BFLOAT16:
        supported = ", ".join(TABLE[code][0] for code in sorted(INTERFACE_TYPES))
        raise refuse(
            what,
            code="unsupported_type",
            found="no element type" if tensor.elem_type == 0 else f"type {type_name(tensor.elem_type)}",
            expected=f"one of {supported}",
            fix="cast it inside the model",
            context=context,
        )
    dims = known_dims(value)
    if dims is None:
        origin = None if graph is None else _first_open(graph, value.name)
        name = "" if origin is None else f"node {node_label(origin)!r} ({origin.op_type})"
        if origin is not None:
            context["node"] = node_label(origin)
        raise refuse(
            what,
            code="dynamic_shape",
            found=f"a shape that is only known when the program runs{f', from {name} on' if name else ''}",
            expected="a shape that follows from the shapes of the inputs",
            fix=f"give its shape, if it is always the same, e.g. output_shapes={{{value.name!r}: [1, 2]}}; "
            f"or end the model before {name or _OPEN}, or pad its output to a fixed size",
            context=context,
        )
    if len(dims) > MAX_DIMS:
        raise refuse(
            what,
            code="too_many_dims",
            found=f"{len(dims)} dims",
            expected=f"at most {MAX_DIMS}",
            context=context,
        )
    return check_size(TensorSpec(value.name, tensor.elem_type, dims), kind)


def _first_open(graph: onnx.GraphProto, name: str) -> onnx.NodeProto | None:
    """Find the first node on the way to a value whose operands have shapes and whose result has none."""
    makers = producers(graph.node)
    known = {value.name for value in (*graph.input, *graph.value_info) if known_dims(value) is not None}
    known |= {tensor.name for tensor in graph.initializer}
    found: onnx.NodeProto | None = None
    while name in makers:
        found = makers[name]
        name = next((operand for operand in found.input if operand in makers and operand not in known), "")
    return found


def check_hardware(specs: Iterable[TensorSpec], hardware: str | None) -> None:
    """Refuse inputs and outputs of a program that its hardware has no buffers for.

    Raises CompileError if a tensor is bfloat16, and the family does not have this type.
    """
    for spec in specs:
        if spec.elem_type == BFLOAT16 and hardware != BFLOAT16_HARDWARE:
            raise refuse(
                f"tensor {spec.name!r}",
                code="unsupported_type",
                found="type bfloat16",
                expected=f"float16 or float32 at the interface of a program, or hardware {BFLOAT16_HARDWARE}",
                fix="name it in custom_io_list_file with Precision float16, or give "
                f"aic_hw_version={BFLOAT16_HARDWARE}",
                context={"tensor": spec.name},
            )
