"""Assigns sizes to the symbolic dimensions of a model, and derives all other shapes.

A container has buffers of fixed size, so every dimension of an input must first become a number.
"""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import onnx
from onnx import shape_inference

from qaic.compiler.diagnostics.messages import engine_reason, listing, refuse, warn
from qaic.compiler.frontend.example_sizes import example_shape, example_sizes
from qaic.compiler.frontend.size_expressions import evaluate, solve, symbols_in
from qaic.compiler.frontend.validation import with_named_nodes
from qaic.compiler.ir import ml_shapes
from qaic.compiler.ir.elem_types import CODES, TABLE, type_name
from qaic.compiler.ir.graph_edits import clear_shape, set_shape
from qaic.compiler.ir.graph_walk import all_graphs
from qaic.compiler.ir.interface import TensorSpec, check_size
from qaic.compiler.ir.operand_ranks import infer_with_valid_ranks
from qaic.compiler.ir.value_info import Dims, may_follow_values, type_and_dims
from qaic.errors import OptionError
from qaic.options.codecs.structures import ModelInput
from qaic.options.files.specializations import SpecializationEntry

_log = logging.getLogger("qaic.compiler")

#: operator and name of a node in a message of onnx
_NODE: Final = re.compile(r"\(op_type:(\w+), node name: (.*?)\): ")

#: symbols that exporters for the card write into every specialization, even if the model does not use them
_OF_EXPORTERS: Final = frozenset(
    (
        *("batch_size", "full_batch_size", "full_batch_exec_size", "seq_len", "sequence_length", "ctx_len"),
        *("comp_ctx_lengths", "sliding_window", "chunk_length", "chunk_ctx_len", "num_logits_to_keep"),
        *("encoder_ctx_len", "decoder_ctx_len", "feature_len"),
        *("vision_size", "vision_batch_size", "batched_num_patches", "num_patches", "num_patch"),
        "max_patches",
        *("img_size", "img_tile", "image_size", "image_size_height", "image_size_width", "num_images"),
        *("max_num_images", "max_num_tiles", "num_image_tokens", "num_feature_layers", "valid_size"),
        *("grid_h", "grid_w", "grid_height", "grid_width", "height", "width", "num_frames", "time"),
        *("channels", "num_channels", "cl", "latent_frames", "latent_height", "latent_width"),
        *("model_type", "steps"),
    )
)


def bind(
    model: onnx.ModelProto,
    given: Mapping[str, int],
    specs: Iterable[ModelInput],
    entries: Sequence[SpecializationEntry] = (),
) -> list[dict[str, int]]:
    """Replace the symbolic dimensions of a model by numbers; changes `model` in place.

    With several specializations, symbols that differ between them stay symbolic. `given` are the values of
    ``onnx_define_symbol``; those of `entries` override them. `specs` also give values to dimensions without a
    name, and to symbols in their positions. Returns all values of each specialization, or one set of values
    without specializations. Raises CompileError if a dimension has no value (with several specializations,
    `require_static` does), and OptionError if ``model_inputs`` names an unknown input or contradicts the
    model or a symbol.
    """
    sets = [{**given, **entry.symbols} for entry in entries] or [dict(given)]
    _warn_unknown(model.graph, given, entries)
    defined = [set(values) for values in sets]
    for spec in specs:
        _apply_spec(model.graph, spec, sets)
    for values, known in zip(sets, defined, strict=True):
        _solve(values, [text for text in values if text not in known and symbols_in(text) != {text}])
    substitute(model, common_sizes(sets))
    if len(sets) == 1:
        require_static(model.graph.input, entries[0].name if entries else None, sets[0])
    return sets


