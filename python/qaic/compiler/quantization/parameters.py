"""Scales and offsets of tensors, from profiles or values and the options.

A weight of a convolution or matrix product has one scale, or one per output channel. The bias is quantized
after the weight. A kernel adds the bias to sums of products, so its scale must be input x weight. The
precision option determines the rounding before that. If an int32 cannot represent the numbers, the weight
gets a larger step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx

from qaic import _core
from qaic.compiler.diagnostics.messages import listing, note, refuse, warn
from qaic.compiler.ir.constants.in_graph import ConstantReader, multiplied
from qaic.compiler.ir.elem_types import FLOAT
from qaic.compiler.ir.graph_walk import attribute_of, standard
from qaic.compiler.ir.precision import PrecisionClass
from qaic.compiler.ir.quantization import (
    CalibrationProfile,
    Group,
    PlannedTable,
    PlannedWeight,
    QuantizedBias,
    QuantParams,
    TensorProfile,
)
from qaic.compiler.ir.value_info import ValueInfo
from qaic.options.table import CompileOptions
from qaic.support.text import counted

_BITS: Final = {"Int8": 8, "Int16": 16}

#: schemas with an offset of 0
_CENTERED: Final = frozenset({"symmetric", "symmetric_with_power2_scale"})


class QuantParamsChooser:
    """Chooses scales and offsets.

    `profile` belongs to the float graph; `options` contain schemas, precision and calibration.
    """

    def __init__(self, profile: CalibrationProfile, options: CompileOptions) -> None:
        self._tensors = profile.tensors
        self._activations = options.quantization_schema_activations
        self._constants = options.quantization_schema_constants
        self._method = options.quantization_calibration
        self._percentile = options.percentile_calibration_value
        self.bias_precision = options.quantization_precision_bias
        self._known: dict[tuple[str, str], QuantParams] = {}
        self._centered = 0
        #: tensors that calibration cannot shrink, because they have no histogram
        self._whole: list[str] = []

    def profiled(self, name: str) -> bool:
        """Return True if the profile contains a tensor."""
        return name in self._tensors

    def profile(self, name: str) -> TensorProfile | None:
        """Return the profile of a tensor."""
        return self._tensors.get(name)

    def spread(self, name: str) -> float:
        """Return the distance between the smallest and largest value of a tensor; 0 without a profile."""
        found = self._tensors.get(name)
        return 0.0 if found is None else found.maximum - found.minimum

    def activation(self, name: str, precision: str, *, scalar: bool) -> QuantParams:
        """Choose parameters of a profiled tensor; a scalar is never calibrated."""
        key = (name, precision)
        if key not in self._known:
            self._known[key] = self._choose(name, precision, scalar=scalar)
        return self._known[key]

    def of_range(self, name: str, precision: str) -> QuantParams:
        """Return the parameters for the range of a profiled tensor, without storing them."""
        if (fixed := self.fixed_params(name, precision)) is not None:
            return fixed
        low, high = self._tensors[name].minimum, self._tensors[name].maximum
        return QuantParams(*_core.quant_range(low, high, self._activations, precision), precision)

    def _choose(self, name: str, precision: str, *, scalar: bool) -> QuantParams:
        if (fixed := self.fixed_params(name, precision)) is not None:
            return fixed
        found = self._tensors[name]
        low, high = found.minimum, found.maximum
        if self._method != "None" and not scalar:
            if found.histogram is None:
                self._whole.append(name)
            else:
                low, high = _core.calibrate_range(
                    found.histogram, low, high, self._method, self._activations, precision, self._percentile
                )
        scale, offset = _core.quant_range(low, high, self._activations, precision)
        return QuantParams(scale, offset, precision)

    def fixed(self, name: str, precision: str) -> TensorProfile | None:
        """Find the entry of a tensor whose parameters a file fixed for this precision.

        Parameters for another precision still contain a range.
        """
        found = self._tensors.get(name)
        return found if found is not None and found.is_fixed and found.bits == _BITS[precision] else None

    def fixed_params(self, name: str, precision: str) -> QuantParams | None:
        """Return the parameters of a whole tensor that a file fixed for this precision."""
        found = self.fixed(name, precision)
        if found is None or found.scale is None:
            return None
        return QuantParams(found.scale, found.offset or 0, precision)

    def constant(self, low: float, high: float, precision: str) -> tuple[float, int]:
        """Choose the scale and offset for the range of a constant or bias."""
        return _core.quant_range(low, high, self._constants, precision)

    def channels(
        self, lows: npt.NDArray[np.float32], highs: npt.NDArray[np.float32], precision: str
    ) -> tuple[npt.NDArray[np.float32], int]:
        """Choose a scale per channel of a weight and the one offset that they share.

        Kernels have one zero point for all channels. If the schema gives channels different zero points, all
        channels are quantized with the schema `symmetric`.
        """
        pairs = [
            self.constant(low, high, precision)
            for low, high in zip(lows.tolist(), highs.tolist(), strict=True)
        ]
        offsets = {offset for _, offset in pairs}
        if len(offsets) > 1:
            self._centered += 1
            pairs = [
                _core.quant_range(low, high, "symmetric", precision)
                for low, high in zip(lows.tolist(), highs.tolist(), strict=True)
            ]
            offsets = {0}
        return np.array([scale for scale, _ in pairs], np.float32), offsets.pop()

    def report(self) -> None:
        """Report the decisions that differ from the options, once."""
        if self._whole:
            warn(
                "quantization.no_histogram",
                f"quantization_calibration={self._method} has no effect on "
                f"{counted(len(self._whole), 'tensor')} without a histogram in the profile: "
                f"{listing(self._whole)}",
                nodes=self._whole,
            )
        if self._centered and self._constants not in _CENTERED:
            note(
                "quantization.one_offset",
                f"quantization: offset 0, as with schema symmetric, for {counted(self._centered, 'weight')} "
                f"with a scale per channel, because {self._constants} gives the channels different offsets",
            )


@dataclass(frozen=True, slots=True)
class FloatGraph:
    """A graph whose nodes will be quantized, and facts about it."""

    graph: onnx.GraphProto
    constants: ConstantReader
    facts: ValueInfo
    #: precision of each node, by first output
    classes: Mapping[str, PrecisionClass]
    parameters: QuantParamsChooser


def value_range(
    values: npt.NDArray[np.float32], name: str, axis: int | None = None
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Find the smallest and the largest value of a constant, or of each of its channels.

    Raises CompileError if a value is not finite.
    """
    others = None if axis is None else tuple(i for i in range(values.ndim) if i != axis)
    low = np.asarray(np.min(values, axis=others, initial=0))
    high = np.asarray(np.max(values, axis=others, initial=0))
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        count = int(np.count_nonzero(~np.isfinite(values)))
        raise refuse(
            f"constant {name!r}",
            code="not_finite",
            found=f"infinite values or NaN ({count})",
            expected="finite values, to quantize it",
            fix="repair the model, or keep its operator in float with keep_original_precision_for_nodes",
            context={"tensor": name, "count": count},
        )
    return low, high


