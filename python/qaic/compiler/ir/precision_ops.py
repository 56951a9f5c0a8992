"""Properties of operators when floats are rounded to a coarser format.

A format is the set of values of float16 or bfloat16, named by its element type.
"""

from collections.abc import Mapping
from typing import Final, TypeVar

import numpy as np
import onnx
from onnx import helper

from qaic.compiler.ir.elem_types import BFLOAT16, FLOAT16
from qaic.compiler.ir.graph_walk import STANDARD_DOMAINS

_T = TypeVar("_T")

#: element types whose values a float can be rounded to
FLOAT_FORMATS: Final = (FLOAT16, BFLOAT16)

#: operator -> inputs whose values its float outputs are picked from, None for all. If those are in a
#: format, so is the output: nothing is computed, or the result is a small integer, a sign, or a whole part.
_SELECTING: Final[dict[str, tuple[int, ...] | None]] = {
    **dict.fromkeys(
        (
            *("Abs", "Ceil", "Clip", "Concat", "DepthToSpace", "Flatten", "Floor", "GlobalMaxPool"),
            *("Identity", "Max", "Min", "Neg", "Relu", "Round", "Sign", "SpaceToDepth", "ThresholdedRelu"),
            *("Transpose",),
        ),
        None,
    ),
    **dict.fromkeys(
        (
            *("CenterCropPad", "Compress", "Dropout", "Expand", "Gather", "GatherElements", "GatherND"),
            *("MaxPool", "MaxUnpool", "ReduceMax", "ReduceMin", "Reshape", "ReverseSequence", "Slice"),
            *("Split", "Squeeze", "Tile", "TopK", "Trilu", "Unique", "Unsqueeze"),
        ),
        (0,),
    ),
    "OneHot": (2,),
    "Pad": (0, 2),
    "Scatter": (0, 2),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
    "Where": (1, 2),
}

#: selecting operators for which rounding the inputs is not the same as rounding the outputs: the floor of
#: 1025.5 is 1025, but that of its float16 is 1026. Computed on constants they must be folded first.
NOT_COMMUTING: Final = frozenset(
    {"Ceil", "Floor", "MaxPool", "Round", "Sign", "ThresholdedRelu", "TopK", "Unique"}
)

#: float inputs that are parameters of an operator rather than data. Rounding them would change shapes
#: (Resize, Range) or the steps of quantization; the card's compiler turns them into attributes.
_PARAMETERS: Final[dict[str, tuple[int, ...]]] = {
    "DequantizeLinear": (1,),
    "DynamicQuantizeMatMul": (2,),
    "MatMulIntegerToFloat": (2, 3),
    "MatMulNBits": (2, 3),
    "QuantizeLinear": (1,),
    "Range": (0, 1, 2),
    "Resize": (1, 2),
    "Upsample": (1,),
}

#: operators whose float outputs are such parameters
_PARAMETER_OUTPUTS: Final[dict[str, tuple[int, ...]]] = {"DynamicQuantizeLinear": (1,)}

#: attributes that carry a float which reaches the output unchanged
_SELECTED_ATTRIBUTES: Final[dict[str, tuple[str, ...]]] = {"Clip": ("min", "max"), "Pad": ("value",)}

#: operators that make a value from a shape alone; their results are constants for fixed shapes
SHAPE_READERS: Final = frozenset({"Shape", "Size"})

#: operators whose result differs from run to run, so they are never constant
RANDOM: Final = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)

#: results that a bias may be added to before the one rounding of the unit
BIAS_TAKERS: Final = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose"})

#: activations that commute with rounding, so they belong to the unit of the operator before them
COMMUTING: Final = frozenset({"Relu", "Clip"})


def standard(node: onnx.NodeProto, *op_types: str) -> bool:
    """Return whether a node is one of these operators of the standard set."""
    return node.op_type in op_types and node.domain in STANDARD_DOMAINS


def attribute_of(node: onnx.NodeProto, name: str, default: _T) -> _T:
    """Return the value of an attribute; the default if the node does not have it, or calls set it."""
    for attribute in node.attribute:
        if attribute.name == name and not attribute.ref_attr_name:
            value: _T = helper.get_attribute_value(attribute)
            return value
    return default


def behind(name: str, makers: Mapping[str, onnx.NodeProto], *op_types: str) -> str:
    """Follow a value through operators of some kinds, each to its first operand."""
    while (node := makers.get(name)) is not None and standard(node, *op_types):
        name = node.input[0]
    return name


def selected_inputs(node: onnx.NodeProto, float_format: int) -> tuple[int, ...] | None:
    """Positions of the inputs that the outputs of a selecting operator are picked from.

    None when the operator computes new values, or carries a value of its own that is not in the format.
    """
    if node.domain not in STANDARD_DOMAINS or node.op_type not in _SELECTING:
        return None
    # A Dropout in training mode scales the values that it keeps.
    if node.op_type == "Dropout" and any(node.input[2:]):
        return None
    for attribute in node.attribute:
        if attribute.name in _SELECTED_ATTRIBUTES.get(node.op_type, ()) and not representable(
            attribute.f, float_format
        ):
            return None
        if attribute.name == "reduction" and attribute.s not in {b"", b"none", b"max", b"min"}:
            return None
    positions = _SELECTING[node.op_type]
    return tuple(range(len(node.input))) if positions is None else positions


def parameter_inputs(node: onnx.NodeProto) -> tuple[int, ...]:
    """Positions of float inputs that are not rounded."""
    if node.op_type.startswith("QLinear"):
        return tuple(range(len(node.input)))
    return _PARAMETERS.get(node.op_type, ())


def parameter_outputs(node: onnx.NodeProto) -> tuple[int, ...]:
    """Positions of float outputs that are not rounded."""
    return _PARAMETER_OUTPUTS.get(node.op_type, ())


def cast_target(node: onnx.NodeProto) -> int:
    """Format that a cast rounds to by itself; 0 for other nodes."""
    if not standard(node, "Cast"):
        return 0
    target = attribute_of(node, "to", 0)
    return target if target in FLOAT_FORMATS else 0


def representable(value: float, float_format: int) -> bool:
    """Return whether a format has a number exactly."""
    if float_format == BFLOAT16:
        # The float32 with a lower half of zeros.
        with np.errstate(over="ignore"):
            single = np.float32(value)
        return bool(np.isnan(value) or (single == value and int(single.view(np.uint32)) & 0xFFFF == 0))
    with np.errstate(over="ignore"):
        return bool(np.isnan(value) or float(np.float16(value)) == value)
