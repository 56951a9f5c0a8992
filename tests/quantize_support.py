"""Quantizing a model in memory with the compiler's pass alone."""

from __future__ import annotations

import onnx

from qaic.compiler.bn_fold import fold_batch_normalization
from qaic.compiler.checks import drop_unused
from qaic.compiler.inference import inferred
from qaic.compiler.precision_classes import PrecisionClass, classify
from qaic.compiler.quantize.insert import quantize
from qaic.compiler.value_types import ValueFacts, collect_shapes, collect_types
from qaic.compiler.weights import read_all
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
