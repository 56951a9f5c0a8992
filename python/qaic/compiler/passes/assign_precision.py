"""Selects the precision of each node.

Options apply to all nodes, to operators by type, or to single nodes. The most specific option takes
precedence. Passes that quantize and round use these decisions and read no options about precision.
"""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final

import onnx

from qaic.compiler.diagnostics.messages import listing, warn
from qaic.compiler.ir.constants.float16_weights import FLOAT16_MAX
from qaic.compiler.ir.elem_types import BFLOAT16, FLOAT, FLOAT16, FLOATS
from qaic.compiler.ir.graph_walk import (
    RANDOM,
    SHAPE_READERS,
    STANDARD_DOMAINS,
    all_nodes,
    node_key,
    subgraphs,
)
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.compiler.ir.precision import ROUNDED, Classification, FloatReason, PrecisionClass, has_node_options
from qaic.compiler.ir.quantization import TensorProfile, operands, quantizable, results
from qaic.compiler.ir.quantized_units import quantized_by_model
from qaic.compiler.ir.value_info import ValueInfo
from qaic.options.codecs.enumerations import operator_kind
from qaic.options.table import CompileOptions
from qaic.support.text import counted, nearest_name

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


def decide(
    model: onnx.ModelProto,
    facts: ValueInfo,
    options: CompileOptions,
    profiled: Collection[str] | None,
    *,
    external: Mapping[str, str] = _NOTHING,
    tell: bool = True,
) -> Classification:
    """Select the precision of every node that reads or computes floats, including nodes of nested graphs.

    The model has no functions, and options name its values. `profiled` contains the values that have a range;
    None if nothing is quantized. `external` contains the values whose nodes an external quantization file
    keeps in a float precision. `tell` enables warnings about names that the model does not have.
    """
    present = {
        node.op_type for node in all_nodes(model.graph.node) if node_key(node) not in facts.transparent
    }
    keep = _kinds(
        present, options.keep_original_precision_for_nodes, "keep_original_precision_for_nodes", tell=tell
    )
    execute = _kinds(present, options.execute_nodes_in_fp16, "execute_nodes_in_fp16", tell=tell)
    half_nodes, float_nodes = _instances(model, facts, options)
    changing = set() if profiled is None else _changing(model)
    quantized = set() if profiled is None else quantized_by_model(model.graph, facts.types, changing)
    outer = {node_key(node) for node in model.graph.node}
    integer = PrecisionClass.INT16 if options.quantization_precision == "Int16" else PrecisionClass.INT8
    has_bfloats = options.aic_hw_version == "ai200"
    result = Classification()
    for node in all_nodes(model.graph.node):
        own = _own_class(node, facts, has_bfloats=has_bfloats)
        if own is None:
            continue
        key = node_key(node)
        if key in facts.transparent:
            result.classes[key] = PrecisionClass.FP32
            result.reasons[key] = FloatReason.ADDED
            continue
        chosen, reason = own, None
        if profiled is not None:
            reason = _float_reason(node, facts, profiled, changing)
            if reason is None and key in quantized:
                reason = FloatReason.QUANTIZED
            if reason is FloatReason.CONSTANT and key not in outer:
                reason = FloatReason.NESTED_GRAPH
        if profiled is not None and reason is None:
            chosen = integer
        elif options.convert_to_fp16:
            chosen = PrecisionClass.FP16
        named = next((external[name] for name in node.output if name in external), None)
        if named is not None:
            chosen, reason = PrecisionClass(named), reason or FloatReason.EXTERNAL_FILE
        kept = node.op_type in keep
        if kept:
            chosen, reason = own, reason or FloatReason.KEPT_PRECISION
        executed = node.op_type in execute
        if executed or key in half_nodes:
            by_option = FloatReason.EXECUTED_IN_FP16 if executed else FloatReason.NODE_PRECISION_FILE
            chosen, reason = PrecisionClass.FP16, reason or by_option
        if key in float_nodes:
            chosen, reason = PrecisionClass.FP32, reason or FloatReason.NODE_PRECISION_FILE
        result.classes[key] = chosen
        if profiled is not None and reason is not None:
            result.reasons[key] = reason
        asked = executed or key in half_nodes or ((options.convert_to_fp16 or named is not None) and not kept)
        if chosen is PrecisionClass.FP16 and asked:
            result.requested.add(key)
    return result


def _own_class(node: onnx.NodeProto, facts: ValueInfo, *, has_bfloats: bool) -> PrecisionClass | None:
    """Return the class for the float type of a node in the model; results take precedence over operands."""
    for name in (*node.output, *node.input):
        elem_type = facts.narrow.get(name, facts.types.get(name, 0))
        if elem_type == FLOAT16:
            return PrecisionClass.FP16
        if elem_type == BFLOAT16 and has_bfloats:
            return PrecisionClass.BF16
        if elem_type in FLOATS:
            return PrecisionClass.FP32
    return None


