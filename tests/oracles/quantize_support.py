"""Quantization of a model in memory, with only the compiler's pass."""

from __future__ import annotations

import onnx

from compiler_oracle import add_weights
from qaic.compiler.diagnostics.progress import Progress
from qaic.compiler.frontend import custom_ops
from qaic.compiler.frontend.validation import drop_unused
from qaic.compiler.ir.constants.float16_weights import Overflows
from qaic.compiler.ir.model import Context, Model
from qaic.compiler.ir.precision import PrecisionClass
from qaic.compiler.ir.value_info import ValueInfo, collect_types
from qaic.compiler.passes.assign_precision import decide
from qaic.compiler.passes.fold_batch_normalization import fold_batch_normalization
from qaic.compiler.passes.shape_inference.engine_shapes import inferred
from qaic.compiler.pipeline import PHASES
from qaic.options.table import CompileOptions

PASSES = PHASES["quantize"]


def context_of(options, profile=None):
    """Return the state of a compilation that writes no files."""

    def refuse(*_):
        message = "a program would be written"
        raise AssertionError(message)

    return Context(
        options,
        Progress("test"),
        write_program=refuse,
        work_folder=refuse,
        custom=custom_ops.read(()),
        for_integers=True,
        overflows=Overflows(clip=True),
        profile=profile,
    )


def quantized(model, profile, *, in_float=(), parts=None, **options):
    """Quantize a model of fixed shapes; `parts` receives weights, facts, classes and the plan."""
    context = context_of(CompileOptions(convert_to_quantize=True, **options), profile)
    result = onnx.ModelProto()
    result.CopyFrom(model)
    weights = {}
    fold_batch_normalization(result, weights, lambda conv, norm: True)
    known = inferred(result, weights)
    facts = ValueInfo(collect_types(known), [known])
    context.plan = decide(result, facts, context.options, profile.tensors)
    classes = context.plan.classes
    classes.update(dict.fromkeys(in_float, PrecisionClass.FP32))
    compiled = Model(result, weights, facts=facts)
    for step in PASSES:
        if step.is_needed(context):
            step.run(compiled, context)
    drop_unused(result, weights)
    add_weights(result, weights.values())
    if parts is not None:
        parts.update(weights=weights, facts=facts, classes=classes, plan=context.quantization)
    return result