_INT32_MAX: Final = 2**31 - 1
#: smallest product of scales that a float32 represents with all its digits, for any rounding
_SMALLEST: Final = 2.0**-125
#: largest scale
_LARGEST: Final = 2.0**127


def quantize_bias(
    bias: npt.NDArray[np.float32],
    input_scale: float,
    weight_scales: npt.NDArray[np.float32],
    parameters: QuantParamsChooser,
    *,
    integer_kernel: bool,
) -> QuantizedBias:
    """Quantize a bias.

    `bias` has one finite float per output channel, and `weight_scales` has one for all or one per output
    channel. The float kernels of 16-bit quantization accept a bias of any scale, so without `integer_kernel`
    a scale per tensor need not be raised. Returns as many scales as there are weight scales.
    """
    data = np.float64(np.float32(input_scale))
    # Kernels multiply their sums by this product as a float32; a product of zero would also remove the bias.
    raised = np.maximum(weight_scales.astype(np.float64), _SMALLEST / data).astype(np.float32)
    bias_scales = _scales(data, raised)
    groups = [bias] if len(weight_scales) == 1 else [bias[i : i + 1] for i in range(len(bias))]
    exact = bias.astype(np.float64)
    per_channel = len(groups) > 1
    eight_bits = parameters.bias_precision == "Int8"
    for index, group in enumerate(groups):
        low, high = min(0.0, float(group.min(initial=0))), max(0.0, float(group.max(initial=0)))
        if low == high:
            continue
        wanted, offset = parameters.constant(low, high, parameters.bias_precision)
        if bias_scales[index] >= wanted:
            continue
        largest = max(-low, high)
        if eight_bits:
            levels = _core.quantize_tensor(group, wanted, offset, "Int8").astype(np.float64) - offset
            decoded = np.float64(np.float32(wanted)) * levels
            start = index if per_channel else 0
            exact[start : start + len(group)] = decoded
            largest = float(np.abs(decoded).max())
        # A scale may be as small as the smallest float32, so this check precedes any division by it.
        if largest <= _INT32_MAX * float(bias_scales[index]) and (eight_bits or not per_channel):
            continue
        if not integer_kernel and (eight_bits or not per_channel):
            bias_scales[index] = wanted
            continue
        step, _ = parameters.constant(low, high, "Int32")
        raised[index] = min(step / data, _LARGEST)
        bias_scales[index] = _scales(data, raised[index])
    levels = np.rint(exact / bias_scales)
    values = np.clip(levels, -_INT32_MAX, _INT32_MAX).astype(np.int32)
    return QuantizedBias(values, bias_scales.astype(np.float32), raised)


