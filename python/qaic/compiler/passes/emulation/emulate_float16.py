"""Rounds floats to the precision of their nodes, where the card rounds.

Kernels compute in float32. A pair of casts, to float16 or bfloat16 and back, rounds a value; the engine does
not remove such pairs. One pass in topological order selects the values that need a pair. Values selected from
rounded values need none. If the only reader of a value belongs to the same fused unit, rounding is deferred.
Nodes of float32 and of integers do not change.
"""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import onnx
from onnx import helper

from qaic.compiler.ir import graph_edits as edit
from qaic.compiler.ir.constants.float16_weights import FLOAT16_MAX, Overflows, converted_floats
from qaic.compiler.ir.constants.in_graph import dense, split_constants, value_preserving_inputs
from qaic.compiler.ir.constants.weights import Weight
from qaic.compiler.ir.elem_types import BFLOAT16, BOOL, FLOAT16, FLOATS, type_name
from qaic.compiler.ir.graph_walk import (
    FreshNames,
    node_key,
    node_label,
    standard,
    standard_version,
    subgraphs,
    usages,
    uses,
)
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.compiler.ir.precision import (
    BIAS_TAKERS,
    COMMUTING,
    FLOAT_FORMATS,
    NOT_COMMUTING,
    Classification,
    PrecisionClass,
    cast_target,
    parameter_inputs,
    parameter_outputs,
)
from qaic.compiler.ir.precision import ROUNDED as ROUNDED_CLASSES
from qaic.compiler.passes.assign_precision import decide
from qaic.compiler.passes.emulation.computed_constants import (
    ConstantClasses,
    exceeds,
    filling,
    may_exceed,
    note_computed,
)
from qaic.compiler.passes.emulation.integer_sums import ROUNDED, IntegerSums
from qaic.options.table import CompileOptions

_FORMATS: Final = {PrecisionClass.FP16: FLOAT16, PrecisionClass.BF16: BFLOAT16}

#: first operator set with Where, which clipping needs
_WHERE: Final = 9


@dataclass(slots=True)
class _Scope:
    """Facts about one graph; other names belong to the graphs around it."""

    graph: onnx.GraphProto
    parent: "_Scope | None"
    defined: set[str] = field(default_factory=set)
    #: values in a narrow format, each with the format
    in_format: set[tuple[str, int]] = field(default_factory=set)
    #: value and format -> copy of the value in this format
    copies: dict[tuple[str, int], str] = field(default_factory=dict)
    #: values whose rounding is deferred to their only reader
    deferred: set[str] = field(default_factory=set)
    #: result of a folded node that is an output -> its value before rounding
    folded_names: dict[str, str] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    #: value -> nodes of this graph that read it, with the index of the input
    readers: dict[str, list[tuple[onnx.NodeProto, int]]] = field(default_factory=dict)

    def around(self, name: str) -> "Iterator[_Scope]":
        """Yield this graph and the graphs around it, up to the graph that defines a value."""
        at: _Scope | None = self
        while at is not None:
            yield at
            at = None if name in at.defined else at.parent


