"""Reasons for the loss of a node: the first matching rule for its measurements."""

import enum
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from qaic.accuracy.metrics import decibels
from qaic.accuracy.observed import ObservedNode
from qaic.compiler.ir.precision import PrecisionClass
from qaic.compiler.ir.quantization import QuantParams


class Reason(enum.StrEnum):
    """Reason for a different result of a node."""

    MASKED = "masked"
    OVERFLOW = "overflow"
    UNDERFLOW = "underflow"
    SATURATION = "saturation"
    CANCELLATION = "cancellation"
    OUTLIER_CHANNEL = "outlier channel"
    WEIGHTS = "weight rounding"
    ACCUMULATION = "accumulation"
    NONE = "none"


#: SQNR in dB of one rounding below which a node has a reason, by precision: about 20 dB below the SQNR
#: of values that use the whole range of the format
LOW_SQNR_DB: Final = {
    PrecisionClass.FP32: 20.0,
    PrecisionClass.FP16: 50.0,
    PrecisionClass.BF16: 30.0,
    PrecisionClass.INT8: 20.0,
    PrecisionClass.INT16: 60.0,
}
#: least share of small results, least share of clipped results, and levels of the integers that the
#: median channel has next to the largest one
UNDERFLOW_SHARE: Final = 0.1
SATURATION_SHARE: Final = 0.001
OUTLIER_LEVELS: Final = 8.0
#: power of an operand over that of the result, and the loss of a result against its operands in dB
CANCELLED_POWER: Final = 100.0
CANCELLED_DB: Final = 10.0
#: largest score that is masked: its exponential is 0 in float32
MASKED_SCORE: Final = -1000.0
#: smallest part of the own error that comes from weights
WEIGHT_PART: Final = 0.5

_SOFTMAX: Final = frozenset({"Softmax", "LogSoftmax"})
_SUMS: Final = frozenset({"Add", "Sub", "Sum"})
_REDUCTIONS: Final = frozenset(
    {
        *("Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "AveragePool", "GlobalAveragePool"),
        *("ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSumExp"),
    }
)


@dataclass(frozen=True, slots=True)
class Measured:
    """Sums of one node as numbers for people."""

    #: Mean square of the reference; NaN if it exceeds float32.
    power: float
    #: See `qaic.accuracy.reports.precision_accuracy`; NaN where there is none.
    inherited_sqnr_db: float
    own_sqnr_db: float
    #: Part of the own error that comes from weights, 0 to 1.
    weights_share: float
    #: Shares of the elements.
    overflow: float
    underflow: float
    saturation: float
    #: Size of the largest channel divided by the size of the median channel; NaN if unknown.
    outlier_ratio: float


def reason_of(node: ObservedNode, own: Measured, others: Mapping[str, Measured]) -> Reason:
    """Return the first reason that holds for a node.

    `own` are the measurements of the node, `others` those of the nodes before it, by value.
    """
    if own.overflow > 0:
        return Reason.OVERFLOW
    limit = LOW_SQNR_DB[node.precision]
    is_low = own.own_sqnr_db < limit
    if is_low and own.saturation >= SATURATION_SHARE:
        return Reason.SATURATION
    if is_low and own.underflow >= UNDERFLOW_SHARE:
        return Reason.UNDERFLOW
    if _cancels(node, own, [others[name] for name in node.inputs if name in others]):
        return Reason.CANCELLATION
    if node.params is not None and _levels(node.params) < OUTLIER_LEVELS * own.outlier_ratio:
        return Reason.OUTLIER_CHANNEL
    if not is_low:
        return Reason.NONE
    if own.weights_share >= WEIGHT_PART:
        return Reason.WEIGHTS
    return Reason.ACCUMULATION if node.op_type in _REDUCTIONS else Reason.NONE


def masked_values(
    nodes: Sequence[ObservedNode],
    minima: Mapping[str, float],
    measured: Mapping[str, Measured],
    outputs: Container[str],
) -> set[str]:
    """Return the values with masked scores, whose large negative constants Softmax turns into 0.

    Only Softmax, and nodes that add masks to scores, read these values. `nodes` are in topological order,
    `minima` and `measured` belong to their values, and `outputs` are the names of the program's outputs.
    """
    masked: set[str] = set()
    others = {node.value for node in nodes if node.name in outputs}
    for node in reversed(nodes):
        is_softmax = node.op_type in _SOFTMAX and measured[node.value].inherited_sqnr_db > -math.inf
        takes_masks = is_softmax or node.value in masked - others
        for name in node.inputs:
            has_masks = takes_masks and minima.get(name, 0.0) <= MASKED_SCORE
            (masked if has_masks else others).add(name)
    return masked - others


def _levels(params: QuantParams) -> int:
    low, high = params.limits
    return high - low


def _cancels(node: ObservedNode, own: Measured, operands: Sequence[Measured]) -> bool:
    """Return True if a sum is much smaller than its operands but its errors are not."""
    if node.op_type not in _SUMS or not operands or math.isnan(own.inherited_sqnr_db):
        return False
    largest = max((item.power for item in operands if not math.isnan(item.power)), default=0.0)
    before = min((item.inherited_sqnr_db for item in operands), default=math.inf)
    return (
        own.power > 0
        and largest >= CANCELLED_POWER * own.power
        and own.inherited_sqnr_db <= before - CANCELLED_DB
        and own.inherited_sqnr_db < LOW_SQNR_DB[node.precision]
    )


def measured(sums: Mapping[str, float]) -> Measured:
    """Convert sums to numbers for people."""
    size = sums["elements"]
    signal = sums["signal"]
    is_masked = not math.isfinite(signal)

    def sqnr(noise: float) -> float:
        return math.nan if is_masked else decibels(signal, noise)

    def share(count: float, of: float) -> float:
        return count / of if of else 0.0

    own, weights = sums["own"], sums["weights"]
    return Measured(
        power=math.nan if is_masked or not size else signal / size,
        inherited_sqnr_db=sqnr(sums["inherited"]),
        own_sqnr_db=sqnr(own),
        weights_share=min(1.0, weights / own)
        if own and math.isfinite(own) and math.isfinite(weights)
        else 0.0,
        overflow=share(max(0.0, sums["overflow"]), size),
        underflow=share(sums["underflow"], sums["spaced"]),
        saturation=share(sums["saturation"], size),
        outlier_ratio=(
            sums["channel_maximum"] / sums["channel_median"] if sums["channel_median"] > 0 else math.nan
        ),
    )
