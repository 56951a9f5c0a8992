"""Converts inputs and outputs to the requested types and layouts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import onnx

from qaic.compiler.frontend.interface import check_hardware
from qaic.compiler.ir.constants.weights import Weight
from qaic.compiler.ir.context import Context, compiler_pass
from qaic.compiler.ir.elem_types import FLOAT
from qaic.compiler.ir.graph_edits import permute_shape, rename_initializers, rename_values, set_nodes
from qaic.compiler.ir.interface import Interface, TensorSpec, check_size
from qaic.compiler.ir.model import Model
from qaic.compiler.passes.custom_io.conversion import Converter
from qaic.compiler.passes.custom_io.requests import BORDER_TYPES, FILE, changes, requests_of
from qaic.compiler.passes.emulation.mx_fake_quantize import packed_shape
from qaic.errors import OptionError
from qaic.options.files.custom_io import CustomIo
from qaic.options.table import CompileOptions

#: dims of the model (NCHW) in the order of the border (NHWC)
_CHANNELS_LAST: Final = (0, 2, 3, 1)


def _changed_interface(model: Model, options: CompileOptions) -> Interface:
    """Convert inputs and outputs as the options request; returns the interface for callers.

    The interface of the graph is final. A weight that is an output gets another name.
    """
    interface = model.interface
    requests = requests_of(interface, options)
    if not requests:
        return interface
    _change_graph(model, requests, Converter(model.proto))
    return Interface(
        tuple(_changed(spec, requests.get(spec.name), "input") for spec in interface.inputs),
        tuple(_changed(spec, requests.get(spec.name), "output") for spec in interface.outputs),
        tuple(
            replace(
                specialization,
                inputs=_sizes(interface.inputs, specialization.inputs, requests),
                outputs=_sizes(interface.outputs, specialization.outputs, requests),
            )
            for specialization in interface.specializations
        ),
    )


def _change_graph(model: Model, requests: Mapping[str, CustomIo], converter: Converter) -> None:
    graph, facts = model.proto.graph, model.facts
    renamed = {name: converter.fresh.make(name, "of_model") for name in requests}
    _rename(model.proto, model.weights, renamed)
    before: list[onnx.NodeProto] = []
    after: list[onnx.NodeProto] = []
    specs = {spec.name: spec for spec in (*model.inputs, *model.outputs)}
    for values, nodes, is_input in ((graph.input, before, True), (graph.output, after, False)):
        for value in values:
            entry = requests.get(value.name)
            if entry is None:
                continue
            spec, inner = specs[value.name], renamed[value.name]
            _retype(value, spec, entry)
            facts.types[inner] = facts.types[value.name]
            if value.name in facts.shapes:
                facts.shapes[inner] = facts.shapes[value.name]
            facts.learn(value)
            if is_input:
                nodes.extend(converter.into_model(spec, entry, value.name, inner))
            else:
                nodes.extend(converter.out_of_model(spec, entry, inner, value.name))
    set_nodes(graph, (*before, *graph.node, *after))


def _rename(model: onnx.ModelProto, weights: dict[str, Weight], names: Mapping[str, str]) -> None:
    """Rename values everywhere but in the declarations of the main graph's inputs and outputs."""
    rename_values(model.graph.node, names)
    rename_initializers(model.graph, names)
    if weights.keys() & names.keys():
        # Keep the order, in which initializers are stored.
        held = [replace(weight, name=names.get(name, name)) for name, weight in weights.items()]
        weights.clear()
        weights.update((weight.name, weight) for weight in held)


def _retype(value: onnx.ValueInfoProto, spec: TensorSpec, entry: CustomIo) -> None:
    """Declare the type and dims of an input or output at the border; symbols keep their dims."""
    tensor = value.type.tensor_type
    # The device decodes the blocks, so the graph computes with their values.
    tensor.elem_type = FLOAT if entry.precision == "mxint8" else _border_type(spec, entry)
    if entry.layout == "NHWC":
        permute_shape(value, _CHANNELS_LAST)
    if entry.precision == "mxint8" and not tensor.shape.dim[-1].HasField("dim_value"):
        raise OptionError(
            f"{FILE}: the last dim of {spec.name!r} is not the same in all specializations; Precision "
            "mxint8 divides it into blocks and needs one size",
            code="option.custom_io",
            context={"options": [FILE], "tensor": spec.name},
        )


def _border_type(spec: TensorSpec, entry: CustomIo) -> int:
    if entry.precision is None or not changes(spec, replace(entry, layout=None)):
        return spec.elem_type
    return BORDER_TYPES[entry.precision]


def _border_dims(dims: tuple[int, ...], entry: CustomIo | None) -> tuple[int, ...]:
    if entry is None:
        return dims
    if entry.layout == "NHWC":
        dims = tuple(dims[at] for at in _CHANNELS_LAST)
    return packed_shape(dims) if entry.precision == "mxint8" else dims


def _changed(spec: TensorSpec, entry: CustomIo | None, kind: str) -> TensorSpec:
    if entry is None:
        return spec
    quantized = None
    if entry.scale is not None and entry.offset is not None:
        quantized = (entry.scale, entry.offset)
    columns = None
    if entry.precision == "mxint8":
        columns = _border_dims(spec.dims, replace(entry, precision=None))[-1]
    changed = replace(
        spec,
        elem_type=_border_type(spec, entry),
        dims=_border_dims(spec.dims, entry),
        model=spec,
        quantized=quantized,
        mxint8=columns,
    )
    return check_size(changed, kind)


def _sizes(
    specs: Sequence[TensorSpec], dims: Sequence[tuple[int, ...]], requests: Mapping[str, CustomIo]
) -> tuple[tuple[int, ...], ...]:
    return tuple(
        _border_dims(sizes, requests.get(spec.name)) for spec, sizes in zip(specs, dims, strict=True)
    )


@compiler_pass()
def apply_custom_io_pass(model: Model, context: Context) -> bool:
    """Convert inputs and outputs to the requested types and layouts."""
    changed = _changed_interface(model, context.options)
    check_hardware((*changed.inputs, *changed.outputs), context.options.aic_hw_version)
    is_changed = changed is not model.known
    model.known = changed
    return is_changed