def _scales(data: np.float64, weights: npt.NDArray[np.float32] | np.float32) -> npt.NDArray[np.float64]:
    """Multiply scales as float32 does, without infinity."""
    exact = np.minimum(data * np.asarray(weights, np.float64), _LARGEST)
    return exact.astype(np.float32).astype(np.float64)


_CONVOLUTIONS: Final = frozenset({"Conv", "ConvTranspose"})


def plan_weight(
    group: Group,
    constants: ConstantReader,
    parameters: QuantParamsChooser,
    options: CompileOptions,
    *,
    precision: str,
    input_scale: float,
) -> PlannedWeight:
    """Choose the parameters of the weight and bias of a Conv, ConvTranspose, Gemm or MatMul.

    The node of the group satisfies `has_constant_kernel`. `input_scale` is that of the data operand. Raises
    CompileError if a value is not finite, or a file has parameters along another axis than that of the output
    channels.
    """
    node = group.node
    weight = constants.weight(node.input[1])
    channel_axis, channels = output_channels(node, weight.dims)
    factors, bias = affine(group, constants, channels)
    values = constants.read(weight.name)
    if channel_axis is None:
        factors = None
    if factors is not None and channel_axis is not None:
        values = multiplied(values, factors, channel_axis)
    # Parameters from a file for a weight do not apply to its product with factors.
    fixed = parameters.fixed(weight.name, precision) if factors is None else None
    along = channel_axis if is_per_channel(node, options) else None
    scales, offset, axis = _choose(
        node, values, channel_axis, parameters, fixed=fixed, along=along, precision=precision
    )
    quantized = None
    if bias is not None:
        quantized = quantize_bias(bias, input_scale, scales, parameters, integer_kernel=precision == "Int8")
    return PlannedWeight(weight.name, scales, offset, axis, factors, channel_axis, quantized)


def output_channels(node: onnx.NodeProto, dims: tuple[int, ...]) -> tuple[int | None, int]:
    """Return the axis of the output channels in a weight, None if it is not one, and their number."""
    if node.op_type == "Conv":
        return 0, dims[0]
    if node.op_type == "ConvTranspose":
        groups = attribute_of(node, "group", 1)
        return (1 if groups == 1 else None), dims[1] * groups
    if node.op_type == "Gemm":
        axis = 0 if attribute_of(node, "transB", 0) else 1
        return axis, dims[axis]
    return (1 if len(dims) == 2 else None), dims[-1]


def affine(
    group: Group, constants: ConstantReader, channels: int
) -> tuple[npt.NDArray[np.float32] | None, npt.NDArray[np.float32] | None]:
    """Collect the operations of a group on its sums of products.

    Returns factors and bias, one number per output channel; None if there are no such operations.
    """
    node = group.node
    alpha, beta = (
        attribute_of(node, name, 1.0) if node.op_type == "Gemm" else 1.0 for name in ("alpha", "beta")
    )
    factors = np.full(channels, alpha, np.float32)
    bias = np.zeros(channels, np.float32)
    has_bias = len(node.input) > 2 and bool(node.input[2])
    if has_bias:
        values = constants.read(node.input[2]).reshape(-1)
        value_range(values, node.input[2])
        bias = bias + values * np.float32(beta)
    for kind, name in group.affine:
        values = constants.read(name).reshape(-1)
        value_range(values, name)
        if kind == "Mul":
            factors, bias = factors * values, bias * values
        elif kind == "Div":
            factors, bias = factors / values, bias / values
        else:
            bias = bias + values if kind == "Add" else bias - values
            has_bias = True
    return (None if (factors == 1).all() else factors), (bias if has_bias else None)


