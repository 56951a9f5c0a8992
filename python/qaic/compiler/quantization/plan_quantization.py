"""Makes a quantization plan from a graph, the classes of its nodes and a profile."""

from collections import Counter
from typing import Final

import numpy as np
import onnx

from qaic.compiler.diagnostics.messages import listing, warn
from qaic.compiler.ir.constants.in_graph import ConstantReader
from qaic.compiler.ir.elem_types import FLOAT
from qaic.compiler.ir.graph_walk import all_nodes, attribute_of, node_key, standard_version, subgraphs
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.compiler.ir.precision import INTEGERS, Classification, FloatReason, PrecisionClass
from qaic.compiler.ir.quantization import (
    INTEGER_KERNELS,
    VALUE_PRESERVING,
    WEIGHTED,
    FloatNodes,
    Group,
    PlannedTable,
    QuantizationPlan,
    QuantizedGroup,
    QuantParams,
    Scheme,
    operands,
    quantizable,
    results,
)
from qaic.compiler.quantization.groups import find_groups
from qaic.compiler.quantization.parameters import (
    FloatGraph,
    QuantParamsChooser,
    has_constant_kernel,
    is_rowwise,
    plan_table,
    plan_weight,
    value_range,
)
from qaic.compiler.quantization.prepare import has_integer_forms
from qaic.compiler.quantization.small_values import SmallValues
from qaic.options.table import CompileOptions, is_quantizing
from qaic.support.text import counted

#: operators by which the engine recognizes an activation that has a kernel
_FUSED: Final = frozenset({"Erf", "Tanh"})

#: reasons to keep a quantizable node in floating point
_CHOSEN: Final = frozenset(
    {
        FloatReason.CHOSEN,
        FloatReason.EXECUTED_IN_FP16,
        FloatReason.EXTERNAL_FILE,
        FloatReason.KEPT_PRECISION,
        FloatReason.MAGNIFIED,
        FloatReason.NODE_PRECISION_FILE,
        FloatReason.NO_RANGE,
        FloatReason.UNLIKE_RANGES,
    }
)

#: first operator set whose Clip has its bounds as inputs
_CLIP_INPUTS_VERSION: Final = 11


def plan_floats(graph: onnx.GraphProto, chosen: Classification) -> QuantizationPlan:
    """Plan a graph without quantization."""
    plan = QuantizationPlan(nested=_nested(graph))
    for node in graph.node:
        key = node_key(node)
        kind, reason = chosen.classes.get(key), FloatReason.NO_FLOATS
        if kind in INTEGERS:
            reason = FloatReason.OPERATOR_SET
        elif kind is not None:
            reason = chosen.reasons.get(key, FloatReason.CHOSEN)
        plan.entries.append(FloatNodes((node,), reason))
        _note_chosen(node, kind, reason, plan)
    return plan


def _note_chosen(
    node: onnx.NodeProto, kind: PrecisionClass | None, reason: FloatReason, plan: QuantizationPlan
) -> None:
    """Record a quantizable node that stays in a float precision by choice."""
    if reason in _CHOSEN and quantizable(node) and kind in {PrecisionClass.FP16, PrecisionClass.FP32}:
        plan.chosen_floats[node_key(node)] = kind.value


def _nested(graph: onnx.GraphProto) -> list[FloatNodes]:
    return [
        FloatNodes((inner,), FloatReason.NESTED_GRAPH)
        for node in graph.node
        for nested in subgraphs(node)
        for inner in all_nodes(nested.node)
    ]


