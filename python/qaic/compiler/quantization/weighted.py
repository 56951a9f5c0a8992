"""Convolutions and matrix products with a constant weight: the operators that integers make fast.

A weight has one scale, or one per output channel; the bias is quantized after it. A matrix
product with a bias becomes a Gemm, for which the engine has a kernel that adds the bias to the sums; data of
more than two dimensions are folded to two and back, as integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from qaic.compiler.diagnostics.compile_error import refuse
from qaic.compiler.ir.constants import read_array
from qaic.compiler.ir.elem_types import INT8, INT16
from qaic.compiler.ir.precision import PrecisionClass
from qaic.compiler.ir.weights import Weight
from qaic.compiler.quantization.parameters import value_range
from qaic.compiler.quantization.quantize_bias import settle
from qaic.compiler.quantization.quantized_tensor import quantized_weight

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt
    import onnx

    from qaic.compiler.quantization.builder import Stored
    from qaic.compiler.quantization.groups import Unit
    from qaic.compiler.quantization.insert_qdq import Inserter

_CONVOLUTIONS: Final = frozenset({"Conv", "ConvTranspose"})


@dataclass(frozen=True, slots=True)
class _Kernel:
    """The weight of a node."""

    weight: Weight
    values: npt.NDArray[np.float32]
    #: axis of the output channels, None where they are not one axis
    axis: int | None
    channels: int


@dataclass(frozen=True, slots=True)
class ProductSource:
    """A float32 weight times a factor per output channel, multiplied while it is read."""

    inner: Weight
    factors: npt.NDArray[np.float32]
    axis: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.inner.source.nbytes

    def chunks(self) -> Iterator[bytes]:
        """Multiply all of it: one weight is small enough to be held."""
        yield _product(read_array(self.inner), self.factors, self.axis).tobytes()


def _product(
    values: npt.NDArray[np.float32], factors: npt.NDArray[np.float32], axis: int
) -> npt.NDArray[np.float32]:
    shape = [1] * values.ndim
    shape[axis] = len(factors)
    return values * factors.reshape(shape)


def write(inserter: Inserter, unit: Unit) -> None:
    """Write a unit of Conv, ConvTranspose, Gemm or MatMul with a constant weight."""
    node = unit.node
    source = inserter.integers(node.input[0])
    factors, bias = _affine(inserter, unit)
    kernel = _kernel(inserter, node, factors)
    scales, offset, axis = _parameters(inserter, node, kernel)
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


def _channels(node: onnx.NodeProto, dims: tuple[int, ...]) -> tuple[int | None, int]:
    """Tell the axis of the output channels in a weight, None where it is not one, and their number."""
    numbers = _attributes(node)
    if node.op_type == "Conv":
        return 0, dims[0]
    if node.op_type == "ConvTranspose":
        groups = int(numbers.get("group", 1))
        return (1 if groups == 1 else None), dims[1] * groups
    if node.op_type == "Gemm":
        axis = 0 if numbers.get("transB", 0) else 1
        return axis, dims[axis]
    return (1 if len(dims) == 2 else None), dims[-1]


def _kernel(inserter: Inserter, node: onnx.NodeProto, factors: npt.NDArray[np.float32] | None) -> _Kernel:
    """Read the weight of a node, with the factors of its unit multiplied into it."""
    name = node.input[1]
    weight = inserter.constants.describe(name)
    if weight is None:
        raise KeyError(name)
    values = inserter.constants.read(name)
    axis, channels = _channels(node, weight.dims)
    if factors is not None and axis is not None:
        product = ProductSource(weight, factors, axis)
        weight = Weight(inserter.fresh.make(name, "scaled"), weight.elem_type, weight.dims, product)
        values = _product(values, factors, axis)
    return _Kernel(weight, values, axis, channels)


def _affine(
    inserter: Inserter, unit: Unit
) -> tuple[npt.NDArray[np.float32] | None, npt.NDArray[np.float32] | None]:
    """Collect what a unit does to its sums of products.

    Returns
    -------
    factors, bias : ndarray or None
        One number per output channel; None where there is nothing to multiply or to add.
    """
    import numpy as np

    node = unit.node
    weight = inserter.constants.describe(node.input[1])
    if weight is None:
        raise KeyError(node.input[1])
    _, channels = _channels(node, weight.dims)
    numbers = _attributes(node) if node.op_type == "Gemm" else {}
    factors = np.full(channels, numbers.get("alpha", 1.0), np.float32)
    bias = np.zeros(channels, np.float32)
    has_bias = len(node.input) > 2 and bool(node.input[2])
    if has_bias:
        values = inserter.constants.read(node.input[2]).reshape(-1)
        value_range(values, node.input[2])
        bias = bias + values * np.float32(numbers.get("beta", 1.0))
    for kind, name in unit.affine:
        values = inserter.constants.read(name).reshape(-1)
        value_range(values, name)
        if kind == "Mul":
            factors, bias = factors * values, bias * values
        elif kind == "Div":
            factors, bias = factors / values, bias / values
        else:
            bias = bias + values if kind == "Add" else bias - values
            has_bias = True
    for attribute in node.attribute:
        if attribute.name in {"alpha", "beta"} and node.op_type == "Gemm":
            attribute.f = 1.0
    return (None if (factors == 1).all() else factors), (bias if has_bias else None)


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
        _check_axis(node, kernel, fixed.channel_axis)
        offsets = {0} if fixed.channel_offsets is None else set(fixed.channel_offsets.tolist())
        if len(fixed.channel_scales) == kernel.channels and len(offsets) == 1:
            return fixed.channel_scales.astype(np.float32), offsets.pop(), kernel.axis
    if axis is None:
        scale, offset = inserter.parameters.constant(float(lows), float(highs), inserter.precision)
        return np.array([scale], np.float32), offset, None
    scales, offset = inserter.parameters.channels(lows, highs, inserter.precision)
    return scales, offset, axis


def _check_axis(node: onnx.NodeProto, kernel: _Kernel, axis: int | None) -> None:
    """Refuse parameters along another axis than that of the output channels."""
    rank = kernel.values.ndim
    if axis is None or axis % rank == kernel.axis:
        return
    raise refuse(
        f"external_quantization_file: constant {node.input[1]!r}",
        code="quantization_axis",
        found=f"parameters along axis {axis}",
        expected=f"one for the tensor, or along axis {kernel.axis}, the output channels of a {node.op_type}",
        fix="quantize per output channel where the file is made",
        context={"tensor": str(node.input[1]), "axis": axis},
    )


def _attributes(node: onnx.NodeProto) -> dict[str, float]:
    return {a.name: a.f if a.type == a.FLOAT else float(a.i) for a in node.attribute}


def _per_channel(inserter: Inserter, node: onnx.NodeProto) -> bool:
    options = inserter.options
    return options.enable_channelwise if node.op_type in _CONVOLUTIONS else options.enable_rowwise


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