class Float16Emulator:
    """Rewrites a model so that the floats of each node are in its format.

    Added values are also added to the facts of the model. `overflows` receives the constants that do not fit.
    """

    def __init__(self, model: Model, decided: Classification, overflows: Overflows) -> None:
        facts = model.facts
        self.model, self.weights = model.proto, model.weights
        self.types, self.shapes, self.narrow = facts.types, facts.shapes, facts.narrow
        self.decided = decided
        self.overflows = overflows
        self.fresh = FreshNames(self.model.graph)
        self.uses = uses(self.model.graph)
        self.preserved = value_preserving_inputs(self.types)
        self.sums = IntegerSums(model, decided)
        self.constants = ConstantClasses()
        #: computed constants that may exceed float16, if an option clips them
        self.beyond: set[str] = set()
        #: folded nodes that fill a tensor with one value, by name of the tensor
        self.fillings: dict[str, onnx.NodeProto] = {}
        #: scalar constants added to the main graph, by value and type
        self.scalars: dict[tuple[float, int], str] = {}

    def run(self) -> None:
        """Rewrite the model."""
        self._classify(self.model.graph, self.weights.keys())
        note_computed(self.model, self.constants, self.shapes, self.overflows)
        if self.overflows.clip and standard_version(self.model) >= _WHERE:
            self.beyond = may_exceed(
                self.model.graph, self.constants.folded, lambda node: self.preserved(node, FLOAT16)
            )
        self._graph(self.model.graph, None, None)
        self.sums.report(self.overflows.readers.keys())

    def _classify(self, graph: onnx.GraphProto, constants: Collection[str]) -> None:
        """Find the constants of a graph and of its nested graphs; `constants` are those of outer graphs."""
        local, constant_nodes = split_constants(graph, constants)
        readers = usages(graph.node)
        for node in graph.node:
            for inner in subgraphs(node):
                self._classify(inner, local)
        for node in reversed(constant_nodes):
            # A reader of an unrounded constant needs the result of folding in float32.
            followed = any(
                node_key(reader) in self.constants.folded or not self.reads(reader, position)
                for name in node.output
                for reader, position in readers.get(name, ())
            )
            float_format = self.format_of(node)
            selects = float_format and self.preserved(node, float_format) is not None
            if followed or not selects or node.op_type in NOT_COMMUTING:
                self.constants.folded.add(node_key(node))
        for node in graph.node:
            if node_key(node) in self.constants.folded or cast_target(node):
                self.constants.read_plain.update(node.input)
                continue
            for position, name in enumerate(node.input):
                float_format = self.reads(node, position)
                if float_format:
                    self.constants.read_rounded.add((name, float_format))
                else:
                    self.constants.read_plain.add(name)
        self.constants.read_plain.update(output.name for output in graph.output)
        self.constants.constant |= local

    def format_of(self, node: onnx.NodeProto) -> int:
        """Return the format that a node computes in; 0 for none."""
        chosen = self.decided.classes.get(node_key(node))
        return 0 if chosen is None else _FORMATS.get(chosen, 0)

    def reads(self, node: onnx.NodeProto, position: int) -> int:
        """Return the format that a node requires for one of its inputs; 0 for none."""
        float_format = self.format_of(node)
        if (
            not float_format
            or node_key(node) in self.sums.scaling
            or position in parameter_inputs(node)
            or not self._wanted(node, node.input[position])
        ):
            return 0
        return float_format

    def _wanted(self, node: onnx.NodeProto, name: str) -> bool:
        """Return True if a value must be in the format of a node that reads or computes it."""
        return self.types.get(name, 0) in ROUNDED and (
            node_key(node) in self.decided.requested or self.narrow.get(name, 0) == self.format_of(node)
        )

    def _is_in_format(self, scope: _Scope, name: str, float_format: int) -> bool:
        if self.types.get(name, 0) == float_format:
            return True
        # This loop runs for every operand of a model, and a generator would be slower.
        at: _Scope | None = scope
        while at is not None and (name, float_format) not in at.in_format:
            at = None if name in at.defined else at.parent
        return at is not None

    def _graph(self, graph: onnx.GraphProto, parent: _Scope | None, owner: onnx.NodeProto | None) -> None:
        """Rewrite one graph; its inputs and outputs have the format of `owner`, the node that contains it."""
        scope = _Scope(graph, parent)
        float_format = 0 if owner is None else self.format_of(owner)
        if owner is not None and float_format and standard(owner, "Loop", "Scan"):
            carried = (value.name for value in graph.input)
            scope.in_format.update((name, float_format) for name in carried if self._wanted(owner, name))
        scope.defined.update(value.name for value in graph.input)
        scope.defined.update(tensor.name for tensor in graph.initializer)
        for node in graph.node:
            scope.defined.update(node.output)
        scope.readers = usages(graph.node)
        self._narrow_constants(scope)
        outputs = {value.name for value in graph.output}
        for node in graph.node:
            if node_key(node) in self.constants.folded:
                self._folded(scope, node, outputs if parent is None else set())
            else:
                self._node(scope, node)
        if owner is not None and float_format:
            for value in graph.output:
                if self._wanted(owner, value.name) and not self._is_in_format(
                    scope, value.name, float_format
                ):
                    value.name = self._copy(scope, value.name, float_format)
        edit.set_nodes(graph, scope.nodes)

    def _folded(self, scope: _Scope, node: onnx.NodeProto, outputs: set[str]) -> None:
        """Keep the computation of a constant in float32; round its results only if they are outputs."""
        for position, name in enumerate(node.input):
            edit.replace_input_with(node, position, self._folded_name(scope, name))
        scope.nodes.append(node)
        if filling(node) is not None:
            self.fillings[node.output[0]] = node
        float_format = self.format_of(node)
        wanted = [float_format and name in outputs and self._wanted(node, name) for name in node.output]
        for position, name in enumerate(list(node.output)):
            if wanted[position]:
                self._round_output(scope, node, position, float_format)
                scope.folded_names[name] = node.output[position]

    @staticmethod
    def _folded_name(scope: _Scope, name: str) -> str:
        """Return the name of a folded output before rounding; return other names unchanged."""
        return next((at.folded_names[name] for at in scope.around(name) if name in at.folded_names), name)

    def _node(self, scope: _Scope, node: onnx.NodeProto) -> None:
        """Convert the inputs of a node to its format, and its outputs if they are not in the format."""
        float_format = self.format_of(node)
        is_rounded = bool(float_format) and node_key(node) not in self.sums.unrounded
        made = [is_rounded and self._wanted(node, name) for name in node.output]
        casts = float_format and cast_target(node) == float_format
        for position, name in enumerate(node.input):
            if casts or not self.reads(node, position):
                edit.replace_input_with(node, position, self._folded_name(scope, name))
            elif name not in scope.deferred and not self._is_in_format(scope, name, float_format):
                edit.replace_input_with(node, position, self._copy(scope, name, float_format))
        nested = list(subgraphs(node))
        controls = bool(nested) and standard(node, "If", "Loop", "Scan")
        for inner in nested:
            self._graph(inner, scope, node)
        scope.nodes.append(node)
        if any(made) and float_format == FLOAT16:
            self._note_bounds(node)
            if self.overflows.clip:
                self._clip_filling(node, node.output[0])
        for one in FLOAT_FORMATS:
            if self._selects(scope, node, one):
                scope.in_format.update((name, one) for name in node.output)
        for position, name in enumerate(list(node.output)):
            if not name or not made[position] or position in parameter_outputs(node):
                continue
            if controls:
                scope.in_format.add((name, float_format))
            elif (name, float_format) not in scope.in_format and not self._defers(
                scope, node, name, float_format
            ):
                self._round_output(scope, node, position, float_format)

    def _selects(self, scope: _Scope, node: onnx.NodeProto, float_format: int) -> bool:
        """Return True if a node only selects from values in the format."""
        picked = self.preserved(node, float_format)
        return picked is not None and all(
            self.types.get(node.input[p], 0) not in FLOATS
            or self._is_in_format(scope, node.input[p], float_format)
            for p in picked
            if p < len(node.input) and node.input[p]
        )

    def _defers(self, scope: _Scope, node: onnx.NodeProto, name: str, float_format: int) -> bool:
        """Defer the rounding of a value to its only reader, and return True, if both form one unit."""
        readers = scope.readers.get(name, [])
        if self.uses[name] != 1 or len(readers) != 1:
            return False
        reader, position = readers[0]
        if cast_target(reader) != float_format and not (
            self.reads(reader, position) == float_format
            and (
                (
                    standard(reader, *COMMUTING)
                    and position == 0
                    and self.preserved(reader, float_format) is not None
                )
                or (standard(node, *BIAS_TAKERS) and self._is_bias(node, name, reader, position))
            )
        ):
            return False
        scope.deferred.add(name)
        return True

    def _is_bias(self, node: onnx.NodeProto, name: str, reader: onnx.NodeProto, position: int) -> bool:
        """Return True if `reader` adds one constant per output channel to the result `name` of `node`."""
        if not standard(reader, "Add") or (
            node.op_type != "MatMul" and len(node.input) > 2 and node.input[2]
        ):
            return False
        other = reader.input[1 - position]
        shape, bias = self.shapes.get(name), self.shapes.get(other)
        if other not in self.constants.constant or shape is None or bias is None or len(bias) > len(shape):
            return False
        channel = len(shape) - 1 if node.op_type in {"MatMul", "Gemm"} else 1
        padded = (1,) * (len(shape) - len(bias)) + bias
        return all(size == 1 or (axis == channel and size == shape[axis]) for axis, size in enumerate(padded))

    def _cast(self, scope: _Scope, source: str, target: str, elem_type: int) -> None:
        scope.nodes.append(helper.make_node("Cast", [source], [target], to=elem_type))
        self.types[target] = elem_type

    def _round_output(self, scope: _Scope, node: onnx.NodeProto, position: int, float_format: int) -> None:
        """Round a result to the format; the rounded value has the original name."""
        name = node.output[position]
        raw = self.fresh.make(name, "unrounded")
        narrow = self.fresh.make(name, type_name(float_format))
        edit.rename_output(node, position, raw)
        self.types[raw] = self.types[name]
        source = raw
        if name in self.beyond and float_format == FLOAT16:
            source = self._clipped(scope, raw, name)
        self._cast(scope, source, narrow, float_format)
        self._cast(scope, narrow, name, self.types[name])
        scope.in_format.add((name, float_format))

    def _copy(self, scope: _Scope, name: str, float_format: int) -> str:
        """Return the name of a visible copy in the format; create one if there is none."""
        for at in scope.around(name):
            if (name, float_format) in at.copies:
                return at.copies[name, float_format]
        source = self._clipped(scope, name, name) if name in self.beyond and float_format == FLOAT16 else name
        narrow = self.fresh.make(name, type_name(float_format))
        rounded = self.fresh.make(name, "rounded")
        self._cast(scope, source, narrow, float_format)
        self._cast(scope, narrow, rounded, self.types[name])
        self._register_copy(scope, name, rounded, float_format)
        return rounded

    def _clip_filling(self, node: onnx.NodeProto, name: str) -> None:
        """Clip and count the value with which a node fills the tensor `name`; skip other nodes."""
        values = filling(node)
        if values is None or not exceeds(values):
            return
        limited = self.overflows.round_to(name, values, FLOAT16).astype(values.dtype)
        attribute = next(item for item in node.attribute if item.name == "value")
        edit.set_values(attribute.t, limited)

    def _clipped(self, scope: _Scope, source: str, name: str) -> str:
        """Add nodes that clip a computed constant but keep infinities and NaN; return the clipped value.

        `name` is the name of the constant in the model.
        """
        made = self.fillings.get(name)
        if made is not None:
            twin = edit.clone_unnamed(made)
            edit.rename_output(twin, 0, self.fresh.make(name, "clipped"))
            self.types[twin.output[0]] = self.types[name]
            self._clip_filling(twin, name)
            scope.nodes.append(twin)
            return str(twin.output[0])
        elem_type = self.types[name]

        def add(operator: str, *inputs: str, elem_type: int = elem_type) -> str:
            result = self.fresh.make(name, operator.lower())
            scope.nodes.append(helper.make_node(operator, list(inputs), [result]))
            self.types[result] = elem_type
            return result

        low, high, infinity = (
            self._scalar(value, elem_type) for value in (-FLOAT16_MAX, FLOAT16_MAX, math.inf)
        )
        inside = add("Min", add("Max", source, low), high)
        is_finite = add("Less", add("Abs", source), infinity, elem_type=BOOL)
        return add("Where", is_finite, inside, source)

    def _scalar(self, value: float, elem_type: int) -> str:
        """Return the name of a constant in the main graph."""
        key = value, elem_type
        if key not in self.scalars:
            self.scalars[key] = self.fresh.make("limit", type_name(elem_type))
            tensor = helper.make_tensor(self.scalars[key], elem_type, [], [value])
            edit.register_initializer(self.model.graph, tensor)
            self.types[tensor.name] = elem_type
        return self.scalars[key]

    def _register_copy(self, scope: _Scope, name: str, rounded: str, float_format: int) -> None:
        scope.copies[name, float_format] = rounded
        scope.in_format.add((rounded, float_format))
        scope.defined.add(rounded)

    def _narrow_constants(self, scope: _Scope) -> None:
        """Store constants in the format of their nodes, with a cast back; also keep those read unrounded."""
        kept: list[onnx.TensorProto] = []
        for tensor in scope.graph.initializer:
            formats = self._constant_formats(tensor.name)
            if formats:
                self._name_reader(scope, tensor.name)
            if not formats or tensor.name in self.constants.read_plain:
                kept.append(tensor)
            for float_format in formats:
                values = self.overflows.round_to(tensor.name, dense(tensor), float_format)
                narrow = self._constant_cast(scope, tensor.name, float_format, alone=len(formats) == 1)
                kept.append(
                    onnx.TensorProto(
                        name=narrow, data_type=float_format, dims=tensor.dims, raw_data=values.tobytes()
                    )
                )
        edit.set_initializers(scope.graph, kept)
        if scope.parent is not None:
            return
        entries = list(self.weights.values())
        self.weights.clear()
        for weight in entries:
            formats = self._constant_formats(weight.name)
            if formats:
                self._name_reader(scope, weight.name)
            if not formats or weight.name in self.constants.read_plain:
                self.weights[weight.name] = weight
            for float_format in formats:
                narrow = self._constant_cast(scope, weight.name, float_format, alone=len(formats) == 1)
                if weight.blocks is None:
                    source = converted_floats(
                        weight.source, weight.elem_type, float_format, weight.name, self.overflows
                    )
                    self.weights[narrow] = Weight(narrow, float_format, weight.dims, source)
                else:
                    # The device decodes blocks to this type.
                    self.weights[narrow] = replace(weight, name=narrow, elem_type=float_format)

    def _name_reader(self, scope: _Scope, name: str) -> None:
        """Record a reader of a constant, for messages about overflows."""
        for node, position in scope.readers.get(name, ()):
            if self.reads(node, position):
                self.overflows.readers[name] = node_label(node)
                return

    def _note_bounds(self, node: onnx.NodeProto) -> None:
        """Count overflows among the bounds that a float16 node has as attributes."""
        for attribute in node.attribute:
            if standard(node, "Clip") and attribute.name in {"min", "max"}:
                name = f"{node_label(node)}.{attribute.name}"
                self.overflows.round_to(name, np.array([attribute.f], np.float32), FLOAT16)

    def _constant_formats(self, name: str) -> list[int]:
        return [
            float_format
            for float_format in FLOAT_FORMATS
            if (name, float_format) in self.constants.read_rounded
        ]

    def _constant_cast(self, scope: _Scope, name: str, float_format: int, *, alone: bool) -> str:
        """Add the cast of a narrow constant; the result takes the name of the constant if that is unused."""
        narrow = self.fresh.make(name, type_name(float_format))
        if name in self.constants.read_plain or not alone:
            rounded = self.fresh.make(name, "rounded")
            self._cast(scope, narrow, rounded, self.types[name])
            self._register_copy(scope, name, rounded, float_format)
        else:
            self._cast(scope, narrow, name, self.types[name])
            scope.in_format.add((name, float_format))
        self.types[narrow] = float_format
        return narrow


@compiler_pass()
def emulate_float16_pass(model: Model, context: Context) -> None:
    """Round the floats of each node to its precision."""
    if any(chosen in ROUNDED_CLASSES for chosen in context.plan.classes.values()):
        Float16Emulator(model, context.plan, context.overflows).run()


def round_as_model(model: Model, hardware: str | None) -> None:
    """Round only the float16 and bfloat16 values of the model.

    The facts of the model do not change. `hardware` decides whether bfloat16 values are rounded.
    """
    facts = model.facts.copy()
    if facts.narrow:
        decided = decide(model.proto, facts, CompileOptions(aic_hw_version=hardware), None)
        Float16Emulator(replace(model, facts=facts), decided, Overflows(clip=False)).run()
