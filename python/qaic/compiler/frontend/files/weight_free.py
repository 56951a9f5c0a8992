"""Models without weights: inputs of the graph that are constants, with their values in a checkpoint.

They become initializers whose bytes are read from the checkpoint when the container is written, so memory
does not depend on their size.
"""

from collections.abc import Iterator

import onnx

from qaic.compiler.diagnostics.compile_error import listing, refuse
from qaic.compiler.diagnostics.record import Diagnostic
from qaic.compiler.frontend.files.checkpoint_files import CheckpointFiles
from qaic.compiler.frontend.files.safetensors_file import TYPES, StoredTensor
from qaic.compiler.frontend.files.weight_spec import WeightPlace, WeightSpec, wrong_spec
from qaic.compiler.ir import elem_types
from qaic.compiler.ir.constants.float16_weights import Overflows, converted_floats
from qaic.compiler.ir.constants.weights import INLINE_LIMIT, TensorSource, Weight, read_all
from qaic.compiler.ir.value_info import dims_of


def take_weights(
    model: onnx.ModelProto,
    weights: dict[str, Weight],
    spec: WeightSpec,
    checkpoint: CheckpointFiles,
    overflows: Overflows,
) -> None:
    """Convert the inputs that a model lists as weights to constants.

    Small weights become initializers of `model`, large ones go to `weights`. The inputs stay, because they
    may also have an initializer. `overflows` counts values that the type of an input cannot represent. Raises
    CompileError if the graph has no such input, or type or shape in the checkpoint are not the input's, and
    OSError if a file cannot be opened.
    """
    graph = model.graph
    inputs = {value.name: value for value in graph.input}
    constants = {tensor.name for tensor in graph.initializer} | weights.keys()
    for place in spec.places:
        value = inputs.get(place.input_name)
        if value is None or place.input_name in constants:
            raise wrong_spec(
                f"input {place.input_name!r} in the model's list of weights",
                "an initializer of that name" if value is not None else "no input of the graph",
                "an input of the graph without a value",
            )
        stored = checkpoint.tensor(place)
        elem_type = _elem_type(place, value)
        _check_dims(place, value, stored)
        source = _source(place, stored, elem_type, overflows)
        weight = Weight(place.input_name, elem_type, stored.dims, source)
        if source.nbytes < INLINE_LIMIT:
            graph.initializer.append(
                onnx.TensorProto(
                    name=weight.name, data_type=elem_type, dims=weight.dims, raw_data=read_all(source)
                )
            )
        else:
            weights[weight.name] = weight


def overflow_warning(overflows: Overflows) -> Iterator[Diagnostic]:
    """Yield one warning about the values that became infinite as far as they were read, if there are any."""
    if overflows.counts:
        yield Diagnostic(
            "warning",
            "weights.checkpoint_overflow",
            f"{sum(overflows.counts.values())} values of the checkpoint are beyond the range of float16, the "
            f"type of the model's inputs, and became infinite: {listing(sorted(overflows.counts))}",
        )


def _elem_type(place: WeightPlace, value: onnx.ValueInfoProto) -> int:
    elem_type = value.type.tensor_type.elem_type
    if not value.type.HasField("tensor_type") or elem_type not in elem_types.TABLE:
        what = f"input {place.input_name!r} in the model's list of weights"
        raise wrong_spec(what, "a type other than a tensor", "a tensor of a known type")
    return elem_type


def _check_dims(place: WeightPlace, value: onnx.ValueInfoProto, stored: StoredTensor) -> None:
    declared = dims_of(value.type.tensor_type)
    if declared is None:
        return
    fits = len(declared) == len(stored.dims) and all(
        want is None or want < 0 or want == have for want, have in zip(declared, stored.dims, strict=True)
    )
    if not fits:
        raise refuse(
            f"weights of input {place.input_name!r}",
            code="external_data",
            found=f"shape {list(stored.dims)} of tensor {place.key!r} in {str(stored.source.file.path)!r}",
            expected=f"{['?' if size is None else size for size in declared]} as the input has",
            fix="the checkpoint belongs to another model, or the exporter must prepare it",
        )


def _source(place: WeightPlace, stored: StoredTensor, elem_type: int, overflows: Overflows) -> TensorSource:
    found = TYPES[stored.dtype][1]
    if found == elem_type:
        return stored.source
    if found in elem_types.FLOATS and elem_type in elem_types.FLOATS:
        return converted_floats(stored.source, found, elem_type, place.input_name, overflows)
    raise refuse(
        f"weights of input {place.input_name!r}",
        code="external_data",
        found=f"type {stored.dtype} of tensor {place.key!r} in {str(stored.source.file.path)!r}",
        expected=f"{elem_types.type_name(elem_type)}, or floats for floats",
        fix="the checkpoint belongs to another model, or the exporter must prepare it",
    )
