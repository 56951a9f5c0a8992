"""Networks whose weights are integers with scales."""

from __future__ import annotations

import onnxscript
import torch
from onnxscript import FLOAT, INT8, INT64, UINT8, opset21
from onnxscript import opset18 as op
from torch import nn
from torch.ao.quantization.fx import _decomposed  # noqa: F401 - registers the operators
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from dynamo_models.recipe import Case, Recipe, normal

BLOCK, INTO, OUT = 8, 24, 6
BUILT_IN = onnxscript.values.Opset("com.qti.aisw.onnx", 1)


@onnxscript.script(BUILT_IN, default_opset=op)
def CastToUInt4(weight_packed: UINT8) -> UINT8:  # noqa: N802 - onnxscript has no name for UINT4
    """Convert each byte to two 4-bit numbers, the lower one first."""
    sixteen = op.CastLike(op.Constant(value_ints=[16]), weight_packed)
    four = op.CastLike(op.Constant(value_ints=[4]), weight_packed)
    lower = op.Unsqueeze(op.Mod(weight_packed, sixteen), [-1])
    upper = op.Unsqueeze(op.BitShift(weight_packed, four, direction="RIGHT"), [-1])
    last = op.Mul(op.Shape(weight_packed, start=-1), op.Constant(value_ints=[2]))
    sizes = op.Concat(op.Shape(weight_packed, end=-1), last, axis=0)
    return op.Cast(op.Reshape(op.Concat(lower, upper, axis=-1), sizes), to=21)


@torch.library.custom_op("openqaic_tools::unpack", mutates_args=())
def unpack(packed: torch.Tensor) -> torch.Tensor:
    """Convert each byte to two 4-bit numbers, the lower one first; in torch, they are uint8."""
    return torch.stack([packed % 16, packed // 16], dim=-1).flatten(-2)


@unpack.register_fake
def _(packed: torch.Tensor) -> torch.Tensor:
    return packed.new_empty((*packed.shape[:-1], 2 * packed.shape[-1]))


@torch.library.custom_op("openqaic_tools::dequantize_offset_blocks", mutates_args=())
def dequantize_offset_blocks(
    values: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor, block_size: int
) -> torch.Tensor:
    """Decode rows of unsigned numbers in blocks along the rows."""
    centered = values.float() - zero_points.float().repeat_interleave(block_size, dim=-1)
    return centered * scales.repeat_interleave(block_size, dim=-1)


@dequantize_offset_blocks.register_fake
def _(values: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor, block_size: int) -> torch.Tensor:
    del zero_points, block_size
    return scales.new_empty(values.shape)


def offset_blocks(values: UINT8, scales: FLOAT, zero_points: UINT8, block_size: int) -> FLOAT:
    """Translate `dequantize_offset_blocks`."""
    return opset21.DequantizeLinear(
        values, scales, op.Cast(zero_points, to=21), axis=-1, block_size=block_size
    )


@torch.library.custom_op("openqaic_tools::dequantize_blocks", mutates_args=())
def dequantize_blocks(values: torch.Tensor, scales: torch.Tensor, block_size: int) -> torch.Tensor:
    """Decode rows of int8 in blocks along the rows."""
    return values.float() * scales.repeat_interleave(block_size, dim=-1)


@dequantize_blocks.register_fake
def _(values: torch.Tensor, scales: torch.Tensor, block_size: int) -> torch.Tensor:
    del block_size
    return scales.new_empty(values.shape)


def blocks(values: INT8, scales: FLOAT, block_size: int) -> FLOAT:
    """Translate `dequantize_blocks`."""
    return opset21.DequantizeLinear(values, scales, axis=-1, block_size=block_size)


def rows_with_scales(
    values: INT8, scales: FLOAT, zero_points: INT64, axis: int, quant_min: int, quant_max: int, dtype: int
) -> FLOAT:
    """Translate torch's ``dequantize_per_channel``, which the exporter does not know."""
    del quant_min, quant_max, dtype
    return op.DequantizeLinear(values, scales, op.CastLike(zero_points, values), axis=axis)


class PackedWeights(nn.Module):
    """A linear layer over weights of four bits."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(21)
        self.register_buffer(
            "packed", torch.randint(256, (OUT, INTO // 2), generator=generator, dtype=torch.uint8)
        )
        self.register_buffer("scales", torch.rand((OUT, INTO // BLOCK), generator=generator) * 0.1 + 0.01)
        self.register_buffer(
            "zero_points", torch.randint(16, (OUT, INTO // BLOCK), generator=generator, dtype=torch.uint8)
        )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        operators = torch.ops.openqaic_tools
        values = operators.unpack(self.packed)
        return F.linear(
            features, operators.dequantize_offset_blocks(values, self.scales, self.zero_points, BLOCK)
        )


class BlockWeights(nn.Module):
    """A linear layer over int8 weights with a scale for each block."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(22)
        self.register_buffer(
            "values", torch.randint(-128, 128, (OUT, INTO), generator=generator, dtype=torch.int8)
        )
        self.register_buffer("scales", torch.rand((OUT, INTO // BLOCK), generator=generator) * 0.01 + 0.001)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return F.linear(features, torch.ops.openqaic_tools.dequantize_blocks(self.values, self.scales, BLOCK))


class ChannelWeights(nn.Module):
    """A quantized activation and int8 weights with a scale for each row, in torch's own operators."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(23)
        self.register_buffer(
            "values", torch.randint(-128, 128, (OUT, INTO), generator=generator, dtype=torch.int8)
        )
        self.register_buffer("scales", torch.rand(OUT, generator=generator) * 0.01 + 0.001)
        self.register_buffer("zero_points", torch.zeros(OUT, dtype=torch.int64))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        operators = torch.ops.quantized_decomposed
        x = operators.quantize_per_tensor(features, 0.03125, 3, -128, 127, torch.int8)
        x = operators.dequantize_per_tensor(x, 0.03125, 3, -128, 127, torch.int8)
        weight = operators.dequantize_per_channel(
            self.values, self.scales, self.zero_points, 0, -128, 127, torch.int8
        )
        return F.linear(x, weight)


def recipes() -> list[Recipe]:
    """List the exports of this file."""
    cases = [Case(f"batch{n}", {"features": normal(n, n, INTO)}, {"batch": n}) for n in (3, 1)]
    # The values are multiples of the activation's step, so rounding to float16 does not select other steps.
    on_grid = [
        Case(case.name, {name: (x * 32).round() / 32 for name, x in case.inputs.items()}, case.symbols)
        for case in cases
    ]
    operators = torch.ops.openqaic_tools
    shapes = {"features": {0: "batch"}}
    translations = {
        operators.unpack.default: CastToUInt4,
        operators.dequantize_offset_blocks.default: offset_blocks,
        operators.dequantize_blocks.default: blocks,
        torch.ops.quantized_decomposed.dequantize_per_channel.default: rows_with_scales,
    }
    return [
        *(
            Recipe(
                f"packed-weights{suffix}",
                PackedWeights().eval(),
                cases,
                18,
                ["sums"],
                shapes,
                translations=translations,
                optimize=bool(suffix),
            )
            for suffix in ("", "-optimized")
        ),
        Recipe(
            "block-weights", BlockWeights().eval(), cases, 21, ["sums"], shapes, translations=translations
        ),
        Recipe(
            "channel-weights",
            ChannelWeights().eval(),
            on_grid,
            21,
            ["sums"],
            shapes,
            translations=translations,
        ),
    ]
