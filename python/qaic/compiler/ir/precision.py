"""Precisions of nodes, and the options about them."""

import enum
from dataclasses import dataclass, field
from typing import Final

from qaic.options.table import CompileOptions


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
    ADDED = "The compiler added it when it raised the operator set."
    NESTED_GRAPH = "It is in a nested graph, whose values are not measured."
    OPERATOR = "Its operator has no quantized form."
    CONSTANT = "It computes a constant."
    TYPE = "One of its operands or results is not float32."
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
    """The decision for every node that reads or makes floats, by the name of its first output."""

    classes: dict[str, PrecisionClass] = field(default_factory=dict)
    #: Nodes that an option wants in fp16 with all their floats; of the other fp16 nodes it is those floats
    #: that have this type in the model.
    requested: set[str] = field(default_factory=set)
    #: reason that a node of a quantized graph is not quantized
    reasons: dict[str, FloatReason] = field(default_factory=dict)


def needs_inner_nodes(options: CompileOptions) -> bool:
    """Return whether functions must be expanded, because an option applies to single nodes."""
    return has_node_options(options) or options.dump_profile is not None


def has_node_options(options: CompileOptions) -> bool:
    """Return whether the options change how nodes compute."""
    return bool(
        options.convert_to_fp16
        or options.execute_nodes_in_fp16
        or options.keep_original_precision_for_nodes
        or options.node_precision_info_file is not None
        or options.mxfp6_matmul
        or is_quantizing(options)
    )


def is_quantizing(options: CompileOptions) -> bool:
    """Return true if the options request integers instead of floats."""
    return bool(
        options.convert_to_quantize
        or options.load_profile is not None
        or options.external_quantization_file is not None
    )
