"""Infers the type and shape of every value, in each specialization.

With `dynamic_shape_input`, inputs have any size up to a bound. A container lists all supported shapes, so
each size becomes a set of shapes, with the largest first. If symbols determine the shapes of all outputs,
shapes are not inferred for each set.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import onnx

from qaic.compiler.diagnostics.messages import listing, refuse
from qaic.compiler.frontend import symbols
from qaic.compiler.frontend.size_expressions import evaluate, symbols_in
from qaic.compiler.frontend.specialization import copy_at, interface_of, read_specs
from qaic.compiler.ir.constants.weights import Weight, with_weights_as_inputs
from qaic.compiler.ir.graph_edits import clear_dim, clear_shape, clone, replace_graph
from qaic.compiler.ir.graph_walk import find_nodes, node_lists
from qaic.compiler.ir.interface import Interface, TensorSpec
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.compiler.ir.value_info import agree, collect_types, type_and_dims
from qaic.compiler.passes.inlining import inline_functions
from qaic.compiler.passes.shape_inference import engine_shapes, loop_shapes
from qaic.compiler.passes.shape_inference.engine_shapes import inferred, inferred_alone
from qaic.compiler.passes.shape_inference.size_conflicts import SizeCheck, Sizes, refusal
from qaic.errors import CompileError, OptionError
from qaic.options.files.specializations import SpecializationEntry

#: most sets of shapes, because the container lists them all
MAX_SETS: Final = 16_384

#: most sets of shapes that are inferred separately
_FEW: Final = 16

_OPTION: Final = "dynamic_shape_input"


def sizes_of(
    model: onnx.ModelProto, names: Sequence[str], bounds: Mapping[str, int]
) -> tuple[SpecializationEntry, ...]:
    """List the sets of sizes of the dynamic inputs `names`; empty if there are none.

    `bounds` are the largest sizes. Raises OptionError if a name is not an input, an input has no symbol, a
    symbol has no bound, or there are too many sets.
    """
    if not names:
        return ()
    inputs = {value.name: value for value in model.graph.input}
    found: dict[str, int] = {}
    for name in names:
        if name not in inputs:
            raise _error(f"{_OPTION}: the model has no input {name!r}; it has {listing(list(inputs), 20)}")
        written = [dim.dim_param for dim in inputs[name].type.tensor_type.shape.dim if dim.dim_param]
        # A dimension with its own bound is a symbol, even if its text is an expression.
        parts = ([text] if text in bounds else sorted(symbols_in(text)) for text in written)
        own = list(dict.fromkeys(itertools.chain.from_iterable(parts)))
        if not own:
            raise _error(
                f"{_OPTION}: input {name!r} has no symbolic dimension; leave it out, or export the model "
                "with one"
            )
        for symbol in own:
            if symbol not in bounds:
                raise _error(
                    f"{_OPTION}: the symbol {symbol!r} of input {name!r} has no bound, and a container has "
                    f"buffers of fixed size; give its largest value, e.g. "
                    f"onnx_define_symbol={{{symbol!r}: 128}}"
                )
            found[symbol] = bounds[symbol]
    count = math.prod(found.values())
    if count > MAX_SETS:
        shown = " x ".join(f"{symbol} {size}" for symbol, size in found.items())
        raise _error(
            f"{_OPTION}: {count} combinations of sizes ({shown}), expected at most {MAX_SETS}; give "
            "smaller bounds with onnx_define_symbol, or list the sizes in network_specialization_config"
        )
    ranges = [range(size, 0, -1) for size in found.values()]
    return tuple(
        SpecializationEntry(
            ",".join(f"{symbol}={size}" for symbol, size in zip(found, sizes, strict=True)),
            dict(zip(found, sizes, strict=True)),
        )
        for sizes in itertools.product(*ranges)
    )


def infer_specializations(given: Model) -> tuple[list[onnx.ModelProto], Interface]:
    """Infer a model for its sets of shapes.

    Returns inferred models and the interface with the dims of every set. For many sets, only the first, the
    middle and the last model are returned.
    """
    sizes, entries = given.symbol_sizes, given.requested
    count, sets = len(given.proto.graph.input), range(len(sizes))

    def infer(form: onnx.ModelProto) -> onnx.ModelProto:
        return inferred(form, given.weights, given.library_paths)

    chosen = sets if len(sets) <= _FEW else (0, len(sets) // 2, len(sets) - 1)
    # The sizes of all inputs are checked before any inference.
    forms = [copy_at(given, at) for at in chosen]
    specialized = [infer(form) for form in forms]
    known = [read_specs(specialized_model, count) for specialized_model in specialized]
    if len(chosen) == len(sets):
        return specialized, interface_of(known, entries)
    named = _named_specs(given.proto, given.weights, known[0], sizes[0])
    if named is not None and all(
        _sized(named, sizes[at]) == specs for at, specs in zip(chosen, known, strict=True)
    ):
        return specialized, interface_of([_sized(named, values) for values in sizes], entries)
    return specialized, interface_of([read_specs(infer(copy_at(given, at)), count) for at in sets], entries)


#: specs of inputs or outputs, each with dims that are numbers or symbols
_NamedSpecs = Sequence[tuple[TensorSpec, tuple[int | str, ...]]]


def _sized(named: Sequence[_NamedSpecs], sizes: Mapping[str, int]) -> Interface:
    inputs, outputs = (
        tuple(
            replace(spec, dims=tuple(_size(dim, sizes) if isinstance(dim, str) else dim for dim in dims))
            for spec, dims in side
        )
        for side in named
    )
    return Interface(inputs, outputs)


def _size(text: str, sizes: Mapping[str, int]) -> int:
    size = evaluate(text, sizes)
    if size is None or size < 0:
        raise refuse(
            f"dimension {text!r}",
            code="unbound_dimension",
            found="no size" if size is None else f"a size of {size}",
            expected="a size of at least 0 for all sizes of its symbols",
            fix="list its sizes in network_specialization_config",
            context={"symbol": text, "option": _OPTION},
        )
    return size


def _named_specs(
    model: onnx.ModelProto, weights: dict[str, Weight], first: Interface, given: Mapping[str, int]
) -> list[_NamedSpecs] | None:
    """Infer the dims of all specs as numbers and symbols; None if a dim is unknown.

    Only symbols of `given` are known, because inference creates symbols for unknown dims.
    """
    view = with_weights_as_inputs(model, weights)
    for value in view.graph.output:
        # Declarations in the file may be valid for only one size.
        clear_shape(value)
    found = symbols.infer(view).graph
    values = {value.name: value for value in (*found.input, *found.output)}
    sides: list[_NamedSpecs] = []
    for side in (first.inputs, first.outputs):
        named = []
        for spec in side:
            dims = [
                dim.dim_value if dim.HasField("dim_value") else dim.dim_param
                for dim in values[spec.name].type.tensor_type.shape.dim
            ]
            symbolic = {dim for dim in dims if isinstance(dim, str)}
            if len(dims) != len(spec.dims) or any(evaluate(dim, given) is None for dim in symbolic):
                return None
            named.append((spec, tuple(dims)))
        sides.append(named)
    return sides


def _error(message: str) -> OptionError:
    return OptionError(
        message, code=f"option.{_OPTION}", context={"options": [_OPTION, "onnx_define_symbol"]}
    )


#: most sets of sizes that are checked
_CHECKED: Final = 16


def _refuse_conflicts(model: Model, cause: CompileError | None = None, *, in_branches: bool = False) -> None:
    """Refuse a set of sizes that does not fit a node; check at most `_CHECKED` sets."""
    check = SizeCheck(in_branches=in_branches)
    sets = range(len(model.symbol_sizes))
    # With an odd stride, the checked sets combine different sizes of two symbols.
    chosen = sets if len(sets) <= _CHECKED else sorted({at * 7919 % len(sets) for at in range(_CHECKED)})
    inferred = dict(enumerate(model.specialized)) if len(model.specialized) == len(sets) else {}
    for at in chosen:
        try:
            conflict = check.find(inferred[at]) if at in inferred else None
            if at not in inferred or (conflict is not None and model.proto.functions):
                conflict = check.find(inferred_alone(_expanded(model, at)))
        except CompileError:
            if cause is None:
                raise
            continue
        if conflict is not None:
            name = model.requested[at].name if model.requested else ""
            sizes = Sizes(model.input_dims, model.symbol_sizes[at], name)
            raise refusal(conflict, _expanded(model, at), sizes, check) from cause


def _expanded(model: Model, at: int) -> onnx.ModelProto:
    """Copy a model for one set of sizes, with its weights as inputs, and without functions."""
    return inline_functions(with_weights_as_inputs(copy_at(model, at), model.weights))


@compiler_pass()
def infer_shapes_pass(model: Model, context: Context) -> None:
    """Infer types and shapes, unless the model already contains them.

    A declared shape of an output is removed if inference contradicts it.
    """
    wrong: list[onnx.ValueInfoProto] = []
    if not model.specialized:
        try:
            model.specialized, model.known = infer_specializations(model)
        except CompileError as error:
            # If a size is too large, inference stops before it finds conflicts.
            if error.code != "compile.tensor_too_large":
                _refuse_conflicts(model, error, in_branches=error.code == "compile.engine_refused")
            raise
        _refuse_conflicts(model)
        if _has_branches(model) and all(
            "InferenceError" in _refusal(proto, model) for proto in (model.proto, _opened(model.proto))
        ):
            _refuse_conflicts(model, in_branches=True)
        for specialized_model, sizes in zip(model.specialized, model.symbol_sizes, strict=False):
            symbols.check_outputs(specialized_model, context.options.output_shapes, sizes)
        loop_shapes.declare_rows(model.proto.graph, model.specialized, engine_shapes.inferred_body)
        # Types are the same in every set of shapes.
        types = collect_types(model.specialized[0])
        model.facts = replace(model.facts, types=types, specialized=model.specialized)
        for form in model.specialized:
            for claim, found in zip(model.proto.graph.output, form.graph.output, strict=True):
                if not agree(type_and_dims(claim)[1], type_and_dims(found)[1]):
                    wrong.append(claim)
        for claim in wrong:
            clear_shape(claim)


@compiler_pass()
def open_sizes_pass(model: Model, _: Context) -> None:
    """Leave sizes of inputs open if the engine accepts the branches of the model only in this form.

    A model may have branches for inputs of different sizes, such as sampling rates. With fixed sizes, the
    engine infers shapes in all branches and refuses a branch that does not fit, even if it never runs.
    """
    if not _has_branches(model):
        return
    opened = _opened(model.proto)
    if _refusal(model.proto, model) and not _refusal(opened, model):
        replace_graph(model.proto, opened)


def _has_branches(model: Model) -> bool:
    return any(find_nodes(nodes, {"If"}) for nodes in node_lists(model.proto))


def _refusal(proto: onnx.ModelProto, model: Model) -> str:
    """Return the engine's reason for refusing a graph; empty if it accepts the graph."""
    # After it folds constants, the engine infers shapes again with the values of the constants.
    view = with_weights_as_inputs(proto, model.weights)
    return engine_shapes.complete(view, (), model.library_paths, folding=True)


def _opened(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model without the sizes of all inputs, but with their ranks."""
    opened = clone(proto)
    for value in opened.graph.input:
        for position in range(len(value.type.tensor_type.shape.dim)):
            clear_dim(value, position)
    return opened
