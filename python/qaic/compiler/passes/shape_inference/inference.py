"""Types and shapes of all values, with the engine's help where onnx does not know an operator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx

from qaic.compiler.diagnostics.compile_error import refuse
from qaic.compiler.frontend import symbols
from qaic.compiler.ir.constants.weights import Weight, with_weights_as_inputs
from qaic.compiler.ir.value_info import collect_shapes, known_dims, untyped_values
from qaic.compiler.passes.shape_inference import (
    engine_shapes,
    loop_shapes,
    pool_shapes,
    shape_arithmetic,
)


def inferred(
    model: onnx.ModelProto, weights: dict[str, Weight], libraries: Sequence[Path] = ()
) -> onnx.ModelProto:
    """Infer the types and shapes of a model whose inputs have fixed shapes.

    Parameters
    ----------
    model : onnx.ModelProto
        Model without weight data.
    weights : dict[str, Weight]
        Weights of the main graph.
    libraries : Sequence[Path]
        Engine libraries with custom operators.

    Returns
    -------
    onnx.ModelProto
        A copy with the weights as inputs behind the others.

    Raises
    ------
    CompileError
        The shape of an output does not follow from those of the inputs, or the model contradicts itself.
    """
    found = inferred_alone(with_weights_as_inputs(model, weights))
    padding: dict[str, list[int]] = {}
    while wrong := pool_shapes.correction(found):
        padding |= wrong
        view = with_weights_as_inputs(model, weights)
        pool_shapes.correct(view, padding)
        found = inferred_alone(view)
    missing = untyped_values(found.graph)
    if missing or _open_outputs(found):
        problem = engine_shapes.complete(found, missing, libraries)
        if problem and _open_outputs(found):
            raise refuse(
                f"shape of output {_open_outputs(found)[0]!r}",
                code="invalid_model",
                found=f"a graph the engine refuses ({problem})",
                expected="operators that fit their inputs",
                fix="check the model, and the shapes given with onnx_define_symbol and model_inputs",
            )
        if not problem and _open_outputs(found):
            engine_shapes.complete(found, _unshaped_values(found), libraries, folding=True)
    return found


def inferred_alone(view: onnx.ModelProto) -> onnx.ModelProto:
    """Infer what follows without the engine; changes `view`."""
    found = symbols.infer(view)
    if loop_shapes.complete(found, inferred_body):
        found = symbols.infer_further(found)
    if _open_outputs(found):
        shape_arithmetic.complete(found)
    return found


def inferred_body(view: onnx.ModelProto) -> onnx.ModelProto:
    """Infer the body of a loop, whose nodes the engine may know better; changes `view`."""
    found = inferred_alone(view)
    if _open_outputs(found):
        engine_shapes.complete(found, untyped_values(found.graph))
    return found


def _unshaped_values(model: onnx.ModelProto) -> list[str]:
    """List the results of nodes of the main graph, outputs apart, whose shapes are not known."""
    known = collect_shapes(model).keys() | {value.name for value in model.graph.output}
    return [name for node in model.graph.node for name in node.output if name and name not in known]


def _open_outputs(model: onnx.ModelProto) -> list[str]:
    """List the outputs that are tensors without a complete shape."""
    return [
        value.name
        for value in model.graph.output
        if value.type.HasField("tensor_type") and known_dims(value) is None
    ]
