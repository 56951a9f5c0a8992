"""Infers the type and shape of every value, in each specialization."""

from typing import Final

import onnx

from qaic.compiler.frontend import symbols
from qaic.compiler.frontend.specialization import copy_with
from qaic.compiler.ir.constants.weights import with_weights_as_inputs
from qaic.compiler.ir.context import Context, compiler_pass
from qaic.compiler.ir.graph_edits import clear_dim, clear_shape, clone, replace_graph
from qaic.compiler.ir.graph_walk import nodes_of
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.precision_ops import standard
from qaic.compiler.ir.value_info import ValueInfo, agree, collect_types, dims_of
from qaic.compiler.passes.inlining import inline_functions
from qaic.compiler.passes.shape_inference import engine_shapes
from qaic.compiler.passes.shape_inference.dynamic_shapes import infer_specializations
from qaic.compiler.passes.shape_inference.engine_shapes import inferred_alone
from qaic.compiler.passes.shape_inference.size_conflicts import SizeCheck, Sizes, refusal
from qaic.errors import CompileError

#: most sets of sizes that are checked one by one
_CHECKED: Final = 16


def _refuse_conflicts(model: Model, cause: CompileError | None = None, *, in_branches: bool = False) -> None:
    """Refuse a set of sizes that does not fit a node; of many sets, only some are checked."""
    check = SizeCheck(in_branches=in_branches)
    sets = range(len(model.symbol_sizes))
    # An odd stride, so that each of two symbols meets all sizes of the other.
    chosen = sets if len(sets) <= _CHECKED else sorted({at * 7919 % len(sets) for at in range(_CHECKED)})
    inferred = dict(enumerate(model.specialized)) if len(model.specialized) == len(sets) else {}
    for at in chosen:
        entry = model.requested[at] if len(sets) > 1 else None
        form = model.proto if entry is None else copy_with(model.proto, model.symbol_sizes[at], entry)
        view = inline_functions(with_weights_as_inputs(form, model.weights))
        try:
            is_known = at in inferred and not view.functions and not model.proto.functions
            conflict = check.find(inferred[at] if is_known else inferred_alone(clone(view)))
        except CompileError:
            if cause is None:
                raise
            continue
        if conflict is not None:
            name = entry.name if entry is not None else model.requested[0].name if model.requested else ""
            sizes = Sizes(model.input_dims, model.symbol_sizes[at], name)
            raise refusal(conflict, view, sizes, check) from cause


@compiler_pass()
def infer_shapes_pass(model: Model, context: Context) -> bool:
    """Infer types and shapes, unless the model already contains them.

    A shape that the file claims for an output is removed if inference contradicts it.
    """
    wrong: list[onnx.ValueInfoProto] = []
    if not model.specialized:
        try:
            model.specialized, model.known = infer_specializations(model)
        except CompileError as error:
            # Nothing is inferred with a size that is too large.
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
        # Types are the same in every set of shapes.
        model.facts = ValueInfo(collect_types(model.specialized[0]), model.specialized)
        for form in model.specialized:
            for claim, found in zip(model.proto.graph.output, form.graph.output, strict=True):
                if not agree(dims_of(claim.type.tensor_type), dims_of(found.type.tensor_type)):
                    wrong.append(claim)
        for claim in wrong:
            clear_shape(claim)
    return bool(wrong)


@compiler_pass()
def open_sizes_pass(model: Model, _: Context) -> bool:
    """Leave sizes of inputs open if the engine accepts branches only in this form.

    A model may choose between branches for inputs of different sizes, such as sampling rates. With fixed
    sizes the engine infers shapes in every branch and refuses one that does not fit, although it never runs.
    """
    if not _has_branches(model):
        return False
    opened = _opened(model.proto)
    if not _refusal(model.proto, model) or _refusal(opened, model):
        return False
    replace_graph(model.proto, opened)
    return True


def _has_branches(model: Model) -> bool:
    return any(standard(node, "If") for node in nodes_of(model.proto))


def _refusal(proto: onnx.ModelProto, model: Model) -> str:
    """Return the engine's reason for refusing a graph; empty if it accepts the graph."""
    # After folding constants, the engine infers shapes again with their values.
    view = with_weights_as_inputs(proto, model.weights)
    return engine_shapes.complete(view, (), model.library_paths, folding=True)


def _opened(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model without the sizes of all inputs, but with their ranks."""
    opened = clone(proto)
    for value in opened.graph.input:
        for position in range(len(value.type.tensor_type.shape.dim)):
            clear_dim(value, position)
    return opened