def _choose(
    node: onnx.NodeProto,
    values: npt.NDArray[np.float32],
    channel_axis: int | None,
    parameters: QuantParamsChooser,
    *,
    fixed: TensorProfile | None,
    along: int | None,
    precision: str,
) -> tuple[npt.NDArray[np.float32], int, int | None]:
    """Choose scales and offset of a weight, and the axis they are along; a file may have fixed them."""
    lows, highs = value_range(values, node.input[1], along)
    if fixed is not None and fixed.scale is not None:
        return np.array([fixed.scale], np.float32), fixed.offset or 0, None
    if fixed is not None and fixed.channel_scales is not None and channel_axis is not None:
        _check_axis(node, values.ndim, channel_axis, fixed.channel_axis)
        offsets = {0} if fixed.channel_offsets is None else set(fixed.channel_offsets.tolist())
        if len(fixed.channel_scales) == values.shape[channel_axis] and len(offsets) == 1:
            return fixed.channel_scales.astype(np.float32), offsets.pop(), channel_axis
    if along is None:
        scale, offset = parameters.constant(float(lows), float(highs), precision)
        return np.array([scale], np.float32), offset, None
    scales, offset = parameters.channels(lows, highs, precision)
    return scales, offset, along


def _check_axis(node: onnx.NodeProto, rank: int, channel_axis: int, axis: int | None) -> None:
    """Refuse parameters along another axis than that of the output channels."""
    if axis is None or axis % rank == channel_axis:
        return
    raise refuse(
        f"external_quantization_file: constant {node.input[1]!r}",
        code="quantization_axis",
        found=f"parameters along axis {axis}",
        expected=f"one for the tensor, or along axis {channel_axis}, the output channels of {node.op_type}",
        fix="create the file with one scale per output channel",
        context={"tensor": str(node.input[1]), "axis": axis},
    )


def is_per_channel(node: onnx.NodeProto, options: CompileOptions) -> bool:
    """Return True if each output channel of a weight gets a scale, if they are one axis."""
    return options.enable_channelwise if node.op_type in _CONVOLUTIONS else options.enable_rowwise


def has_constant_kernel(node: onnx.NodeProto, constants: ConstantReader) -> bool:
    """Return True if weight and bias of a node are constants that can be quantized with the operator.

    A bias has one number per output channel.
    """
    if not constants.is_float(node.input[1]):
        return False
    if len(node.input) < 3 or not node.input[2]:
        return True
    bias, weight = constants.describe(node.input[2]), constants.describe(node.input[1])
    if bias is None or weight is None or not constants.is_float(node.input[2]):
        return False
    if node.op_type in _CONVOLUTIONS:
        return True
    channels = weight.dims[0] if attribute_of(node, "transB", 0) else weight.dims[1]
    return all(size == 1 for size in bias.dims[:-1]) and (bias.dims or (1,))[-1] in {1, channels}


def is_rowwise(
    node: onnx.NodeProto, constants: ConstantReader, options: CompileOptions, precision: str
) -> bool:
    """Return True if a node gathers rows of a constant table, and the rows are quantized separately."""
    if not standard(node, "Gather") or not options.enable_rowwise:
        return False
    weight = constants.describe(node.input[0])
    return (
        precision == "Int8"
        and weight is not None
        and weight.elem_type == FLOAT
        and len(weight.dims) > 1
        and min(weight.dims) > 0
        and attribute_of(node, "axis", 0) == 0
    )


def plan_table(name: str, constants: ConstantReader) -> PlannedTable:
    """Choose a step for every row of a table. Raises CompileError if a value is not finite."""
    values = constants.read(name)
    rows = values.reshape(len(values), -1)
    value_range(rows, name)
    low, high = rows.min(axis=1), rows.max(axis=1)
    step = ((high.astype(np.float64) - low) / 255).astype(np.float32)
    step[step == 0] = 1
    return PlannedTable(name, step, low)
