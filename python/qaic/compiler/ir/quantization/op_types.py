"""Which operators can be quantized, and which of their operands take part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import onnx

from qaic.compiler.ir.graph_walk import STANDARD_DOMAINS

#: operators that only pick, move or repeat values: their output has the scale and offset of their input.
#: Split is several Slices.
VALUE_PRESERVING: Final = frozenset(
    {
        "DepthToSpace",
        "Expand",
        "Flatten",
        "Gather",
        "LRN",
        "MaxPool",
        "Reshape",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Tile",
        "TopK",
        "Transpose",
        "Unsqueeze",
    }
)

#: operators that compute, or choose between operands of different scales
_COMPUTING: Final = frozenset(
    {
        "Add",
        "AveragePool",
        "Clip",
        "Concat",
        "Conv",
        "ConvTranspose",
        "Div",
        "Erf",
        "Gelu",
        "Gemm",
        "GlobalAveragePool",
        "HardSigmoid",
        "HardSwish",
        "LeakyRelu",
        "MatMul",
        "Max",
        "Min",
        "Mul",
        "PRelu",
        "Pad",
        "ReduceMean",
        "Relu",
        "Resize",
        "Sigmoid",
        "Softmax",
        "Sub",
        "Tanh",
    }
)

#: operators of the standard set that can be quantized
QUANTIZABLE: Final = VALUE_PRESERVING | _COMPUTING

#: the same of other domains
_OTHER_DOMAINS: Final = frozenset({("com.microsoft", "Gelu")})

#: operators with a weight and a bias, which have rules of their own
WEIGHTED: Final = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})

#: operators all of whose inputs are operands; of the others it is the first one
_ALL_INPUTS: Final = frozenset({"Add", "Concat", "Div", "Max", "Min", "Mul", "PRelu", "Sub"})

#: outputs that hold values; of the others it is the first one
_ALL_OUTPUTS: Final = frozenset({"Split"})


@dataclass(frozen=True, slots=True)
class IntegerKernel:
    """From which operator set on the engine runs a kind on the integers themselves."""

    uint8: int
    #: None where it has no such kernel
    int16: int | None = None


#: Kinds that every engine we accept runs on integers when input and output have the same parameters.
#: onnxruntime 1.22 has no such kernels of TopK and SpaceToDepth.
INTEGER_KERNELS: Final[dict[str, IntegerKernel]] = {
    "Concat": IntegerKernel(4, 4),
    "DepthToSpace": IntegerKernel(11),
    "Expand": IntegerKernel(8, 8),
    "Flatten": IntegerKernel(9, 9),
    "Gather": IntegerKernel(1, 1),
    "MaxPool": IntegerKernel(12),
    "Pad": IntegerKernel(11),
    "Reshape": IntegerKernel(5, 5),
    "Resize": IntegerKernel(10),
    "Slice": IntegerKernel(1, 1),
    "Split": IntegerKernel(2, 2),
    "Squeeze": IntegerKernel(1, 1),
    "Tile": IntegerKernel(6, 6),
    "Transpose": IntegerKernel(1, 1),
    "Unsqueeze": IntegerKernel(1, 1),
}


def quantizable(node: onnx.NodeProto) -> bool:
    """Return whether a node can be quantized: by its kind, and by attributes that an integer kernel lacks."""
    if node.domain in STANDARD_DOMAINS:
        return node.op_type in QUANTIZABLE and not (node.op_type == "AveragePool" and _is_float_pool(node))
    return (node.domain, node.op_type) in _OTHER_DOMAINS


def _is_float_pool(node: onnx.NodeProto) -> bool:
    """Return whether the engine's integer kernel cannot compute an AveragePool.

    The kernel has no dilations, and counts what a rounded-up window has beyond the padding.
    """
    given = {attribute.name: attribute for attribute in node.attribute}
    if "dilations" in given and any(step != 1 for step in given["dilations"].ints):
        return True
    return all(name in given and given[name].i for name in ("ceil_mode", "count_include_pad"))


def operands(node: onnx.NodeProto) -> tuple[int, ...]:
    """Positions of the inputs that are quantized; weights and biases included, bounds and sizes not."""
    if node.op_type in _ALL_INPUTS or node.op_type in WEIGHTED:
        return tuple(position for position, name in enumerate(node.input) if name)
    return (0,) if node.input and node.input[0] else ()


def results(node: onnx.NodeProto) -> tuple[int, ...]:
    """Positions of the outputs that are quantized; indices and masks are not."""
    if node.op_type in _ALL_OUTPUTS:
        return tuple(position for position, name in enumerate(node.output) if name)
    return (0,) if node.output and node.output[0] else ()
