"""Reading the tensors at the border of a model, and refusing what no buffer can hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import onnx

from qaic.compiler.diagnostics.compile_error import refuse
from qaic.compiler.ir.elem_types import BFLOAT16, INTERFACE_TYPES, TABLE, type_name
from qaic.compiler.ir.interface import TensorSpec, check_size

MAX_DIMS: Final = 8
#: the only hardware family with brain floats
BFLOAT16_HARDWARE: Final = "ai200"


def read_spec(value: onnx.ValueInfoProto, kind: str) -> TensorSpec:
    """Check one graph input or output whose shape was inferred.

    Parameters
    ----------
    value : onnx.ValueInfoProto
        The declaration.
    kind : str
        ``input`` or ``output``, for messages.

    Raises
    ------
    CompileError
        The value is no dense tensor, or its type, rank or size has no place in a buffer, or its shape is
        not known.
    """
    what = f"{kind} {value.name!r}"
    context: dict[str, object] = {"tensor": value.name}
    form = value.type.WhichOneof("value")
    if form is not None and form != "tensor_type":
        raise refuse(
            what,
            code="unsupported_type",
            found=f"a {form.removesuffix('_type').replace('_', ' ')}",
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
    if not tensor.HasField("shape") or not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
        raise refuse(
            what,
            code="dynamic_shape",
            found="a shape that is only known when the program runs",
            expected="a shape that follows from the shapes of the inputs",
            fix=f"give its shape, if it is always the same, e.g. output_shapes={{{value.name!r}: [1, 2]}}; "
            "or end the model before the operator whose output size depends on data (NonZero, Unique, "
            "NonMaxSuppression, ...) or pad its output to a fixed size",
            context=context,
        )
    dims = tuple(dim.dim_value for dim in tensor.shape.dim)
    if len(dims) > MAX_DIMS:
        raise refuse(
            what,
            code="too_many_dims",
            found=f"{len(dims)} dims",
            expected=f"at most {MAX_DIMS}",
            context=context,
        )
    return check_size(TensorSpec(value.name, tensor.elem_type, dims), kind)


def check_hardware(specs: Iterable[TensorSpec], hardware: str | None) -> None:
    """Refuse inputs and outputs of a program that its hardware has no buffers for.

    Parameters
    ----------
    specs : iterable of TensorSpec
        Inputs and outputs in their final types.
    hardware : str or None
        Hardware family.

    Raises
    ------
    CompileError
        A tensor is bfloat16, and the family does not have this type.
    """
    for spec in specs:
        if spec.elem_type == BFLOAT16 and hardware != BFLOAT16_HARDWARE:
            raise refuse(
                f"tensor {spec.name!r}",
                code="unsupported_type",
                found="type bfloat16",
                expected=f"float16 or float32 at the border of a program, or hardware {BFLOAT16_HARDWARE}",
                fix="name it in custom_io_list_file with Precision float16, or give "
                f"aic_hw_version={BFLOAT16_HARDWARE}",
                context={"tensor": spec.name},
            )
