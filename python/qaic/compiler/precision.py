"""The float16 pass as a whole: what has to happen before rounding, and what to tell the user after it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qaic.compiler.bn_fold import fold_batch_normalization
from qaic.compiler.elem_types import DOUBLE, FLOAT16
from qaic.compiler.graph_walk import all_nodes
from qaic.compiler.half_models import mentions_half, widen
from qaic.compiler.half_weights import Overflows
from qaic.compiler.initializers import lift_float_constants
from qaic.compiler.refusal import listing
from qaic.compiler.rounding import Rounder
from qaic.compiler.value_types import ValueFacts, collect_types, common_shapes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from qaic.compiler.weights import Weight

_log = logging.getLogger("qaic.compiler")


@dataclass(frozen=True, slots=True)
class FloatPrecision:
    """What the options say about floats.

    Parameters
    ----------
    convert_to_fp16 : bool
        Compute every float in float16; otherwise only what is float16 in the model.
    clip_constants : bool
        Constants beyond float16 become its largest finite value instead of infinity.
    """

    convert_to_fp16: bool = False
    clip_constants: bool = False


def needs_inlining(model: onnx.ModelProto, weights: dict[str, Weight], precision: FloatPrecision) -> bool:
    """Whether values inside the functions of a model are rounded."""
    return precision.convert_to_fp16 or mentions_half(model, weights)


def apply(
    model: onnx.ModelProto,
    weights: dict[str, Weight],
    forms: Sequence[onnx.ModelProto],
    precision: FloatPrecision,
) -> Overflows:
    """Round what has to be rounded; changes `model` and `weights`.

    Parameters
    ----------
    model : onnx.ModelProto
        Skeleton without model-local functions.
    weights : dict[str, Weight]
        Weights of the main graph.
    forms : Sequence[onnx.ModelProto]
        The same model with weights as inputs and the types and shapes of all values, once per set of shapes.
    precision : FloatPrecision
        What the options say.

    Returns
    -------
    Overflows
        Constants that do not fit, complete when all weights were read.
    """
    overflows = Overflows(clip=precision.clip_constants)
    # Which set of shapes it is makes no difference to a type.
    types = collect_types(forms[0])
    if not precision.convert_to_fp16 and FLOAT16 not in types.values():
        return overflows
    facts = ValueFacts(types, common_shapes(forms))
    _warn_untyped(model, types)
    if precision.convert_to_fp16 and DOUBLE in types.values():
        _log.warning("convert_to_fp16: the model has float64 tensors; they are treated as float32")
    lift_float_constants(model)
    halves = widen(model, weights, types)
    if precision.convert_to_fp16:
        fold_batch_normalization(model, weights)
        for tensor in model.graph.initializer:
            types.setdefault(tensor.name, tensor.data_type)
            facts.shapes.setdefault(tensor.name, tuple(tensor.dims))
        for weight in weights.values():
            types.setdefault(weight.name, weight.elem_type)
    elif not halves:
        return overflows
    Rounder(
        model, weights, facts, only=None if precision.convert_to_fp16 else halves, overflows=overflows
    ).run()
    return overflows


def report(overflows: Overflows) -> None:
    """Warn about constants beyond float16, once, after all of them were read."""
    if overflows.counts:
        total = sum(overflows.counts.values())
        became = "the largest finite value" if overflows.clip else "infinity; see clip_fp16_constants"
        _log.warning(
            "%d constants are beyond the range of float16 and became %s: %s",
            total,
            became,
            listing(sorted(overflows.counts)),
        )


def _warn_untyped(model: onnx.ModelProto, types: dict[str, int]) -> None:
    kinds = {
        f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        for node in all_nodes(model.graph.node)
        for name in node.output
        if name and name not in types
    }
    if kinds:
        _log.warning(
            "float16 rounding: the result types of %s are not known; they stay unrounded",
            listing(sorted(kinds)),
        )
