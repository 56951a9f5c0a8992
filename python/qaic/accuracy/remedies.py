"""Remedies for a node that loses precision: nodes to keep in float32, and options that reduce the error."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from qaic.accuracy.observed import Kind, ObservedNode
from qaic.accuracy.reasons import Reason
from qaic.compiler.diagnostics.messages import listing
from qaic.compiler.ir.precision import INTEGERS, PrecisionClass
from qaic.options.table import CompileOptions

_CAUSES: Final = {
    Reason.OVERFLOW: "results pass 65504, the largest float16, and become infinite",
    Reason.UNDERFLOW: "results are below 2^-14, the smallest normal float16, and lose precision",
    Reason.SATURATION: "values beyond the calibrated range are clipped",
    Reason.CANCELLATION: "large operands cancel, and their rounding is as large as the result",
    Reason.OUTLIER_CHANNEL: "one channel is far larger than the others and takes the range of the integers",
    Reason.WEIGHTS: "its weights cause most of the error",
    Reason.ACCUMULATION: "the node rounds a sum of many values",
}
#: most names in the text of a remedy
_MOST_NAMES: Final = 20
#: reasons that readers have too if they pass the values on
_PASSED_ON: Final = frozenset({Reason.OVERFLOW, Reason.UNDERFLOW, Reason.OUTLIER_CHANNEL})
#: option for one scale for each channel of weights -> operators that it applies to
_BY_CHANNEL: Final[Mapping[str, frozenset[str]]] = {
    "enable_channelwise": frozenset({"Conv", "ConvTranspose"}),
    "enable_rowwise": frozenset({"Gemm", "MatMul"}),
}


@dataclass(frozen=True, slots=True)
class Calibration:
    """Options of a program that determine which remedies change it."""

    options: CompileOptions
    #: True if the compared samples also calibrated the program.
    is_of_samples: bool


def remedy(reason: Reason, node: ObservedNode, names: Sequence[str], calibration: Calibration | None) -> str:
    """Return the cause of a loss and its remedies. `names` are those of `names_to_keep`."""
    fixes = " or ".join([*_options(reason, node, calibration), _kept(names, calibration)])
    return f"{_CAUSES[reason]}: {fixes}" if reason in _CAUSES else fixes


def _kept(names: Sequence[str], calibration: Calibration | None) -> str:
    """Return the remedy that keeps nodes in float32, with a line for the file if it is short."""
    import yaml

    nodes = "this node" if len(names) == 1 else "these nodes"
    listed = yaml.safe_dump([*names], default_flow_style=True, allow_unicode=True, width=math.inf).strip()
    if len(names) > _MOST_NAMES:
        listed = f"[{listing([*names], _MOST_NAMES)}]"
    has_file = calibration is not None and calibration.options.node_precision_info_file is not None
    named = f"FP32NodeInstanceNames: {listed}"
    named = f"add to {named}" if has_file else f"with {named}"
    return f"keep {nodes} in float32 (node_precision_info_file {named})"


def _options(reason: Reason, node: ObservedNode, calibration: Calibration | None) -> Iterator[str]:
    """Yield the remedies other than a list of nodes; only those that change the program."""
    if reason is Reason.UNDERFLOW:
        yield "scale the operands,"
    if reason is Reason.OUTLIER_CHANNEL and node.precision is PrecisionClass.INT8:
        yield "use int16,"
    if calibration is None:
        return
    options = calibration.options
    if reason is Reason.SATURATION and options.quantization_calibration != "None":
        yield "use the whole measured range (quantization_calibration=None),"
    if reason is Reason.SATURATION and not calibration.is_of_samples:
        yield "calibrate with the compared samples,"
    if reason is Reason.WEIGHTS and node.precision in INTEGERS:
        for option, operators in _BY_CHANNEL.items():
            if node.operators & operators and not getattr(options, option):
                yield f"give them one scale for each channel ({option}),"


def names_to_keep(nodes: Sequence[ObservedNode], reasons: Sequence[Reason], at: int) -> tuple[str, ...]:
    """Return the names with which a node precision file removes the loss of the node at index `at`.

    The names are those of all nodes in a fused operation. Readers in lower precision would round a float32
    result again, so the list also contains the readers, unless the loss is inside the node. For cancellation,
    it contains the nodes that compute the operands.
    """
    reason = reasons[at]
    is_inside = reason is Reason.WEIGHTS or (
        reason is Reason.ACCUMULATION and nodes[at].precision not in INTEGERS
    )
    next_to = {} if is_inside else _operands(nodes) if reason is Reason.CANCELLATION else _readers(nodes)
    chosen, pending = {at}, [at]
    while pending:
        for place in next_to.get(pending.pop(), ()):
            if place in chosen or nodes[place].kind is Kind.FLOAT:
                continue
            chosen.add(place)
            is_passed_on = reason in _PASSED_ON and reasons[place] is reason
            if nodes[place].kind is Kind.MOVED or is_passed_on:
                pending.append(place)
    places = [place for place in sorted(chosen) if nodes[place].kind is not Kind.FLOAT] or [at]
    return tuple(dict.fromkeys(name for place in places for name in nodes[place].kept_by))


def _operands(nodes: Sequence[ObservedNode]) -> dict[int, list[int]]:
    """Map the index of each node to the nodes that compute its operands."""
    makers = {node.value: at for at, node in enumerate(nodes)}
    return {at: [makers[name] for name in node.inputs if name in makers] for at, node in enumerate(nodes)}


def _readers(nodes: Sequence[ObservedNode]) -> dict[int, list[int]]:
    """Map the index of each node to the nodes that read its result."""
    found: dict[int, list[int]] = {}
    for at, places in _operands(nodes).items():
        for place in places:
            found.setdefault(place, []).append(at)
    return found
