"""Why a node is not quantized."""

from __future__ import annotations

import enum


class FloatReason(enum.Enum):
    """The reasons; the value is the sentence that a plan prints."""

    NO_FLOATS = "It reads and makes no floats."
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
    NORMALIZATION = "It is part of a normalization, which loses too much in integers."
    NOT_FINITE = "One of its constants is infinite or not a number."

    @property
    def code(self) -> str:
        """The reason in JSON."""
        return self.name.lower()