def _changing(model: onnx.ModelProto) -> set[str]:
    """Collect the values that differ from run to run; all others are constants."""
    changing = {value.name for value in model.graph.input}
    for node in model.graph.node:
        reads_shape = node.op_type in SHAPE_READERS and node.domain in STANDARD_DOMAINS
        if node.op_type in RANDOM or (
            not reads_shape and (any(subgraphs(node)) or any(name in changing for name in node.input))
        ):
            changing.update(node.output)
    return changing


def _float_reason(
    node: onnx.NodeProto, facts: ValueInfo, profiled: Collection[str], changing: set[str]
) -> FloatReason | None:
    """Return the reason why a node cannot be quantized; None if its operator and its ranges allow it."""
    if not quantizable(node):
        return FloatReason.OPERATOR
    outputs = [node.output[position] for position in results(node)]
    inputs = [node.input[position] for position in operands(node)]
    # Constants are folded. Values of nested graphs have no range, and `changing` does not contain them.
    if not outputs or not all(name in changing for name in outputs):
        return FloatReason.CONSTANT
    if any(facts.types.get(name) != FLOAT for name in (*inputs, *outputs)):
        return FloatReason.TYPE
    if any(name not in profiled and name in changing for name in (*inputs, *outputs)):
        return FloatReason.NO_RANGE
    return None


def _kinds(present: Collection[str], given: Iterable[str], option: str, *, tell: bool) -> set[str]:
    """Return the operators of the model that an option names; warn about other names."""
    by_lower = {kind.lower(): kind for kind in sorted(present)}
    found: set[str] = set()
    missing: list[str] = []
    for name in given:
        kind = operator_kind(name)
        if kind in present:
            found.add(kind)
        else:
            near = nearest_name(name.lower(), by_lower)
            missing.append(f"{name!r} (did you mean {by_lower[near]!r}?)" if near else repr(name))
    if missing and tell:
        warn(
            "options.unknown_operators",
            f"{option}: the model has no operator{'s' if missing[1:] else ''} "
            f"{', '.join(missing[:5]) + (f' and {len(missing) - 5} more' if len(missing) > 5 else '')}",
        )
    return found


def _instances(
    model: onnx.ModelProto, facts: ValueInfo, options: CompileOptions
) -> tuple[set[str], set[str]]:
    """Find the nodes that the precision file sets to float16 and float32; passes may have removed some."""
    lists = options.node_precision_info_file
    if lists is None:
        return set(), set()
    keys = {name: node_key(node) for node in all_nodes(model.graph.node) for name in node.output if name}
    # The name of a widened output is the result of the cast that follows the node, and that of a moved node's
    # result is the result of a node behind it.
    apart = facts.original.keys() - facts.transparent
    keys.update({facts.original[name]: keys[name] for name in tuple(keys) if name in apart})
    return (
        {keys[name] for name in lists.fp16 if name in keys},
        {keys[name] for name in lists.fp32 if name in keys},
    )


@compiler_pass()
def assign_precision_pass(model: Model, context: Context) -> None:
    """Select the precision of each node."""
    options, profile = context.options, context.profile
    if not has_node_options(options) and not model.facts.narrow:
        return
    if profile is None:
        context.plan = decide(model.proto, model.facts, options, None)
    else:
        context.plan = decide(model.proto, model.facts, options, profile.tensors, external=profile.precisions)
    if any(chosen in ROUNDED for chosen in context.plan.classes.values()):
        _warn_untyped(model)
    if profile is not None:
        _warn_overflows(model, context.plan, profile.tensors)


def _warn_overflows(model: Model, plan: Classification, profiled: Mapping[str, TensorProfile]) -> None:
    """Warn about results of float16 nodes whose measured values exceed float16."""
    beyond = [
        name
        for node in all_nodes(model.proto.graph.node)
        if plan.classes.get(node_key(node)) is PrecisionClass.FP16
        for name in node.output
        if name in profiled and max(abs(profiled[name].minimum), abs(profiled[name].maximum)) > FLOAT16_MAX
    ]
    if beyond:
        warn(
            "float16.calibrated_overflow",
            f"found {counted(len(beyond), 'value')} beyond the range of float16 ({FLOAT16_MAX:.0f}) in the "
            f"calibration, which become infinite: {listing(beyond)}; node_precision_info_file keeps them in "
            "float32, and `openqaic accuracy MODEL --to fp16` finds the nodes to keep",
            nodes=beyond,
        )


def _warn_untyped(model: Model) -> None:
    op_types = {
        f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        for node in all_nodes(model.proto.graph.node)
        for name in node.output
        if name and name not in model.facts.types
    }
    if op_types:
        warn(
            "float16.unknown_types",
            f"float16 rounding: the result types of {listing(sorted(op_types))} are unknown; the results "
            "are not rounded",
        )
