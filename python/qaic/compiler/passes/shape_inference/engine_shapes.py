"""Types and shapes from the engine, for operators without a schema in onnx (``com.microsoft``).

The engine is used only if inference of onnx is incomplete, because each engine session takes milliseconds.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import onnx
from onnx import helper

from qaic.compiler.diagnostics.messages import engine_reason, refuse
from qaic.compiler.frontend import symbols
from qaic.compiler.frontend.specialization import copy_at
from qaic.compiler.ir import shape_arithmetic
from qaic.compiler.ir.constants.weights import Weight, with_weights_as_inputs
from qaic.compiler.ir.elem_types import CODES, FLOAT
from qaic.compiler.ir.engine_session import engine_session
from qaic.compiler.ir.graph_edits import add_output, append_nodes, clone, describe_value, set_shape
from qaic.compiler.ir.graph_walk import FreshNames, producers
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.operand_ranks import first_rank_fault
from qaic.compiler.ir.precision import FLOAT_FORMATS
from qaic.compiler.ir.value_info import (
    collect_shapes,
    collect_types,
    dims_in,
    is_open,
    known_dims,
    shapes_in,
    untyped_values,
)
from qaic.compiler.passes.emulation.upcast_float16 import as_float32
from qaic.compiler.passes.legalize.empty_operands import drop_empty_operands
from qaic.compiler.passes.legalize.legalize_division import legalize_division
from qaic.compiler.passes.legalize.legalize_exports import legalize_where
from qaic.compiler.passes.legalize.legalize_padding import separate_pads
from qaic.compiler.passes.legalize.legalize_recurrent import legalize_recurrent
from qaic.compiler.passes.shape_inference import loop_shapes
from qaic.errors import QaicError

_log = logging.getLogger("qaic.compiler")

#: name of a type in the engine -> name in the compiler, if they differ
_SPELLINGS = {"float": "float32", "double": "float64"}


def complete(
    view: onnx.ModelProto, names: Sequence[str], libraries: Sequence[Path] = (), *, folding: bool = False
) -> str:
    """Write the types and shapes that the engine infers into `view`.

    `view` has its weights as inputs, and `names` are values that are not outputs. With `folding`, the engine
    first computes constants, which also yields shapes that the model computes from shapes. If the engine
    cannot load the model, `view` does not change, and the reason is returned; else "".
    """
    if fault := first_rank_fault(view):
        # Older engines end the process for these operands.
        return f"[ShapeInferenceError] {fault}"
    probe = clone(view)
    types = collect_types(view)
    # Before inference, the engine refuses a graph with operators for which it has no kernels.
    legalize_where(probe, types)
    legalize_division(probe, types, shapes_in(view))
    legalize_recurrent(probe, dims_in(view))
    drop_empty_operands(probe, types, dims_in(view))
    separate_pads(probe)
    is_widened = as_float32(probe)
    for name in names:
        add_output(probe.graph, name)
    ranked = clone(probe)
    ranks = _add_ranks(ranked, names)
    # Shapes do not depend on fused pairs of quantized graphs; see also `legalize_captured_values`.
    level = "ORT_ENABLE_BASIC" if folding else "ORT_DISABLE_ALL"
    load = partial(engine_session, level=level, libraries=libraries, fuses_pairs=False)
    try:
        try:
            session = load(ranked.SerializeToString())
        except Exception:  # noqa: BLE001 - as below
            # Sequences have no shape, and only the engine knows which values are sequences.
            ranks = {}
            session = load(probe.SerializeToString())
    except Exception as error:  # noqa: BLE001 - the engine has no exception type of its own; its check comes later
        return str(error).strip()
    makers = producers(view.graph.node)
    declared = {value.name: value for value in (*view.graph.value_info, *view.graph.output)}
    results = {found.name: found for found in session.get_outputs()}
    for name, found in results.items():
        if name in ranks.values():
            continue
        value = declared.get(name)
        if value is None:
            value = describe_value(view.graph, found.name)
        spelling = found.type.removeprefix("tensor(").removesuffix(")")
        code = CODES.get(_SPELLINGS.get(spelling, spelling))
        if code is None or not found.type.startswith("tensor("):
            continue
        tensor = value.type.tensor_type
        if not is_widened:
            tensor.elem_type = code
        elif not tensor.elem_type:
            tensor.elem_type = types[found.name] = _before_widening(makers[found.name], types, code)
        # The engine reports values of unknown rank as scalars.
        is_scalar = name in ranks and results[ranks[name]].shape == [0]
        if known_dims(value) is not None or found.shape is None or not (found.shape or is_scalar):
            continue
        set_shape(value, [size if isinstance(size, int) and size >= 0 else None for size in found.shape])
    return ""


def _add_ranks(probe: onnx.ModelProto, names: Sequence[str]) -> dict[str, str]:
    """Add outputs whose shapes contain the ranks of values; returns value -> output."""
    graph = probe.graph
    fresh = FreshNames(graph)
    open_names = [
        value.name
        for value in graph.output
        if (value.name in names or known_dims(value) is None) and not value.type.HasField("sequence_type")
    ]
    ranks = {name: fresh.make(name, "shape") for name in open_names}
    append_nodes(graph, [helper.make_node("Shape", [name], [shape]) for name, shape in ranks.items()])
    for shape in ranks.values():
        add_output(graph, shape)
    return ranks


def _before_widening(node: onnx.NodeProto, types: Mapping[str, int], widened: int) -> int:
    """Return the element type of a result in the model, from its type `widened` in the probe.

    The probe has float32 instead of float16 and bfloat16. Operators without a schema in onnx have the type of
    their first float operand.
    """
    if widened != FLOAT:
        return widened
    return next((types[name] for name in node.input if types.get(name, 0) in FLOAT_FORMATS), FLOAT)


def inferred(
    model: onnx.ModelProto, weights: dict[str, Weight], libraries: Sequence[Path] = ()
) -> onnx.ModelProto:
    """Infer the types and shapes of a model whose inputs have fixed shapes.

    Returns a copy with the weights as inputs after the other inputs. Raises CompileError if the shape of an
    output does not follow from the shapes of the inputs, or if the model contradicts itself.
    """
    found = inferred_alone(with_weights_as_inputs(model, weights))
    padding: dict[str, list[int]] = {}
    while wrong := loop_shapes.correction(found):
        padding |= wrong
        view = with_weights_as_inputs(model, weights)
        loop_shapes.correct(view, padding)
        found = inferred_alone(view)
    missing = untyped_values(found.graph)
    if missing or _open_outputs(found):
        problem = complete(found, missing, libraries)
        if problem and _open_outputs(found):
            raise refuse(
                f"shape of output {_open_outputs(found)[0]!r}",
                code="engine_refused",
                found=f"a graph that the engine refuses ({engine_reason(RuntimeError(problem))})",
                expected="operators that fit their inputs",
                fix="check the model, and the shapes given with onnx_define_symbol and model_inputs",
            )
        if not problem and _open_outputs(found):
            complete(found, _unshaped_values(found), libraries, folding=True)
    return found


def forms_with(model: Model, names: Sequence[str]) -> list[onnx.ModelProto]:
    """Infer a model in each set of shapes, with sizes that it computes from shapes; [] if inference fails.

    `names` are values whose shapes are needed; only the engine may know them.
    """
    try:
        sets = range(len(model.symbol_sizes))
        found = [inferred(copy_at(model, at), model.weights, model.library_paths) for at in sets]
        for form in found:
            shape_arithmetic.complete(form)
            if not collect_shapes(form).keys() >= {*names}:
                complete(form, names, model.library_paths, folding=True)
    except QaicError as error:
        _log.debug("sizes are unknown: %s", error)
        return []
    return found


def inferred_alone(view: onnx.ModelProto) -> onnx.ModelProto:
    """Infer more shapes without the engine; changes `view`."""
    found = symbols.infer(view)
    while True:
        # Results of a loop may give the shapes of a later loop.
        while loop_shapes.complete(found, inferred_body):
            found = symbols.infer_further(found)
        makes_lists = any(value.type.HasField("sequence_type") for value in found.graph.output)
        if not (makes_lists or _open_outputs(found)):
            return found
        shape_arithmetic.complete(found)
        if not loop_shapes.complete(found, inferred_body):
            return found
        found = symbols.infer_further(found)


def inferred_body(view: onnx.ModelProto) -> onnx.ModelProto:
    """Infer the body of a loop, with the engine if onnx cannot infer all shapes; changes `view`."""
    found = inferred_alone(view)
    if _open_outputs(found):
        complete(found, untyped_values(found.graph))
    return found


def _unshaped_values(model: onnx.ModelProto) -> list[str]:
    """List the results of nodes of the main graph, except outputs, whose shapes are not known."""
    known = collect_shapes(model).keys() | {value.name for value in model.graph.output}
    return [name for node in model.graph.node for name in node.output if name and name not in known]


def _open_outputs(model: onnx.ModelProto) -> list[str]:
    """List the outputs that are tensors without a complete shape."""
    return [value.name for value in model.graph.output if is_open(value)]
