"""Quantizing a model in memory with the compiler's pass alone."""

from __future__ import annotations

import onnx

from qaic.compiler.frontend.validation import drop_unused
from qaic.compiler.ir.precision import PrecisionClass
from qaic.compiler.ir.value_info import ValueFacts, collect_shapes, collect_types
from qaic.compiler.ir.weights import read_all
from qaic.compiler.passes.assign_precision import classify
from qaic.compiler.passes.fold_batch_normalization import fold_batch_normalization
from qaic.compiler.passes.shape_inference.inference import inferred
from qaic.compiler.quantization.insert_qdq import quantize
from qaic.options.models import CompileOptions


def quantized(model, profile, *, in_float=(), parts=None, **options):
    """Quantize a model of fixed shapes; `parts` receives weights, facts and classes."""
    chosen = CompileOptions(**options)
    result = onnx.ModelProto()
    result.CopyFrom(model)
    weights = {}
    fold_batch_normalization(result, weights, lambda conv, norm: True)
    known = inferred(result, weights)
    facts = ValueFacts(collect_types(known), collect_shapes(known))
    classes = classify(result, facts, chosen, profile.tensors)
    classes.update(dict.fromkeys(in_float, PrecisionClass.FP32))
    quantize(result, weights, facts, classes, profile=profile, options=chosen)
    drop_unused(result, weights)
    for weight in weights.values():
        result.graph.initializer.append(
            onnx.TensorProto(
                name=weight.name,
                data_type=weight.elem_type,
                dims=weight.dims,
                raw_data=read_all(weight.source),
            )
        )
    if parts is not None:
        parts.update(weights=weights, facts=facts, classes=classes)
    return result
