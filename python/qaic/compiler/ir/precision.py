"""Precisions of nodes, the options about them, and the effect of rounding on operators.

A format is the set of values of float16 or bfloat16, named by its element type.
"""

import enum
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import onnx

from qaic.compiler.ir.elem_types import BFLOAT16, FLOAT, FLOAT16
from qaic.compiler.ir.graph_walk import STANDARD_DOMAINS, attribute_of, standard
from qaic.options.table import CompileOptions, is_quantizing


class PrecisionClass(enum.Enum):
    """Precision of a node."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    INT16 = "int16"


#: classes of nodes whose values are rounded
ROUNDED: Final = frozenset({PrecisionClass.FP16, PrecisionClass.BF16})
#: classes of nodes that are quantized
INTEGERS: Final = frozenset({PrecisionClass.INT8, PrecisionClass.INT16})


class FloatReason(enum.Enum):
    """Why a node is not quantized; the value is the sentence that a plan prints."""

    NO_FLOATS = "It has no floats as operands or results."
    ADDED = "The compiler added it."
    NESTED_GRAPH = "It is in a nested graph, whose values are not measured."
    OPERATOR = "Its operator has no quantized form."
    CONSTANT = "It computes a constant."
    TYPE = "One of its operands or results is not float32."
    QUANTIZED = "The model itself quantizes it, or stores one of its constants as integers."
    NO_RANGE = "The range of one of its operands or results is not known."
    EXTERNAL_FILE = "external_quantization_file keeps its result in floating point."
    KEPT_PRECISION = "keep_original_precision_for_nodes names its operator."
    EXECUTED_IN_FP16 = "execute_nodes_in_fp16 names its operator."
    NODE_PRECISION_FILE = "node_precision_info_file names it."
    CHOSEN = "Its precision was chosen before quantization."
    OPERATOR_SET = "The operator set of the model is too old and cannot be converted."
    NORMALIZATION = "It is part of a normalization, which loses too much precision in integers."
    UNLIKE_RANGES = "It combines values with ranges too different for one scale, or reads such a result."
    MAGNIFIED = "A reader of its result magnifies small values, which one scale would round to zero."
    NOT_FINITE = "One of its constants is infinite or not a number."

    @property
    def code(self) -> str:
        """The reason in JSON."""
        return self.name.lower()


@dataclass(slots=True)
class Classification:
    """Precision of every node that reads or computes floats, by the name of its first output."""

    classes: dict[str, PrecisionClass] = field(default_factory=dict)
    #: nodes for which an option requests float16 for all floats; for other float16 nodes, only the floats
    #: that have this type in the model are rounded
    requested: set[str] = field(default_factory=set)
    #: reason that a node of a quantized graph is not quantized
    reasons: dict[str, FloatReason] = field(default_factory=dict)


def needs_inner_nodes(options: CompileOptions) -> bool:
    """Return True if functions must be expanded, because an option applies to individual nodes."""
    return has_node_options(options) or options.dump_profile is not None


def has_node_options(options: CompileOptions) -> bool:
    """Return True if the options change how nodes compute."""
    return bool(
        options.convert_to_fp16
        or options.execute_nodes_in_fp16
        or options.keep_original_precision_for_nodes
        or options.node_precision_info_file is not None
        or options.mxfp6_matmul
        or is_quantizing(options)
    )


#: suffix of the name of a result before rounding; a number may follow
UNROUNDED: Final = "/unrounded"

#: element types whose values a float can be rounded to
FLOAT_FORMATS: Final = (FLOAT16, BFLOAT16)

#: operator -> inputs from which its float outputs select values, None for all inputs. If those are in a
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

#: selecting operators for which rounding the inputs differs from rounding the outputs: the floor of 1025.5 is
#: 1025, but that of its float16 is 1026. On constants, they must be folded first.
NOT_COMMUTING: Final = frozenset(
    {"Ceil", "Floor", "MaxPool", "Round", "Sign", "ThresholdedRelu", "TopK", "Unique"}
)

#: float inputs that are parameters of an operator rather than data. Rounding them would change shapes
#: (OneHot, Resize, Range) or the steps of quantization; the card's compiler turns them into attributes.
_PARAMETERS: Final[dict[str, tuple[int, ...]]] = {
    "DequantizeLinear": (1,),
    "DynamicQuantizeLSTM": (8, 10),
    "DynamicQuantizeMatMul": (2,),
    "GatherBlockQuantized": (2,),
    "GroupQueryAttention": (12, 13),
    "MatMulBnb4": (2,),
    "MatMulIntegerToFloat": (2, 3),
    "MatMulNBits": (2, 3),
    "OneHot": (1,),
    "QAttention": (3, 4),
    "QEmbedLayerNormalization": (8, 9, 10, 11, 12),
    "QGemm": (1, 4, 7),
    "QMoE": (3, 6, 9, 15, 16, 17, 18, 19, 20),
    "QuantizeLinear": (1,),
    "Range": (0, 1, 2),
    "Resize": (1, 2),
    "Upsample": (1,),
}

#: operators whose float outputs are such parameters
_PARAMETER_OUTPUTS: Final[dict[str, tuple[int, ...]]] = {"DynamicQuantizeLinear": (1,)}

#: attributes with a float that reaches the output unchanged
_SELECTED_ATTRIBUTES: Final[dict[str, tuple[str, ...]]] = {"Clip": ("min", "max"), "Pad": ("value",)}

#: operators to whose results a bias may be added before the only rounding of the unit
BIAS_TAKERS: Final = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose"})

#: activations that commute with rounding, so they belong to the unit of the operator before them
COMMUTING: Final = frozenset({"Relu", "Clip"})


def selected_inputs(node: onnx.NodeProto, float_format: int) -> tuple[int, ...] | None:
    """Return the positions of the inputs from which the outputs of a selecting operator are taken.

    Returns None if the operator computes new values, or contains a value that is not in the format.
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
    """Return the positions of float inputs that are not rounded."""
    if node.op_type.startswith("QLinear"):
        return tuple(range(len(node.input)))
    return _PARAMETERS.get(node.op_type, ())


def parameter_outputs(node: onnx.NodeProto) -> tuple[int, ...]:
    """Return the positions of float outputs that are not rounded."""
    return _PARAMETER_OUTPUTS.get(node.op_type, ())


def cast_target(node: onnx.NodeProto) -> int:
    """Return the format that a cast rounds to; 0 for other nodes."""
    if not standard(node, "Cast"):
        return 0
    target = attribute_of(node, "to", 0)
    return target if target in FLOAT_FORMATS else 0


def widens(node: onnx.NodeProto) -> bool:
    """Return True if a node is a cast to float32."""
    return standard(node, "Cast") and attribute_of(node, "to", 0) == FLOAT


def representable(value: float, float_format: int) -> bool:
    """Return True if a format represents a number exactly."""
    if float_format == BFLOAT16:
        # The lower half of the float32 is zero.
        with np.errstate(over="ignore"):
            single = np.float32(value)
        return bool(np.isnan(value) or (single == value and int(single.view(np.uint32)) & 0xFFFF == 0))
    with np.errstate(over="ignore"):
        return bool(np.isnan(value) or float(np.float16(value)) == value)