def common_sizes(sets: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Collect the sizes that all specializations have in common."""
    return {name: size for name, size in sets[0].items() if all(values.get(name) == size for values in sets)}


def declare_outputs(
    graph: onnx.GraphProto, shapes: Mapping[str, Sequence[int | str]], sets: Sequence[Mapping[str, int]]
) -> None:
    """Declare the shapes of outputs that ``output_shapes`` gives.

    `sets` are the sizes of symbols in each specialization. Raises OptionError if there is no such output, or
    a symbol has no size.
    """
    outputs = {value.name: value for value in graph.output}
    for name, dims in shapes.items():
        what = f"output_shapes: output {name!r}"
        if name not in outputs:
            raise _output_error(f"{what} does not exist; the model has {listing([*outputs], 20)}", name)
        for text in (dim for dim in dims if isinstance(dim, str)):
            if any(evaluate(text, sizes) is None for sizes in sets):
                fix = f"give it one with onnx_define_symbol={{{text!r}: 1}}"
                raise _output_error(f"{what} has the symbol {text!r}, which has no size; {fix}", name)
        set_shape(outputs[name], dims)


def check_outputs(
    inferred: onnx.ModelProto, shapes: Mapping[str, Sequence[int | str]], sizes: Mapping[str, int]
) -> None:
    """Refuse outputs whose inferred shapes differ from those of ``output_shapes``.

    Raises OptionError if a shape differs.
    """
    for value in inferred.graph.output:
        given = shapes.get(value.name)
        if given is None:
            continue
        wanted = [dim if isinstance(dim, int) else evaluate(dim, sizes) for dim in given]
        found = [dim.dim_value for dim in _dims(value)]
        if wanted != found:
            raise _output_error(
                f"output_shapes: output {value.name!r} has the shape {found}, not {wanted}; "
                f"give output_shapes={{{value.name!r}: {example_dims(value)}}}",
                value.name,
            )


def example_dims(value: onnx.ValueInfoProto) -> list[int]:
    """Return the dims of a value, with an example for each that is open."""
    sizes = [_size(dim) for dim in _dims(value)]
    return example_shape(sizes, example_sizes([sizes]))


def substitute(model: onnx.ModelProto, values: Mapping[str, int]) -> None:
    """Write the sizes of symbols, and of expressions of them, into every graph of a model."""
    sizes: dict[str, int | None] = {"": None}
    for graph in all_graphs(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            for dim in _dims(value):
                text = dim.dim_param
                if text not in sizes:
                    sizes[text] = evaluate(text, values)
                size = sizes[text]
                if size is not None and size >= 0:
                    dim.dim_value = size


def require_static(
    inputs: Iterable[onnx.ValueInfoProto], specialization: str | None, sizes: Mapping[str, int]
) -> None:
    """Refuse inputs that still have a dimension without a value.

    `substitute` was applied to the inputs; the other arguments are for the message.
    """
    listed = list(inputs)
    # One error lists all symbols.
    texts = {dim.dim_param for value in listed for dim in _dims(value)} - {""}
    parts = frozenset[str]().union(*(symbols_in(text) for text in texts))
    # An input without a shape has one dim as an example.
    shapes = {
        value.name: [None] if _has_no_shape(value) else [_size(dim) for dim in _dims(value)]
        for value in listed
    }
    # A few symbols are shorter than all shapes with expressions, if symbols are sufficient.
    needs_shapes = texts == parts or any(None in shape for shape in shapes.values())
    open_inputs = [
        value
        for value in listed
        if needs_shapes and any(not isinstance(size, int) for size in shapes[value.name])
    ]
    examples = {**example_sizes(shapes.values()), **sizes}
    sized = [
        {
            "input_name": value.name,
            "input_type": type_name(value.type.tensor_type.elem_type),
            "input_shape": example_shape(shapes[value.name], examples),
        }
        for value in open_inputs
    ]
    missing = {name: examples[name] for name in sorted(parts - sizes.keys())}
    for value in listed:
        _require_static(value, specialization, sizes, missing, sized)


def _size(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    """Return the size or the symbol of a dimension; None if it has neither."""
    return dim.dim_param or (dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None)


def _warn_unknown(
    graph: onnx.GraphProto, given: Mapping[str, int], entries: Sequence[SpecializationEntry]
) -> None:
    written = _symbols_of(graph)
    present = written.union(*(symbols_in(text) for text in written))
    # Only symbols of inputs need a value; those of inner values follow from them.
    of_inputs = {dim.dim_param for value in graph.input for dim in _dims(value)} - {""}
    names = frozenset[str]().union(*(symbols_in(text) for text in of_inputs))
    known = listing(sorted(names), 20) or "none"
    for name in given:
        if name not in present:
            warn(
                "symbols.unused_definition",
                f"onnx_define_symbol: the model has no symbol {name!r}; its symbols are: {known}",
            )
    unknown = sorted({name for entry in entries for name in entry.symbols} - present - _OF_EXPORTERS)
    if unknown:
        warn(
            "symbols.unused_specialization",
            f"network_specialization_config: the model has no symbols {listing(unknown, 20)}; its symbols "
            f"are: {known}",
        )


def _apply_spec(graph: onnx.GraphProto, spec: ModelInput, sets: Sequence[dict[str, int]]) -> None:
    """Write the dims of one ``model_inputs`` entry into its input."""
    name, shape = spec.input_name, list(spec.input_shape)
    described = listing(
        [f"{v.name}: {type_name(v.type.tensor_type.elem_type)} {_shape_text(v)}" for v in graph.input], 20
    )
    if not name and len(graph.input) != 1:
        raise _option_error(
            f"model_inputs: a shape without a name is for models with one input; the model has {described}",
            name,
        )
    for value in graph.input:
        if value.name == name or not name:
            break
    else:
        raise _option_error(f"model_inputs: input {name!r} does not exist; the model has {described}", name)
    option = f"model_inputs: input {value.name!r}"
    tensor = value.type.tensor_type
    declared = type_name(tensor.elem_type)
    if spec.input_type is not None and CODES.get(spec.input_type) != tensor.elem_type:
        raise _option_error(f"{option}: found type {spec.input_type!r}, the model has {declared!r}", name)
    if tensor.HasField("shape") and len(tensor.shape.dim) != len(shape):
        raise _option_error(
            f"{option}: found the shape {shape}, but the model has {_shape_text(value)}", name
        )
    if not tensor.HasField("shape"):
        set_shape(value, [None] * len(shape))
    for position, (dim, size) in enumerate(zip(tensor.shape.dim, shape, strict=True)):
        if dim.HasField("dim_value") and dim.dim_value != size:
            raise _option_error(
                f"{option}: dimension {position} is {size}, but the model fixes it to {dim.dim_value}", name
            )
        if size < 1 and not dim.HasField("dim_value"):
            raise _option_error(f"{option}: dimension {position} is {size}, expected at least 1", name)
        for values in sets if dim.dim_param else ():
            before = values.setdefault(dim.dim_param, size)
            if before != size:
                raise _option_error(
                    f"{option}: dimension {position} gives the symbol {dim.dim_param!r} the value {size}, "
                    f"but it already has {before}",
                    name,
                )
        dim.dim_value = size


def _solve(values: dict[str, int], expressions: Sequence[str]) -> None:
    """Add the sizes of symbols that follow from sizes of expressions, and refuse sizes that contradict."""
    while found := next(filter(None, (solve(text, values) for text in expressions)), None):
        values |= found
    for text in expressions:
        parts = {name: values[name] for name in sorted(symbols_in(text)) if name in values}
        size = evaluate(text, parts)
        if size not in {None, values[text]}:
            sizes = ", ".join(f"{name!r} = {number}" for name, number in parts.items())
            raise _option_error(
                f"model_inputs: the dimension {text!r} is {values[text]}, but with {sizes} it is {size}", text
            )


def _require_static(
    value: onnx.ValueInfoProto,
    specialization: str | None,
    sizes: Mapping[str, int],
    missing: Mapping[str, int],
    sized: Sequence[dict[str, Any]],
) -> None:
    """Refuse an input with an open dimension.

    `missing` are examples of the sizes of symbols, and `sized` is an example of ``model_inputs``.
    """
    what = f"input {value.name!r}"
    tensor = value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        return  # refused with its type later
    shapes = {one["input_name"]: one["input_shape"] for one in sized}
    if _has_no_shape(value):
        raise refuse(
            what,
            code="unbound_dimension",
            found="no shape",
            expected="a fixed shape",
            fix=f"give all dims, e.g. model_inputs={sized}",
            context={"tensor": value.name, "option": "model_inputs", "shapes": shapes},
        )
    for position, dim in enumerate(tensor.shape.dim):
        if dim.dim_param:
            size = evaluate(dim.dim_param, sizes)
            if size is not None:
                raise refuse(
                    what,
                    code="unbound_dimension",
                    found=f"{size} for dim {position} of its shape {_shape_text(value)}",
                    expected="a size of at least 0",
                    fix=f"give other sizes to {listing(sorted(symbols_in(dim.dim_param)))}",
                    context={"tensor": value.name, "dim": position, "option": "onnx_define_symbol"},
                )
            parts = symbols_in(dim.dim_param)
            symbol = min(parts - sizes.keys() or parts)
            wanted = dict(missing) or {symbol: 1}
            context: dict[str, object] = {"tensor": value.name, "symbol": symbol}
            context |= {"option": "onnx_define_symbol", "example": wanted}
            if specialization is None and value.name in shapes:
                context["shapes"] = shapes
            whom = "it a value" if len(wanted) == 1 else "all of them values"
            fix = f"give {whom}, e.g. onnx_define_symbol={wanted}"
            if specialization is not None:
                what = f"specialization {specialization!r}, input {value.name!r}"
                fix = f"give it a value there, or for all specializations with onnx_define_symbol={wanted}"
                context["specialization"] = specialization
            raise refuse(
                what,
                code="unbound_symbol",
                found=f"the symbol {dim.dim_param!r} in its shape {_shape_text(value)}",
                expected="a number for every dimension",
                fix=fix,
                context=context,
            )
        if _size(dim) is None:
            raise refuse(
                what,
                code="unbound_dimension",
                found=f"no number for dim {position} of its shape {_shape_text(value)}",
                expected="a number for every dimension",
                fix=f"it has no name, so give the shapes, e.g. model_inputs={sized}",
                context={"tensor": value.name, "dim": position, "option": "model_inputs", "shapes": shapes},
            )
    if tensor.elem_type in TABLE:
        # These checks come before any use of the sizes.
        kind = "input" if specialization is None else f"specialization {specialization!r}, input"
        check_size(TensorSpec(value.name, tensor.elem_type, tuple(d.dim_value for d in _dims(value))), kind)


def infer(view: onnx.ModelProto) -> onnx.ModelProto:
    """Infer the types and shapes of all values from those of the inputs.

    Shapes that the file declares for outputs and inner values are ignored, because they may belong to other
    input shapes. A dimension of an output that cannot be inferred is taken from the declared shape. `view`
    has its weights as inputs and is changed. Returns a copy with types and shapes.
    """
    claims: dict[str, Dims | None] = {}
    for graph in all_graphs(view.graph):
        for value in graph.value_info:
            clear_shape(value)
    for value in view.graph.output:
        if value.type.HasField("tensor_type"):
            _, claims[value.name] = type_and_dims(value)
            clear_shape(value)
    inferred = _inferred(view, follows_values=False)
    if _is_open(inferred) and may_follow_values(inferred):
        inferred = _inferred(view, follows_values=True)
    if ml_shapes.complete(inferred):
        inferred = infer_further(inferred)
    for value in inferred.graph.output:
        _fill_claim(value, claims.get(value.name))
    return inferred


def infer_further(found: onnx.ModelProto) -> onnx.ModelProto:
    """Infer shapes again after shapes were added to an inferred model; returns a copy."""
    inferred = _inferred(found, follows_values=may_follow_values(found))
    while ml_shapes.complete(inferred):
        inferred = _inferred(inferred, follows_values=may_follow_values(inferred))
    return inferred


def _is_open(inferred: onnx.ModelProto) -> bool:
    """Return True if the dims of a result are unknown, or one is neither a number nor a symbol."""
    given = {dim.dim_param for value in inferred.graph.input for dim in _dims(value)} - {""}
    for graph in all_graphs(inferred.graph):
        values = {value.name: value for value in (*graph.value_info, *graph.output)}
        made = set(chain.from_iterable(node.output[:] for node in graph.node)) - {""}
        if not made <= values.keys():
            return True
        for value in map(values.__getitem__, made):
            _, dims = type_and_dims(value)
            if dims is not None and all(dims):
                continue
            # Inference invents symbols. A size of 0 reads as an unknown size.
            if dims is None or any(not dim.dim_value and dim.dim_param not in given for dim in _dims(value)):
                return True
    return False


def _inferred(view: onnx.ModelProto, *, follows_values: bool) -> onnx.ModelProto:
    """Infer strictly if possible, otherwise partially; refuse a model with contradictory shapes."""
    try:
        return infer_with_valid_ranks(view, check_type=True, strict_mode=True, data_prop=follows_values)
    except (shape_inference.InferenceError, ValueError) as strict_error:
        # Strict mode also refuses unknown shapes. The engine reports real contradictions.
        _log.debug("strict shape inference: %s", strict_error)
    try:
        return infer_with_valid_ranks(view, data_prop=follows_values)
    except (shape_inference.InferenceError, RuntimeError, ValueError) as error:
        text = str(error)
        try:
            infer_with_valid_ranks(with_named_nodes(view), data_prop=follows_values)
        except (shape_inference.InferenceError, RuntimeError, ValueError) as named:
            text = str(named)
        place = _NODE.search(text)
        reason = engine_reason(RuntimeError(text[place.end() :] if place else text))
        raise refuse(
            f"node {place[2]!r} ({place[1]})" if place else "shapes of the model",
            code="invalid_model",
            found=f"a contradiction ({reason})",
            expected="operators that fit their inputs",
            fix="check the shapes given with onnx_define_symbol and model_inputs",
        ) from error


def _fill_claim(value: onnx.ValueInfoProto, claim: Dims | None) -> None:
    """Complete an inferred shape with the shape that the file declares."""
    if claim is None or not value.type.HasField("tensor_type"):
        return
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        set_shape(value, [None] * len(claim))
    if len(tensor.shape.dim) != len(claim):
        warn(
            "symbols.output_rank",
            f"output {value.name!r}: found {len(claim)} declared dims, expected {_shape_text(value)}",
        )
        return
    for dim, size in zip(tensor.shape.dim, claim, strict=True):
        if size is None:
            continue
        if not dim.HasField("dim_value"):
            dim.dim_value = size
        elif dim.dim_value != size:
            warn(
                "symbols.output_size",
                f"output {value.name!r}: found the declared size {size}, expected {dim.dim_value}",
            )


def _symbols_of(graph: onnx.GraphProto) -> set[str]:
    return {
        dim.dim_param
        for current in all_graphs(graph)
        for value in (*current.input, *current.output, *current.value_info)
        for dim in _dims(value)
        if dim.dim_param
    }


def _dims(value: onnx.ValueInfoProto) -> Iterable[onnx.TensorShapeProto.Dimension]:
    # Values that are no tensors have no dims.
    dims: Iterable[onnx.TensorShapeProto.Dimension] = value.type.tensor_type.shape.dim
    return dims


def _has_no_shape(value: onnx.ValueInfoProto) -> bool:
    return value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape")


def _shape_text(value: onnx.ValueInfoProto) -> str:
    dims = (d.dim_param or (str(d.dim_value) if d.HasField("dim_value") else "?") for d in _dims(value))
    return f"[{', '.join(dims)}]"


def _option_error(message: str, tensor: str) -> OptionError:
    return OptionError(message, code="option.model_inputs", context={"tensor": tensor}, hints=())


def _output_error(message: str, tensor: str) -> OptionError:
    return OptionError(message, code="option.output_shapes", context={"tensor": tensor}, hints=())
