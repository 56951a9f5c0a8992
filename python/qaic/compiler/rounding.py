"""Rounding every float of a graph to the float16 grid, exactly where the card would (compile-options §5.2).

Kernels stay in fp32. A value is put on the grid by a pair of casts, float to float16 and back; the engine
keeps such pairs. One pass in topological order decides for each value whether it needs a pair: not when it
is picked from values on the grid, and not yet when its only reader belongs to the same fused unit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from qaic.compiler.constness import Constness, casts_to_half, classify, node_key, typed_picks
from qaic.compiler.elem_types import DOUBLE, FLOAT, FLOAT16
from qaic.compiler.graph_walk import FreshNames, subgraphs, uses
from qaic.compiler.half_weights import HalfSource, Overflows
from qaic.compiler.initializers import dense
from qaic.compiler.precision_ops import BIAS_TAKERS, COMMUTING, parameter_inputs, parameter_outputs, standard
from qaic.compiler.weights import Weight

if TYPE_CHECKING:
    import onnx

    from qaic.compiler.value_types import ValueFacts

#: element types whose values are rounded; float64 is treated as float32 (§5.2)
ROUNDED: Final = frozenset({FLOAT, DOUBLE})


@dataclass(slots=True)
class _Scope:
    """What is known inside one graph; names not found here belong to the graphs around it."""

    graph: onnx.GraphProto
    parent: _Scope | None
    defined: set[str] = field(default_factory=set)
    on_grid: set[str] = field(default_factory=set)
    #: value -> its copy on the grid
    copies: dict[str, str] = field(default_factory=dict)
    #: values left off the grid for their only reader
    deferred: set[str] = field(default_factory=set)
    #: result of a folded node that is an output -> the same before rounding
    folded_names: dict[str, str] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    #: value -> the nodes of this graph that read it, with the position
    readers: dict[str, list[tuple[onnx.NodeProto, int]]] = field(default_factory=dict)


class Rounder:
    """Rewrites a model so that its floats are on the float16 grid.

    Parameters
    ----------
    model : onnx.ModelProto
        Skeleton, changed in place.
    weights : dict[str, Weight]
        Weights of the main graph, changed in place.
    facts : ValueFacts
        Types and shapes of the values; new values are added.
    only : set[str] or None
        Names of the values to round, extended by copies that are made; None rounds all floats.
    overflows : Overflows
        Receives the constants that do not fit.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        weights: dict[str, Weight],
        facts: ValueFacts,
        *,
        only: set[str] | None,
        overflows: Overflows,
    ) -> None:
        self.model = model
        self.weights = weights
        self.types = facts.types
        self.shapes = facts.shapes
        self.only = only
        self.overflows = overflows
        self.fresh = FreshNames(model.graph)
        self.uses = uses(model.graph)
        self.picks = typed_picks(self.types)
        self.constness = Constness()

    def run(self) -> None:
        """Rewrite the model."""
        classify(self.model.graph, self.weights.keys(), self.picks, self.constness)
        self._graph(self.model.graph, None, [])

    def _wanted(self, name: str) -> bool:
        """Whether a value must be on the grid when an fp16 node reads or makes it."""
        return self.types.get(name, 0) in ROUNDED and (self.only is None or name in self.only)

    def _on_grid(self, scope: _Scope, name: str) -> bool:
        if self.types.get(name, 0) == FLOAT16:
            return True
        at: _Scope | None = scope
        while at is not None:
            if name in at.on_grid:
                return True
            if name in at.defined:
                return False
            at = at.parent
        return False

    def _graph(self, graph: onnx.GraphProto, parent: _Scope | None, given: list[str]) -> None:
        """Rewrite one graph; `given` are inputs known to be on the grid."""
        scope = _Scope(graph, parent)
        scope.defined.update(value.name for value in graph.input)
        scope.defined.update(tensor.name for tensor in graph.initializer)
        scope.on_grid.update(given)
        for node in graph.node:
            scope.defined.update(node.output)
            for position, name in enumerate(node.input):
                scope.readers.setdefault(name, []).append((node, position))
        self._halve_constants(scope)
        outputs = {value.name for value in graph.output}
        for node in graph.node:
            if node_key(node) in self.constness.folded:
                self._folded(scope, node, outputs if parent is None else set())
            else:
                self._node(scope, node)
        if parent is not None:
            for value in graph.output:
                if self._wanted(value.name) and not self._on_grid(scope, value.name):
                    value.name = self._copy(scope, value.name)
        rewritten = [type(node).FromString(node.SerializeToString()) for node in scope.nodes]
        del graph.node[:]
        graph.node.extend(rewritten)

    def _folded(self, scope: _Scope, node: onnx.NodeProto, outputs: set[str]) -> None:
        """Keep a constant computation in fp32; round it only where it is an output of the program."""
        for position, name in enumerate(node.input):
            node.input[position] = scope.folded_names.get(name, name)
        scope.nodes.append(node)
        for position, name in enumerate(node.output):
            if name in outputs and self._wanted(name):
                self._round_output(scope, node, position)
                scope.folded_names[name] = node.output[position]

    def _node(self, scope: _Scope, node: onnx.NodeProto) -> None:
        """Put the inputs of an fp16 node on the grid, and its outputs where they are not by themselves."""
        exempt = range(len(node.input)) if casts_to_half(node) else parameter_inputs(node)
        for position, name in enumerate(node.input):
            if position not in exempt and self._wanted(name) and not self._on_grid(scope, name):
                if name in scope.deferred:
                    continue
                node.input[position] = self._copy(scope, name)
        nested = list(subgraphs(node))
        for inner in nested:
            looping = standard(node, "Loop", "Scan")
            self._graph(inner, scope, [value.name for value in inner.input] if looping else [])
        scope.nodes.append(node)
        picked = self.picks(node)
        selects = picked is not None and all(
            self.types.get(node.input[p], 0) not in ROUNDED or self._on_grid(scope, node.input[p])
            for p in picked
            if p < len(node.input) and node.input[p]
        )
        for position, name in enumerate(node.output):
            if not name or not self._wanted(name) or position in parameter_outputs(node):
                continue
            if selects or (nested and standard(node, "If", "Loop", "Scan")):
                scope.on_grid.add(name)
            elif not self._defers(scope, node, name):
                self._round_output(scope, node, position)

    def _defers(self, scope: _Scope, node: onnx.NodeProto, name: str) -> bool:
        """Leave the rounding of a value to its only reader, where both are one unit; remembers it."""
        readers = scope.readers.get(name, [])
        if self.uses[name] != 1 or len(readers) != 1:
            return False
        reader, position = readers[0]
        if not (
            casts_to_half(reader)
            or (standard(reader, *COMMUTING) and position == 0 and self.picks(reader) is not None)
            or (standard(node, *BIAS_TAKERS) and self._is_bias(node, name, reader, position))
        ):
            return False
        scope.deferred.add(name)
        return True

    def _is_bias(self, node: onnx.NodeProto, name: str, reader: onnx.NodeProto, position: int) -> bool:
        """Whether `reader` adds a constant per output channel to the result `name` of `node`."""
        if not standard(reader, "Add") or (
            node.op_type != "MatMul" and len(node.input) > 2 and node.input[2]
        ):
            return False
        other = reader.input[1 - position]
        shape, bias = self.shapes.get(name), self.shapes.get(other)
        if other not in self.constness.constant or shape is None or bias is None or len(bias) > len(shape):
            return False
        channel = len(shape) - 1 if node.op_type in {"MatMul", "Gemm"} else 1
        padded = (1,) * (len(shape) - len(bias)) + bias
        return all(size == 1 or (axis == channel and size == shape[axis]) for axis, size in enumerate(padded))

    def _cast(self, scope: _Scope, source: str, target: str, elem_type: int) -> None:
        from onnx import helper

        scope.nodes.append(helper.make_node("Cast", [source], [target], to=elem_type))
        self.types[target] = elem_type

    def _round_output(self, scope: _Scope, node: onnx.NodeProto, position: int) -> None:
        """Put a result on the grid under its own name."""
        name = node.output[position]
        raw = self.fresh.make(name, "unrounded")
        half = self.fresh.make(name, "float16")
        node.output[position] = raw
        self.types[raw] = self.types[name]
        self._cast(scope, raw, half, FLOAT16)
        self._cast(scope, half, name, self.types[name])
        scope.on_grid.add(name)

    def _copy(self, scope: _Scope, name: str) -> str:
        """Return the name of a copy on the grid that this graph can see; make one where there is none."""
        at: _Scope | None = scope
        while at is not None:
            if name in at.copies:
                return at.copies[name]
            if name in at.defined:
                break
            at = at.parent
        half = self.fresh.make(name, "float16")
        rounded = self.fresh.make(name, "rounded")
        self._cast(scope, name, half, FLOAT16)
        self._cast(scope, half, rounded, self.types[name])
        self._register_copy(scope, name, rounded)
        return rounded

    def _register_copy(self, scope: _Scope, name: str, rounded: str) -> None:
        scope.copies[name] = rounded
        scope.on_grid.add(rounded)
        scope.defined.add(rounded)
        if self.only is not None:
            self.only.add(rounded)

    def _halve_constants(self, scope: _Scope) -> None:
        """Store the constants of fp16 nodes as float16, with a cast back; what is read plain stays, too."""
        from onnx import numpy_helper

        kept: list[onnx.TensorProto] = []
        for tensor in scope.graph.initializer:
            if not self._wanted(tensor.name) or tensor.name not in self.constness.read_rounded:
                kept.append(tensor)
                continue
            half = self._constant_cast(scope, tensor.name)
            values = self.overflows.to_half(tensor.name, dense(tensor))
            if tensor.name in self.constness.read_plain:
                kept.append(tensor)
            kept.append(numpy_helper.from_array(values, half))
        copies = [type(tensor).FromString(tensor.SerializeToString()) for tensor in kept]
        del scope.graph.initializer[:]
        scope.graph.initializer.extend(copies)
        if scope.parent is not None:
            return
        entries = list(self.weights.values())
        self.weights.clear()
        for weight in entries:
            plain = not self._wanted(weight.name) or weight.name not in self.constness.read_rounded
            if plain or weight.name in self.constness.read_plain:
                self.weights[weight.name] = weight
            if not plain:
                half = self._constant_cast(scope, weight.name)
                source = HalfSource(weight.source, weight.elem_type, weight.name, self.overflows)
                self.weights[half] = Weight(half, FLOAT16, weight.dims, source)

    def _constant_cast(self, scope: _Scope, name: str) -> str:
        """Add the cast behind a float16 constant; its result takes the constant's name if that is free."""
        half = self.fresh.make(name, "float16")
        if name in self.constness.read_plain:
            rounded = self.fresh.make(name, "rounded")
            self._cast(scope, half, rounded, self.types[name])
            self._register_copy(scope, name, rounded)
        else:
            self._cast(scope, half, name, self.types[name])
            scope.on_grid.add(name)
        self.types[half] = FLOAT16
        return half
