"""Writing a Conv, ConvTranspose, Gemm or MatMul with its weight and bias as integers.

A matrix product with a bias becomes a Gemm, for which the engine has a kernel that adds the bias to the sums;
data of more than two dimensions are folded to two and back, as integers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import helper

from qaic.compiler.ir.constants.weights import Weight
from qaic.compiler.ir.elem_types import INT8, INT16
from qaic.compiler.ir.graph_edits import set_inputs
from qaic.compiler.ir.quantization import PlannedWeight, QuantizedBias, QuantizedGroup
from qaic.compiler.quantization.builder import QuantizedTensor
from qaic.compiler.quantization.quantized_tensor import quantized_weight
from qaic.compiler.quantization.weights import ProductSource

if TYPE_CHECKING:
    from qaic.compiler.quantization.insert_qdq import Inserter


def insert_kernel(inserter: Inserter, planned: QuantizedGroup, weight: PlannedWeight) -> None:
    """Write a group with a constant weight."""
    node = inserter.written(planned.group.node)
    source = inserter.integers(node.input[0], planned)
    kernel = _dequantized_weight(inserter, weight)
    operands = [kernel]
    if weight.bias is not None:
        operands.append(_dequantized_bias(inserter, planned.group.output, weight.bias))
    if node.op_type == "MatMul" and weight.bias is not None:
        _insert_product(inserter, planned, source, operands)
        return
    if node.op_type == "Gemm":
        # The weight and the bias are multiplied already.
        for attribute in node.attribute:
            if attribute.name in {"alpha", "beta"}:
                attribute.f = 1.0
    data = inserter.real(node.input[0], planned)
    set_inputs(node, [data, *operands])
    inserter.finish(planned, node)


def _float_weight(inserter: Inserter, weight: PlannedWeight) -> Weight:
    """Describe the weight of a group in float, with the factors multiplied into it."""
    found = inserter.constants.describe(weight.name)
    if found is None:
        raise KeyError(weight.name)
    if weight.factors is None or weight.channel_axis is None:
        return found
    product = ProductSource(found, weight.factors, weight.channel_axis)
    return Weight(inserter.fresh.make(weight.name, "scaled"), found.elem_type, found.dims, product)


def _dequantized_weight(inserter: Inserter, weight: PlannedWeight) -> str:
    """Store a weight as integers, with a zero point of its own.

    Nothing is shared with other nodes: where the engine turns signed weights into unsigned ones, for x86
    without VNNI, it fails on weights and zero points that it meets twice (onnxruntime 1.31).
    """
    found = _float_weight(inserter, weight)
    scales, offset, axis = weight.stored_scales, weight.offset, weight.axis
    stored = inserter.fresh.make(found.name, "quantized")
    inserter.constants.add(
        quantized_weight(
            stored, found, scales, offset, axis=axis, precision=inserter.precision, unsigned=False
        )
    )
    inserter.note(stored, INT8 if inserter.precision == "Int8" else INT16, found.dims)
    dtype = np.int8 if inserter.precision == "Int8" else np.int16
    zeros = np.full(scales.shape, offset, dtype)
    return inserter.dequantized_weight(stored, scales, zeros, found.name, axis)


def _dequantized_bias(inserter: Inserter, output: str, bias: QuantizedBias) -> str:
    """Store a bias; its scale depends on the data, so it is never shared."""
    name = inserter.fresh.make(output, "bias")
    inserter.constants.add_array(name, bias.values)
    axis = 0 if len(bias.scales) > 1 else None
    return inserter.dequantized_weight(name, bias.scales, np.zeros(bias.scales.shape, np.int32), name, axis)


def _insert_product(
    inserter: Inserter, planned: QuantizedGroup, source: QuantizedTensor, operands: list[str]
) -> None:
    """Write a matrix product with a bias as a Gemm."""
    node, output = planned.group.node, planned.group.output
    shape = inserter.facts.shapes[node.output[0]]
    given = inserter.facts.shapes.get(node.input[0])
    if given is not None and len(given) == 2:
        data = inserter.real(node.input[0], planned)
        inserter.finish(planned, helper.make_node("Gemm", [data, *operands], [output]))
        return
    weight = inserter.constants.describe(node.input[1])
    if weight is None:
        raise KeyError(node.input[1])
    rows = inserter.reshaped(source, node.input[0], (-1, weight.dims[0]))
    data = inserter.dequantized(rows, node.input[0])
    raw = inserter.fresh.make(output, "float")
    inserter.add(helper.make_node("Gemm", [data, *operands], [raw]))
    result = inserter.quantized_result(planned, raw)
    inserter.publish(output, inserter.reshaped(result, output, shape))
