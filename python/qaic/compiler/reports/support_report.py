"""Reports parts of a model that a compiler for the card may refuse.

Parts that no target supports (level 1) are refused where they are found. This module finds parts that a card
probably does not support (level 2). It searches the user's original model, so that messages name the user's
nodes. The report is an estimate: a warning, or an error with ``strict_aic``.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

import onnx

from qaic.compiler.diagnostics.messages import Survey, listing, refuse, warn
from qaic.compiler.ir.elem_types import TABLE, type_name
from qaic.compiler.ir.graph_walk import (
    SHAPE_READERS,
    STANDARD_DOMAINS,
    all_nodes,
    attribute_of,
    constant_names,
    consumers,
    node_label,
    subgraphs,
)
from qaic.compiler.ir.interface import Interface
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.compiler.reports import operator_list
from qaic.compiler.reports.operator_list import OperatorList
from qaic.options.table import CompileOptions
from qaic.support.program_names import RETAINED_STATE_SUFFIX

#: domain of functions that are operators of the card; the nodes of their bodies do not matter
_CARD_DOMAIN: Final = "com.qualcomm.cloud"
_TRAINING_DOMAIN: Final = "ai.onnx.preview.training"

#: operators -> the operands that must be constants, because the shape of the result depends on them
_CONSTANT_OPERANDS: Final[dict[str, tuple[int, ...]]] = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "OneHot": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
}

_DETECTION: Final = "NonMaxSuppression"

#: operators that pass on or compare the selected values at the end of a detector
_AFTER_DETECTION: Final = frozenset(
    (
        *("Add", "Cast", "Concat", "Div", "Expand", "Flatten", "Gather", "GatherElements", "GatherND"),
        *("Identity", "Mul", "Reshape", "Shape", "Slice", "Split", "Squeeze", "Sub", "TopK", "Transpose"),
        *("Unsqueeze", "Where"),
    )
)

#: element types that no card computes with, in addition to bfloat16 on the first generation
_FOREIGN_TYPES: Final = frozenset(TABLE) - {1, 2, 3, 5, 6, 7, 9, 10, 16}
_BFLOAT16: Final = 16
#: unsigned integers are common as indices and masks, and the card's integer types can represent them; uint4
#: is the type of packed weights from the card's own CastToUInt4
_TOLERATED_TYPES: Final = frozenset({4, 12, 13, 21})


def survey_operators(
    model: onnx.ModelProto,
    constants: Collection[str],
    operators: OperatorList,
    survey: Survey,
    *,
    custom: Collection[str] = (),
) -> None:
    """Check the operators of a model, and the origin of the sizes of their results.

    Functions are not expanded yet. `constants` are weights outside the graph, and `custom` are operators that
    the user has described with `register_custom_op`.
    """
    opsets = {("" if s.domain in STANDARD_DOMAINS else s.domain): s.version for s in model.opset_import}
    functions = {(f.domain, f.name) for f in model.functions}
    bodies = [model.graph.node]
    bodies += [f.node for f in model.functions if f.domain != _CARD_DOMAIN]
    # Graphs have thousands of nodes of a few kinds.
    reasons: dict[tuple[str, str], str | None] = {}
    for nodes in bodies:
        for node in all_nodes(nodes):
            kind = (node.domain, node.op_type)
            if kind not in reasons:
                is_known = kind in functions or node.domain == _CARD_DOMAIN or node.op_type in custom
                reasons[kind] = None if is_known else _complaint(kind, opsets, operators)
            reason = reasons[kind]
            if not reason and node.op_type == "BatchNormalization" and attribute_of(node, "training_mode", 0):
                reason = "training"
            if reason:
                name = node.op_type if node.domain in STANDARD_DOMAINS else f"{node.domain}.{node.op_type}"
                survey.note(f"{name} ({reason})", node_label(node))
    op_types = {op_type for _, op_type in reasons}
    if not op_types.isdisjoint(_CONSTANT_OPERANDS.keys() | {"If"}):
        # The operands of a function are only known at its calls.
        _survey_operands(model.graph, set(constants), survey)
    if _DETECTION in op_types:
        _survey_detections(model.graph, survey)


def survey_types(types: Mapping[str, int], options: CompileOptions, survey: Survey) -> None:
    """Check the element types of the values of a model.

    The version of the hardware determines the support of bfloat16.
    """
    has_bfloat16 = options.aic_hw_version == "ai200"
    # Models have thousands of values, but few types.
    if not set(types.values()) & (_FOREIGN_TYPES | {_BFLOAT16}):
        return
    for name, code in types.items():
        if code in _FOREIGN_TYPES - _TOLERATED_TYPES:
            survey.note(f"type {type_name(code)}", name)
        elif code == _BFLOAT16 and not has_bfloat16:
            survey.note("type bfloat16 (with aic_hw_version ai100)", name)


def survey_specializations(interface: Interface, survey: Survey) -> None:
    """Report if no input has a different shape in every set of shapes, which a card needs to select the set.

    Most inferences omit values that stay on the device, so these cannot identify a set.
    """
    outputs = {spec.name for spec in interface.outputs}
    shapes = zip(*(specialization.inputs for specialization in interface.specializations), strict=True)
    identifying = any(
        len(set(dims)) == len(dims)
        for spec, dims in zip(interface.inputs, shapes, strict=False)
        if spec.name + RETAINED_STATE_SUFFIX not in outputs
    )
    if interface.specializations and not identifying:
        for specialization in interface.specializations:
            survey.note_refusal(
                "several sets of sizes, but no input with a different shape in each", specialization.name
            )


def choose_list(options: CompileOptions) -> OperatorList:
    """Return the list that the options name, or the built-in list."""
    chosen = options.aic_operator_list
    return operator_list.shipped() if chosen is None else operator_list.read(chosen.path)


def report(survey: Survey, options: CompileOptions) -> None:
    """Warn once about all findings. Raises CompileError if something was found and ``strict_aic`` is set."""
    if survey.refusals:
        text = _listed(survey.refusals)
        if options.strict_aic:
            raise refuse(
                "the model with its options",
                code="card_refusal",
                found=text,
                expected="a model that the card's compiler accepts (strict_aic is set)",
                fix="correct the model or the options, or omit strict_aic",
                context={"findings": dict(survey.refusals)},
            )
        warn("support.refused", f"a card's compiler refuses this model: {text}")
    if not survey.findings:
        return
    text = _listed(survey.findings)
    if options.strict_aic:
        raise refuse(
            "the model",
            code="card_support",
            found=f"operators or types that a card is unlikely to support: {text}",
            expected="operators and types of the list (strict_aic is set)",
            fix="change the model, name your compiler's list with aic_operator_list, or omit strict_aic",
            context={"findings": dict(survey.findings)},
        )
    warn("support.unlikely", f"a compiler for the card is unlikely to accept this model: {text}")


def _listed(findings: Mapping[str, list[str]]) -> str:
    return "; ".join(f"{what} at {listing(where, 3)}" for what, where in sorted(findings.items()))


def _complaint(kind: tuple[str, str], opsets: Mapping[str, int], operators: OperatorList) -> str | None:
    domain = "" if kind[0] in STANDARD_DOMAINS else kind[0]
    reason = operators.complaint(domain, kind[1], opsets.get(domain, 1))
    return "training" if reason is None and domain == _TRAINING_DOMAIN else reason


def _survey_operands(graph: onnx.GraphProto, constant: set[str], survey: Survey) -> None:
    """Follow constants through a graph, then through the graphs nested in it."""
    local = constant | constant_names(graph)
    for node in graph.node:
        nested = list(subgraphs(node)) if node.attribute else []
        if node.op_type in SHAPE_READERS or (not nested and local.issuperset(filter(None, node.input))):
            local.update(node.output)
        elif node.op_type in _CONSTANT_OPERANDS or node.op_type == "If":
            _check_operands(node, local, survey)
        for inner in nested:
            _survey_operands(inner, local, survey)


def _check_operands(node: onnx.NodeProto, constant: set[str], survey: Survey) -> None:
    if node.domain not in STANDARD_DOMAINS:
        return
    if node.op_type == "If" and node.input[0] not in constant:
        survey.note("If whose condition is not constant", node_label(node))
    for position in _CONSTANT_OPERANDS.get(node.op_type, ()):
        if position < len(node.input) and node.input[position] and node.input[position] not in constant:
            survey.note(f"{node.op_type} whose operand {position} is not constant", node_label(node))
            break


def _survey_detections(graph: onnx.GraphProto, survey: Survey) -> None:
    """Find each NonMaxSuppression whose boxes are used in later computations."""
    readers = consumers(graph.node)
    for node in graph.node:
        if node.op_type != _DETECTION:
            continue
        other = next(_followers(node, readers), None)
        if other is not None:
            what = f"{_DETECTION} before the end of the model ({other.op_type} reads its result)"
            survey.note(what, node_label(node))


def _followers(
    start: onnx.NodeProto, readers: Mapping[str, list[onnx.NodeProto]]
) -> Iterator[onnx.NodeProto]:
    """Yield the nodes after another that do more than pass its results to the end."""
    pending, seen = [start], {id(start)}
    while pending:
        for name in pending.pop().output:
            for node in readers.get(name, ()):
                if id(node) in seen:
                    continue
                seen.add(id(node))
                if node.op_type not in _AFTER_DETECTION:
                    yield node
                pending.append(node)


@compiler_pass()
def survey_operators_pass(model: Model, context: Context) -> None:
    """Report operators that a card is unlikely to support."""
    operators = choose_list(context.options)
    custom = context.custom.operators
    survey_operators(model.proto, model.weights, operators, context.survey, custom=custom)


@compiler_pass()
def survey_types_pass(model: Model, context: Context) -> None:
    """Report element types and sets of sizes that a card does not support, and all earlier findings."""
    survey_types(model.facts.types, context.options, context.survey)
    survey_specializations(model.interface, context.survey)
    report(context.survey, context.options)