class _Planner:
    """Plans the groups of a graph in order, because the parameters of operands follow from results."""

    def __init__(self, model: Model, chosen: Classification, options: CompileOptions, of: FloatGraph) -> None:
        self.of, self.options = of, options
        self.constants, self.facts, self.parameters = of.constants, of.facts, of.parameters
        self.classes, self.reasons = chosen.classes, chosen.reasons
        self.version = standard_version(model.proto)
        #: values stored as integers so far
        self.known: dict[str, QuantParams] = {}
        #: results of planned groups
        self.made: set[str] = set()
        self.tables: dict[str, PlannedTable] = {}
        #: constant operand -> true if all its values are finite
        self.finite: dict[str, bool] = {}
        self.precision = "Int8"

    def run(self) -> QuantizationPlan:
        plan = QuantizationPlan(nested=_nested(self.of.graph))
        groups = list(find_groups(self.of))
        small = SmallValues(self.of, groups, self.options)
        for group in groups:
            kind = self.classes.get(node_key(group.node))
            self.precision = "Int16" if kind is PrecisionClass.INT16 else "Int8"
            reason = self._reason(group, kind) or small.reason(group)
            if kind in INTEGERS:
                self._note_ranges(group, plan)
            if reason is not None:
                shared = self._shared_operands(group)
                plan.entries.append(FloatNodes(group.nodes, reason, shared, group.normalization))
                is_kept = reason in {FloatReason.MAGNIFIED, FloatReason.UNLIKE_RANGES}
                for node in group.nodes:
                    chosen = PrecisionClass.FP32 if is_kept else self.classes.get(node_key(node))
                    _note_chosen(node, chosen, reason, plan)
                continue
            planned = self._plan(group)
            plan.entries.append(planned)
            self.known |= planned.operands | planned.results
            self.made |= planned.results.keys()
        plan.constants = {name for name in plan.values() if name in self.constants}
        small.report()
        infinite = sorted(name for name, finite in self.finite.items() if not finite)
        if infinite:
            warn(
                "quantization.not_finite",
                f"quantization: found infinite values or NaN in {counted(len(infinite), 'constant')} "
                f"({listing(infinite)}); the operators that read them stay in floating point",
                nodes=infinite,
            )
        self.parameters.report()
        return plan

    def _note_ranges(self, group: Group, plan: QuantizationPlan) -> None:
        """Record the parameters of the ranges in a group, for the precision of its nodes."""
        for node in group.nodes:
            names = [node.output[position] for position in results(node)] if quantizable(node) else []
            names += [node.input[position] for position in operands(node)] if quantizable(node) else []
            for name in names:
                if name not in plan.ranges and self.parameters.profiled(name):
                    plan.ranges[name] = self.parameters.of_range(name, self.precision)

    def _reason(self, group: Group, kind: PrecisionClass | None) -> FloatReason | None:
        """Return why a group is not quantized; None if it is."""
        key = node_key(group.node)
        if kind not in INTEGERS:
            if kind is not None:
                return self.reasons.get(key, FloatReason.CHOSEN)
            is_known = any(name in self.facts.types for name in group.node.output)
            return FloatReason.NO_FLOATS if is_known else FloatReason.ADDED
        if group.normalization:
            return FloatReason.NORMALIZATION
        return self._reason_of_function(group) if group.function else self._reason_of_operator(group)

    def _reason_of_function(self, group: Group) -> FloatReason | None:
        entry = self._entry(group)
        types = self.facts.types
        if not (entry in self.known or self.parameters.profiled(entry)):
            return FloatReason.NO_RANGE
        return None if types.get(entry) == types.get(group.output) == FLOAT else FloatReason.TYPE

    def _reason_of_operator(self, group: Group) -> FloatReason | None:
        node, types = group.node, self.facts.types
        if not quantizable(node) or any(subgraphs(node)) or not operands(node):
            return FloatReason.OPERATOR
        for position in operands(node):
            name = node.input[position]
            if self.constants.is_float(name):
                if node.op_type not in WEIGHTED and not self._is_finite(name):
                    return FloatReason.NOT_FINITE
                continue
            if types.get(name) != FLOAT:
                return FloatReason.TYPE
            if not (name in self.known or self.parameters.profiled(name)):
                return FloatReason.NO_RANGE
        is_preserving = node.op_type in VALUE_PRESERVING
        made = [node.output[position] for position in results(node)] if is_preserving else [group.output]
        if any(types.get(name) != FLOAT for name in made):
            return FloatReason.TYPE
        if is_preserving and not self._is_rowwise(group):
            return None
        return None if self.parameters.profiled(group.output) else FloatReason.NO_RANGE

    def _is_rowwise(self, group: Group) -> bool:
        return is_rowwise(group.node, self.constants, self.options, self.precision)

    def _is_finite(self, name: str) -> bool:
        """Return True if a constant operand can be quantized; models compare and mask with infinity."""
        if name not in self.finite:
            self.finite[name] = bool(np.isfinite(self.constants.read(name)).all())
        return self.finite[name]

    def _entry(self, group: Group) -> str:
        """Return the only operand of a function made of several operators."""
        made = {name for node in group.function for name in node.output}
        names = (name for node in group.function for name in node.input if name and name not in made)
        return next(name for name in names if name not in self.constants and self.facts.types[name] == FLOAT)

    def _plan(self, group: Group) -> QuantizedGroup:
        node = group.node
        if group.function:
            return self._plan_function(group)
        if self._is_rowwise(group):
            return self._plan_rowwise(group)
        if node.op_type in VALUE_PRESERVING:
            return self._plan_preserving(group)
        if node.op_type in WEIGHTED and has_constant_kernel(node, self.constants):
            return self._plan_kernel(group)
        return self._plan_computing(group)

    def _plan_function(self, group: Group) -> QuantizedGroup:
        entry = self._entry(group)
        planned = QuantizedGroup(group, self.precision, Scheme.FUNCTION)
        planned.operands[entry] = self._operand(entry)
        planned.results[group.output] = self._result(group.output)
        fuses = self.version >= _CLIP_INPUTS_VERSION and any(
            node.op_type in _FUSED for node in group.function
        )
        if fuses and sum(list(node.input).count(entry) for node in group.function) > 1:
            planned.shared = (entry,)
        return planned

    def _plan_rowwise(self, group: Group) -> QuantizedGroup:
        planned = QuantizedGroup(group, self.precision, Scheme.ROWWISE)
        name = group.node.input[0]
        if name not in self.tables:
            self.tables[name] = plan_table(name, self.constants)
        planned.table = self.tables[name]
        planned.results[group.output] = self._result(group.output)
        return planned

    def _plan_preserving(self, group: Group) -> QuantizedGroup:
        """Plan an operator whose results have the parameters of its operand."""
        node = group.node
        scheme = Scheme.INTEGERS if self._has_integer_kernel(node) else Scheme.SAME_PARAMETERS
        planned = QuantizedGroup(group, self.precision, scheme)
        params = planned.operands[node.input[0]] = self._operand(node.input[0])
        planned.results = {node.output[position]: params for position in results(node)}
        return planned

    def _plan_kernel(self, group: Group) -> QuantizedGroup:
        planned = QuantizedGroup(group, self.precision, Scheme.KERNEL)
        name = group.node.input[0]
        planned.operands[name] = self._operand(name)
        planned.weight = plan_weight(
            group,
            self.constants,
            self.parameters,
            self.options,
            precision=self.precision,
            input_scale=planned.operands[name].scale,
        )
        planned.results[group.output] = self._result(group.output)
        return planned

    def _plan_computing(self, group: Group) -> QuantizedGroup:
        """Plan an operator that computes between dequantized operands and a quantized result."""
        node = group.node
        planned = QuantizedGroup(group, self.precision, Scheme.DEQUANTIZED)
        planned.results[group.output] = self._result(group.output)
        for position in operands(node):
            planned.operands[node.input[position]] = self._operand(node.input[position])
        if self._moves_integers(node) and all(
            params == planned.results[group.output] for params in planned.operands.values()
        ):
            planned.scheme = Scheme.EQUAL_INTEGERS
        return planned

    def _moves_integers(self, node: onnx.NodeProto) -> bool:
        """Return True if a node only selects from its operands, and the engine can do so with integers."""
        if not self._has_integer_kernel(node):
            return False
        if node.op_type == "Resize":
            coordinates = attribute_of(node, "coordinate_transformation_mode", b"")
            if attribute_of(node, "mode", b"nearest") != b"nearest" or coordinates == b"tf_crop_and_resize":
                return False
        padding = node.input[2] if node.op_type == "Pad" and len(node.input) > 2 else ""
        return not padding or self.constants.is_float(padding)

    def _has_integer_kernel(self, node: onnx.NodeProto) -> bool:
        kernel = INTEGER_KERNELS.get(node.op_type)
        if kernel is None:
            return False
        first = kernel.uint8 if self.precision == "Int8" else kernel.int16
        return first is not None and self.version >= first

    def _operand(self, name: str) -> QuantParams:
        if name not in self.known:
            self.known[name] = self._constant(name) if name in self.constants else self._result(name)
        return self.known[name]

    def _result(self, name: str) -> QuantParams:
        shape = self.facts.shapes.get(name)
        is_scalar = shape is not None and all(size == 1 for size in shape)
        return self.parameters.activation(name, self.precision, scalar=is_scalar)

    def _constant(self, name: str) -> QuantParams:
        if (fixed := self.parameters.fixed_params(name, self.precision)) is not None:
            return fixed
        low, high = value_range(self.constants.read(name), name)
        scale, offset = self.parameters.constant(float(low), float(high), self.precision)
        return QuantParams(scale, offset, self.precision)

    def _shared_operands(self, group: Group) -> tuple[str, ...]:
        """Return the results of earlier groups that several nodes of a normalization read.

        The first node of a normalization represents all of them.
        """
        nodes = group.normalization
        if not nodes or group.node is not nodes[0] or self.version < _CLIP_INPUTS_VERSION:
            return ()
        read = Counter(name for node in nodes for name in node.input if name in self.made)
        return tuple(name for name, count in read.items() if count > 1)


@compiler_pass(lambda context: is_quantizing(context.options))
def plan_quantization_pass(model: Model, context: Context) -> None:
    """Select the groups of nodes to quantize and their parameters, and record reasons for all other nodes."""
    graph, chosen = model.proto.graph, context.plan
    if context.profile is None or not has_integer_forms(model.proto, chosen.classes):
        context.quantization = plan_floats(graph, chosen)
    else:
        parameters = QuantParamsChooser(context.profile, context.options)
        constants = ConstantReader(graph, model.weights)
        of = FloatGraph(graph, constants, model.facts, chosen.classes, parameters)
        context.quantization = _Planner(model, chosen, context.options, of).run()
