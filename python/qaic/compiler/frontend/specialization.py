"""Inputs and outputs of a model for each set of shapes, and the graph that serves all sets.

There is one graph. A dimension that differs between the sets stays symbolic, so weights and prepared kernels
are shared. Only the dims of inputs and outputs are stored per set.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import onnx

from qaic.compiler.diagnostics.messages import refuse
from qaic.compiler.frontend import symbols
from qaic.compiler.ir.elem_types import BFLOAT16, INTERFACE_TYPES, TABLE, type_name
from qaic.compiler.ir.graph_edits import clone
from qaic.compiler.ir.graph_walk import node_label, producers
from qaic.compiler.ir.interface import Interface, Specialization, TensorSpec, check_size
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.compiler.ir.value_info import known_dims
from qaic.errors import OptionError
from qaic.options.files.specializations import SpecializationEntry
from qaic.support.text import counted

MAX_DIMS: Final = 8
#: the only hardware family with bfloat16
BFLOAT16_HARDWARE: Final = "ai200"

_OPEN: Final = "the operator whose output size depends on data (NonZero, NonMaxSuppression, Loop, ...)"


def read_spec(value: onnx.ValueInfoProto, kind: str, graph: onnx.GraphProto | None = None) -> TensorSpec:
    """Check one graph input or output whose shape was inferred.

    `kind` is ``input`` or ``output`` and `graph` computes the value, both for messages. Raises CompileError
    if the value is not a dense tensor, a buffer does not support its type, rank or size, or its shape is
    unknown.
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
        example = symbols.example_dims(value) if tensor.HasField("shape") else [1, 2]
        shape = f"{{{value.name!r}: {example}}}"
        name = "" if origin is None else f"node {node_label(origin)!r} ({origin.op_type})"
        if origin is not None:
            context["node"] = node_label(origin)
        raise refuse(
            what,
            code="dynamic_shape",
            found=f"a shape that is only known when the program runs{f', from {name} on' if name else ''}",
            expected="a shape that follows from the shapes of the inputs",
            fix=f"if all inferences give one shape, declare it, e.g. output_shapes={shape}; an inference "
            f"that gives another shape fails; or end the model before {name or _OPEN}, or pad its output to "
            "a fixed size",
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
    """Find the first node before a value whose operands have known shapes and whose result has none."""
    makers = producers(graph.node)
    known = {value.name for value in (*graph.input, *graph.value_info) if known_dims(value) is not None}
    known |= {tensor.name for tensor in graph.initializer}
    found: onnx.NodeProto | None = None
    while name in makers:
        found = makers[name]
        name = next((operand for operand in found.input if operand in makers and operand not in known), "")
    return found


def check_hardware(specs: Iterable[TensorSpec], hardware: str | None) -> None:
    """Refuse inputs and outputs of a program for which its hardware has no buffers.

    Raises CompileError if a tensor is bfloat16, and the hardware family does not have this type.
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


_OPTION = "network_specialization_config"


def copy_at(model: Model, at: int) -> onnx.ModelProto:
    """Return the copy of a model for one set of symbols; a model with one set is its own copy."""
    sizes = model.symbol_sizes[at]
    if len(model.symbol_sizes) == 1:
        return model.proto
    copy = clone(model.proto)
    symbols.substitute(copy, sizes)
    symbols.require_static(copy.graph.input, model.requested[at].name, sizes)
    return copy


def read_specs(specialized_model: onnx.ModelProto, count: int) -> Interface:
    """Read the inputs and outputs of an inferred model; inputs after the first `count` are weights."""
    graph = specialized_model.graph
    return Interface(
        tuple(read_spec(value, "input") for value in graph.input[:count]),
        tuple(read_spec(value, "output", graph) for value in graph.output),
    )


def interface_of(sets: Sequence[Interface], entries: Sequence[SpecializationEntry]) -> Interface:
    """Return the interface of a program for its sets of shapes.

    Raises CompileError if a tensor cannot be a buffer, or its number of dims differs between specializations.
    Raises OptionError if two specializations have the same input shapes, because neither could be selected.
    """
    if len(sets) == 1:
        return sets[0]
    dims = [[tuple(spec.dims for spec in side) for side in (one.inputs, one.outputs)] for one in sets]
    specializations = tuple(
        Specialization(entry.name, entry.symbols, *sides) for entry, sides in zip(entries, dims, strict=True)
    )
    _refuse_equal(specializations)
    inputs = zip(*(one.inputs for one in sets), strict=True)
    outputs = zip(*(one.outputs for one in sets), strict=True)
    return Interface(
        tuple(_largest(specs, entries, "input") for specs in inputs),
        tuple(_largest(specs, entries, "output") for specs in outputs),
        specializations,
    )


def named(
    name: str, specializations: tuple[Specialization, ...], given: Sequence[str]
) -> tuple[str, tuple[Specialization, ...]]:
    """Name the graphs of a container: the program if there is one graph, else each set of shapes.

    Nothing changes without `given` names. Raises OptionError if the numbers of names and graphs differ.
    """
    if not given:
        return name, specializations
    if len(given) != max(len(specializations), 1):
        raise OptionError(
            f"graph_names has {counted(len(given), 'name')} ({', '.join(given)}), but the container has "
            f"{counted(max(len(specializations), 1), 'graph')}; give one name for each",
            code="option.graph_names",
            context={"options": ["graph_names"], "graphs": max(len(specializations), 1)},
        )
    if not specializations:
        return given[0], specializations
    renamed = (
        replace(specialization, name=own) for specialization, own in zip(specializations, given, strict=True)
    )
    return name, tuple(renamed)


def _refuse_equal(specializations: Sequence[Specialization]) -> None:
    by_shapes: defaultdict[tuple[tuple[int, ...], ...], list[str]] = defaultdict(list)
    for specialization in specializations:
        by_shapes[specialization.inputs].append(specialization.name)
    for names in by_shapes.values():
        if len(names) > 1:
            raise OptionError(
                f"{_OPTION}: the specializations {names[0]!r} and {names[1]!r} give all inputs the same "
                "shapes; the shapes of an inference select a specialization, so remove one of them",
                code=f"option.{_OPTION}",
                context={"specializations": names[:2]},
            )


def _largest(specs: Sequence[TensorSpec], entries: Sequence[SpecializationEntry], kind: str) -> TensorSpec:
    """Return the largest size of every dimension, so that one buffer fits all shapes."""
    first = specs[0]
    for spec, entry in zip(specs, entries, strict=True):
        if len(spec.dims) != len(first.dims):
            raise refuse(
                f"{kind} {first.name!r}",
                code="varying_rank",
                found=f"{counted(len(first.dims), 'dim')} in specialization {entries[0].name!r} and "
                f"{len(spec.dims)} in {entry.name!r}",
                expected="as many dims in each",
                fix="reshape it inside the model",
                context={"tensor": first.name},
            )
    dims = tuple(max(sizes) for sizes in zip(*(spec.dims for spec in specs), strict=True))
    return check_size(TensorSpec(first.name, first.elem_type, dims), kind)


def fix_interface(model: onnx.ModelProto, specialized: Sequence[onnx.ModelProto]) -> None:
    """Set the final types of the graph's inputs and outputs, and drop data that only inference needed.

    A dimension gets a number if all specialized models agree. Otherwise, dimensions of inputs keep their
    symbols. Dimensions of outputs lose theirs, because nothing proves that a symbol in the file is correct.
    """
    graph = model.graph
    types = [
        {v.name: v.type for v in (*specialized_model.graph.input, *specialized_model.graph.output)}
        for specialized_model in specialized
    ]
    inputs = {value.name for value in graph.input}
    for value in (*graph.input, *graph.output):
        symbols_of_file = [dim.dim_param for dim in value.type.tensor_type.shape.dim]
        given = [known[value.name] for known in types]
        value.type.CopyFrom(given[0])
        for position, dim in enumerate(value.type.tensor_type.shape.dim):
            if len({known.tensor_type.shape.dim[position].dim_value for known in given}) > 1:
                dim.Clear()
                if value.name in inputs:
                    dim.dim_param = symbols_of_file[position]
    graph.ClearField("value_info")


@compiler_pass()
def fix_interface_pass(model: Model, _: Context) -> None:
    """Set the final types of inputs and outputs, and remove data that only inference needed."""
    fix_interface(model.proto, model.specialized)
