"""Convolutions and matrix products with a constant weight: the operators that integers make fast.

A weight has one scale, or one per output channel (compile-options §4.6); the bias follows §4.5. A matrix
product with a bias becomes a Gemm, for which the engine has a kernel that adds the bias to the sums; data of
more than two dimensions are folded to two and back, as integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from qaic.compiler.bn_fold import ScaledSource
from qaic.compiler.elem_types import INT8, INT16
from qaic.compiler.precision_classes import PrecisionClass
from qaic.compiler.quantize.bias import settle
from qaic.compiler.quantize.parameters import value_range
from qaic.compiler.quantize.storage import quantized_weight
from qaic.compiler.weights import Weight

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import onnx

    from qaic.compiler.quantize.insert import Inserter, Stored
    from qaic.compiler.quantize.units import Unit

_CONVOLUTIONS: Final = frozenset({"Conv", "ConvTranspose"})


@dataclass(frozen=True, slots=True)
class _Kernel:
    """The weight of a node."""

    weight: Weight
    values: npt.NDArray[np.float32]
    #: axis of the output channels, None where they are not one axis
    axis: int | None
    channels: int


def write(inserter: Inserter, unit: Unit) -> None:
    """Write a unit of Conv, ConvTranspose, Gemm or MatMul with a constant weight."""
    node = unit.node
    source = inserter.integers(node.input[0])
    kernel = _kernel(inserter, node)
    scales, offset, axis = _parameters(inserter, node, kernel)
    bias = _bias(inserter, unit, kernel)
    if bias is not None:
        settled = settle(
            bias,
            source.params.scale,
            scales,
            inserter.parameters,
            integer_kernel=inserter.kind is PrecisionClass.INT8,
        )
        scales = settled.weight_scales
    operands = [_dequantized_kernel(inserter, kernel, scales, offset, axis)]
    if bias is not None:
        operands.append(_dequantized_bias(inserter, unit, settled.values, settled.scales))
    if node.op_type == "MatMul" and bias is not None:
        _write_product(inserter, unit, source, kernel, operands)
        return
    data = inserter.real(node.input[0])
    del node.input[:]
    node.input.extend([data, *operands])
    inserter.finish(unit, node)


def _kernel(inserter: Inserter, node: onnx.NodeProto) -> _Kernel:
    """Read the weight of a node; the factors of a Gemm are multiplied into it."""
    import numpy as np

    name = node.input[1]
    weight = inserter.constants.describe(name)
    if weight is None:
        raise KeyError(name)
    numbers = _attributes(node)
    alpha = numbers.get("alpha", 1.0) if node.op_type == "Gemm" else 1.0
    if alpha != 1.0:
        factor = np.array([alpha], np.float32)
        renamed = inserter.fresh.make(name, "scaled")
        weight = Weight(renamed, weight.elem_type, weight.dims, ScaledSource(weight.source, factor))
        for attribute in node.attribute:
            if attribute.name == "alpha":
                attribute.f = 1.0
        values = inserter.constants.read(name) * factor
    else:
        values = inserter.constants.read(name)
    groups = int(numbers.get("group", 1))
    if node.op_type == "Conv":
        return _Kernel(weight, values, 0, weight.dims[0])
    if node.op_type == "ConvTranspose":
        return _Kernel(weight, values, 1 if groups == 1 else None, weight.dims[1] * groups)
    if node.op_type == "Gemm":
        axis = 0 if numbers.get("transB", 0) else 1
        return _Kernel(weight, values, axis, weight.dims[axis])
    if len(weight.dims) == 2:
        return _Kernel(weight, values, 1, weight.dims[1])
    return _Kernel(weight, values, None, weight.dims[-1])


def _parameters(
    inserter: Inserter, node: onnx.NodeProto, kernel: _Kernel
) -> tuple[npt.NDArray[np.float32], int, int | None]:
    """Choose scales and offset of a weight, and the axis they are along; a file may have fixed them."""
    import numpy as np

    axis = kernel.axis if _per_channel(inserter, node) else None
    lows, highs = value_range(kernel.values, kernel.weight.name, axis)
    fixed = inserter.parameters.fixed(kernel.weight.name, inserter.precision)
    if fixed is not None and fixed.scale is not None:
        return np.array([fixed.scale], np.float32), fixed.offset or 0, None
    if fixed is not None and fixed.channel_scales is not None and kernel.axis is not None:
        offsets = {0} if fixed.channel_offsets is None else set(fixed.channel_offsets.tolist())
        if len(fixed.channel_scales) == kernel.channels and len(offsets) == 1:
            return fixed.channel_scales.astype(np.float32), offsets.pop(), kernel.axis
    if axis is None:
        scale, offset = inserter.parameters.constant(float(lows), float(highs), inserter.precision)
        return np.array([scale], np.float32), offset, None
    scales, offset = inserter.parameters.channels(lows, highs, inserter.precision)
    return scales, offset, axis


def _attributes(node: onnx.NodeProto) -> dict[str, float]:
    return {a.name: a.f if a.type == a.FLOAT else float(a.i) for a in node.attribute}


def _per_channel(inserter: Inserter, node: onnx.NodeProto) -> bool:
    options = inserter.options
    return options.enable_channelwise if node.op_type in _CONVOLUTIONS else options.enable_rowwise


def _bias(inserter: Inserter, unit: Unit, kernel: _Kernel) -> npt.NDArray[np.float32] | None:
    """Add up the constants that are added to the result, one number per output channel.

    Returns
    -------
    ndarray or None
        None where there is nothing to add, or it is not one number per channel: then it stays an operand.
    """
    import numpy as np

    node = unit.node
    names = [*([node.input[2]] if len(node.input) > 2 and node.input[2] else []), *unit.biases]
    if not names:
        return None
    total = np.zeros(kernel.channels, np.float32)
    for name in names:
        values = inserter.constants.read(name).reshape(-1)
        value_range(values, name)
        if node.op_type == "Gemm" and name == names[0] and name not in unit.biases:
            values = values * np.float32(_attributes(node).get("beta", 1.0))
        total = total + values
    for attribute in node.attribute:
        if node.op_type == "Gemm" and attribute.name == "beta":
            attribute.f = 1.0
    return total


def has_channel_bias(inserter: Inserter, node: onnx.NodeProto) -> bool:
    """Whether the third input of a node is absent, or a constant with one number per output channel."""
    if len(node.input) < 3 or not node.input[2]:
        return True
    bias, weight = inserter.constants.describe(node.input[2]), inserter.constants.describe(node.input[1])
    if bias is None or weight is None or not inserter.constants.is_float(node.input[2]):
        return False
    if node.op_type in _CONVOLUTIONS:
        return True
    channels = weight.dims[0] if _attributes(node).get("transB", 0) else weight.dims[1]
    return all(size == 1 for size in bias.dims[:-1]) and (bias.dims or (1,))[-1] in {1, channels}


def _dequantized_kernel(
    inserter: Inserter,
    kernel: _Kernel,
    scales: npt.NDArray[np.float32],
    offset: int,
    axis: int | None,
) -> str:
    """Store a weight as integers, with a zero point of its own.

    Nothing is shared with other nodes: where the engine turns signed weights into unsigned ones, for x86
    without VNNI, it fails on weights and zero points that it meets twice (onnxruntime 1.31).
    """
    import numpy as np

    name = kernel.weight.name
    stored = inserter.fresh.make(name, "quantized")
    inserter.constants.add(
        quantized_weight(
            stored,
            kernel.weight,
            scales,
            offset,
            axis=axis,
            precision=inserter.precision,
            unsigned=False,
        )
    )
    inserter.note(stored, INT8 if inserter.precision == "Int8" else INT16, kernel.weight.dims)
    dtype = np.int8 if inserter.precision == "Int8" else np.int16
    return inserter.dequantized_weight(stored, scales, np.full(scales.shape, offset, dtype), name, axis)


def _dequantized_bias(
    inserter: Inserter, unit: Unit, values: npt.NDArray[np.int32], scales: npt.NDArray[np.float32]
) -> str:
    """Store a bias; its scale depends on the data, so it is never shared."""
    import numpy as np

    name = inserter.fresh.make(unit.output, "bias")
    inserter.constants.add_array(name, values)
    axis = 0 if len(scales) > 1 else None
    return inserter.dequantized_weight(name, scales, np.zeros(scales.shape, np.int32), name, axis)


def _write_product(
    inserter: Inserter, unit: Unit, source: Stored, kernel: _Kernel, operands: list[str]
) -> None:
    """Write a matrix product with a bias as a Gemm."""
    from onnx import helper

    node = unit.node
    shape = inserter.facts.shapes[node.output[0]]
    given = inserter.facts.shapes.get(node.input[0])
    if given is not None and len(given) == 2:
        data = inserter.real(node.input[0])
        inserter.finish(unit, helper.make_node("Gemm", [data, *operands], [unit.output]))
        return
    rows = inserter.reshaped(source, node.input[0], (-1, kernel.weight.dims[0]))
    data = inserter.dequantized(rows, node.input[0])
    raw = inserter.fresh.make(unit.output, "float")
    inserter.add(helper.make_node("Gemm", [data, *operands], [raw]))
    result = inserter.quantized_result(unit, raw)
    inserter.publish(unit.output, inserter.reshaped(result, unit.output, shape))
