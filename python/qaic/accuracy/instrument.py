"""One graph that computes the reference, the deployed program, rounded nodes, and sums of their differences.

The deployed graph and its names do not change. The added nodes are a copy of the float graph, with separate
inputs for the same values, and a copy of each rounded node of the deployed program, which reads values of the
float graph. Only sums and counts leave the graph.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import onnx
from onnx import helper

from qaic.accuracy.observed import Kind, ObservedNode, Twin, observed_nodes
from qaic.accuracy.observer_nodes import ObserverNodes, extend_interface, make_node
from qaic.compiler.ir.constants.in_graph import constant_values
from qaic.compiler.ir.elem_types import FLOAT
from qaic.compiler.ir.graph_edits import (
    add_input,
    add_output,
    append_nodes,
    clone_unnamed,
    register_initializer,
    register_sparse_initializer,
    rename_values,
)
from qaic.compiler.ir.graph_walk import all_nodes, producers, standard_version, subgraphs
from qaic.compiler.ir.interface import TensorSpec
from qaic.compiler.ir.model import Context, Model
from qaic.compiler.ir.quantization import QuantParams
from qaic.support.program_names import RETAINED_STATE_SUFFIX

#: prefixes for names of the reference, of nodes that read the reference, and of recomputed values
REFERENCE: Final = "reference/"
_OWN: Final = "own/"
_AGAIN: Final = "inherited/"
#: output with the sums of all nodes; evenly spaced elements of the value, for histograms, follow each
OBSERVED: Final = "accuracy/observed"
#: input that is always 0
ZERO: Final = "accuracy/zero"

#: sums and counts of one node, in the order of the output
FIELDS: Final = (
    "elements",
    "signal",
    "inherited",
    "own",
    "weights",
    "minimum",
    "maximum",
    "overflow",
    "underflow",
    "saturation",
    "quantile",
    "spaced",
    "channel_median",
    "channel_maximum",
)

#: most elements of each value in its histogram
_HISTOGRAM_ELEMENTS: Final = 256
#: number of elements from which quantile and underflow are computed from evenly spaced elements
SPACED: Final = 1 << 14
#: largest number of channels whose median is computed
_MOST_CHANNELS: Final = 1 << 13
#: operators between a result and its final value; integers may be reshaped
_ROUNDING_CHAIN: Final = frozenset({"Cast", "DequantizeLinear", "QuantizeLinear", "Reshape"})
#: smallest float32 that becomes infinite in float16
_INFINITE_HALF: Final = 65520.0
#: smallest normal float16
_SMALLEST_HALF: Final = 2.0**-14


class Observe:
    """Pass that adds the reference and the observers to the deployed graph.

    `reference` is the float graph; `folded` maps results of convolutions with a folded normalization to the
    original results.
    """

    def __init__(self, reference: Model, folded: Mapping[str, str]) -> None:
        self._reference = reference
        self._folded = folded
        self.twin = Twin()

    def run(self, model: Model, context: Context) -> None:
        """Add the reference and the observers to the model."""
        nodes, fused = observed_nodes(self._reference, model, context, self._folded)
        inputs = tuple(value.name for value in model.proto.graph.input)
        outputs = tuple(value.name for value in model.proto.graph.output)
        instrumenter = _Instrumenter(self._reference, model, nodes)
        instrumenter.run()
        model.facts.types |= dict.fromkeys(instrumenter.flats, FLOAT)
        self._type_copies(model)
        added = tuple(value.name for value in model.proto.graph.input)[len(inputs) :]
        results = sum(bool(name) for node in self._reference.proto.graph.node for name in node.output)
        others = results - len(nodes) - fused
        self.twin = Twin(tuple(nodes), inputs, outputs, added, tuple(instrumenter.elements), fused, others)

    def _type_copies(self, model: Model) -> None:
        """Record the types of copied values, which are those of the originals."""
        types, originals = model.facts.types, self._reference.facts.types
        for name in {name for node in model.proto.graph.node for name in node.output if name}:
            prefix = next((prefix for prefix in (REFERENCE, _OWN, _AGAIN) if name.startswith(prefix)), "")
            # Values that are computed from a copy have other types.
            original = re.sub(r"/copy(_\d+)?$", "", name.removeprefix(prefix))
            elem_type = originals.get(original, types.get(original))
            if prefix and elem_type is not None:
                types.setdefault(name, elem_type)


class _Instrumenter(ObserverNodes):
    """Adds the reference and observers to a deployed graph."""

    def __init__(self, reference: Model, deployed: Model, nodes: Sequence[ObservedNode]) -> None:
        self.reference = reference
        self.deployed = deployed
        self.rows = nodes
        super().__init__(deployed.proto.graph, standard_version(deployed.proto))
        self.makers = producers(self.graph.node)
        self.constants = constant_values(self.graph, deployed.weights)
        self.inputs = {value.name for value in self.graph.input}
        self.outputs = {value.name for value in self.graph.output}
        self.observed = {row.value: row for row in nodes}
        #: value of the model -> its name in the reference
        self.named: dict[str, str] = {}
        #: value of the deployed graph -> its copy computed from the reference, and its recomputed copy
        self.own: dict[str, str] = {}
        self.again: dict[str, str] = {}
        #: the reference and the copies, in topological order
        self.added: list[onnx.NodeProto] = []
        #: elements of each row's value, of the reference and of the deployed graph, that follow its sums
        self.elements: list[int] = []
        #: integers of observed values -> the node that dequantizes them
        self.integers = {
            str(node.input[0]): node
            for node in self.graph.node
            if node.op_type == "DequantizeLinear" and node.output[0] in self.observed
        }
        #: integers -> the integers of the reference's value
        self.fed_integers: dict[str, str] = {}

    def run(self) -> None:
        self._add_reference()
        rows: list[str] = []
        groups: list[list[onnx.NodeProto]] = []
        for row in self.rows:
            # Rows are in reverse order, so a row must not read results of another row.
            self.observers, self.made = [], {}
            self.elements.append(0)
            rows.append(self._row(row))
            groups.append(self.observers)
        append_nodes(self.graph, self.added)
        # The engine walks from results to operands, and starts with the operand that is last in the graph.
        # It therefore computes the rows in order, and frees the values of a row after it. In another order,
        # it would compute the last row first, and keep all values of both graphs for the other rows.
        for group in reversed(groups):
            append_nodes(self.graph, group)
        self.observers = []
        if rows:
            self._add_node("Concat", rows, OBSERVED, axis=1)
        else:
            self._add_node("Identity", [self._number([[0.0] * len(FIELDS)])], OBSERVED)
        append_nodes(self.graph, self.observers)
        size = max(1, len(rows)) * len(FIELDS) + 2 * sum(self.elements)
        extend_interface(self.deployed, [TensorSpec(OBSERVED, FLOAT, (1, size))], REFERENCE, ZERO)

    # --- the reference ---------------------------------------------------------------------------------

    def _add_reference(self) -> None:
        """Copy the float graph; constants of both graphs are shared if they are not outputs."""
        graph = self.reference.proto.graph
        names = {value.name for value in graph.input}
        names |= {name for node in all_nodes(graph.node) for name in node.output if name}
        own = {tensor.name: tensor for tensor in self.graph.initializer}
        for inner in _nested(graph.node):
            names |= {value.name for value in inner.input} | {tensor.name for tensor in inner.initializer}
        for tensor in graph.initializer:
            if tensor.name in self.outputs or own.get(tensor.name) != tensor:
                names.add(tensor.name)
                register_initializer(self.graph, tensor, REFERENCE + tensor.name)
        for name, weight in self.reference.weights.items():
            if name in self.outputs or self.deployed.weights.get(name) is not weight:
                names.add(name)
                self.deployed.weights[REFERENCE + name] = replace(weight, name=REFERENCE + name)
        for sparse in graph.sparse_initializer:
            names.add(sparse.values.name)
            register_sparse_initializer(self.graph, sparse, REFERENCE + sparse.values.name)
        self.named = {name: REFERENCE + name for name in names}
        for node in graph.node:
            copy = clone_unnamed(node)
            rename_values([copy], self.named)
            self.added.append(copy)
        for value in graph.input:
            add_input(self.graph, value, REFERENCE + value.name)
        present = {value.name for value in self.graph.output}
        for value in graph.output:
            if value.name in present:
                add_output(self.graph, value, REFERENCE + value.name)

    # --- copies of parts of the deployed graph -----------------------------------------------------------

    def _fed(self, name: str) -> str | None:
        """Return a value of the deployed graph computed from the reference; None if impossible."""
        if name in self.constants or not name:
            return name
        if name in self.inputs or (
            name in self.named and (name in self.observed or not self._is_float(name))
        ):
            return self.named.get(name, name)
        if name in self.integers:
            return self._as_integers(name)
        integers = self._taken_integers(name)
        if integers is not None:
            return self.named[str(self.integers[integers].output[0])]
        return self._copied(name, self.own, _OWN, self._fed)

    def _taken_integers(self, name: str) -> str | None:
        """Return the integers of an observed value that a value dequantizes; None if it does not."""
        node = self.makers.get(name)
        if node is None or node.op_type != "DequantizeLinear" or node.input[0] not in self.integers:
            return None
        return str(node.input[0])

    def _as_integers(self, name: str) -> str:
        """Quantize a value of the reference as the deployed graph quantizes its own."""
        if name not in self.fed_integers:
            node = self.integers[name]
            self.fed_integers[name] = self.fresh.make(_OWN + name, "quantized")
            axis = {item.name: item.i for item in node.attribute if item.name == "axis"}
            read = [self.named[str(node.output[0])], *map(str, node.input[1:])]
            made = make_node("QuantizeLinear", read, self.fed_integers[name], domain=node.domain, **axis)
            self.added.append(made)
        return self.fed_integers[name]

    def _repeated(self, name: str) -> str | None:
        """Return the name of a value that observers may read: the original, or else a recomputed copy."""
        if name in self.constants or not name:
            return name
        if name in self.again:
            return self.again[name]
        row = self.observed.get(name)
        is_state = f"{name}{RETAINED_STATE_SUFFIX}" in self.outputs
        if name in self.inputs and not is_state:
            return self.named[name]
        if (row is not None and row.is_read_directly) or name in self.inputs:
            if not self._is_float(name):
                return None
            # The engine would merge both, and then could not fuse the nodes of the program.
            apart = self.fresh.make(_AGAIN + name, "apart")
            self.added.append(make_node("Add", [name, self._zero()], apart))
            self.again[name] = apart
            return apart
        return self._copied(name, self.again, _AGAIN, self._repeated)

    def _copied(
        self,
        name: str,
        known: dict[str, str],
        prefix: str,
        source: Callable[[str], str | None],
        through: str | None = None,
    ) -> str | None:
        """Copy the node that computes a value and its operands; `through` is also computed."""
        pending = [name]
        while pending:
            current = pending[-1]
            if current in known:
                pending.pop()
                continue
            node = self.makers.get(current)
            if node is None:
                return None
            read = [part for part in dict.fromkeys((*node.input, *_captured(node))) if part]
            inner = [
                part
                for part in read
                if part not in known and (part == through or self._is_inner(part, prefix))
            ]
            if inner:
                pending += inner
                continue
            renamed: dict[str, str] = {}
            for part in read:
                found = known[part] if part == through else source(part)
                if found is None:
                    return None
                renamed[part] = found
            copy = clone_unnamed(node)
            local = {
                made for held in _nested([node]) for inner_node in held.node for made in inner_node.output
            }
            renamed |= {made: self.fresh.make(prefix + made, "inner") for made in local if made}
            for made in node.output:
                if made:
                    renamed[made] = self.fresh.make(prefix + made, "copy")
                    known[made] = renamed[made]
            rename_values([copy], renamed)
            self.added.append(copy)
            pending.pop()
        return known[name]

    def _is_inner(self, name: str, prefix: str) -> bool:
        """Return True if a value must be copied before its reader."""
        if name in self.constants or name not in self.makers:
            return False
        row = self.observed.get(name)
        if prefix == _AGAIN:
            return not (row is not None and row.is_read_directly)
        if name in self.integers or self._taken_integers(name) is not None:
            return False
        return not (name in self.named and (row is not None or not self._is_float(name)))

    def _is_float(self, name: str) -> bool:
        return self.deployed.facts.types.get(name, self.reference.facts.types.get(name, 0)) == FLOAT

    # --- observers -------------------------------------------------------------------------------------

    def _row(self, row: ObservedNode) -> str:
        """Add the observer of one value; return the name of its sums and elements, ``[1, number]``."""
        value = row.value
        real = self.named[value]
        flat = self._flat(real)
        cut = self._cut(row, flat)
        found: dict[str, str] = {
            "elements": self._length(flat, row.size),
            "signal": self._reduced("ReduceSumSquare", cut),
        }
        elements: tuple[str, ...] = ()
        deployed = value if row.is_read_directly else self._repeated(value)
        if deployed is not None:
            deployed = self._flat(deployed)
            found["inherited"] = self._distance(self._cut(row, deployed), cut)
            elements = self._elements(row, flat, deployed)
        for name, operator in (("minimum", "ReduceMin"), ("maximum", "ReduceMax")):
            found[name] = self._reduced(operator, flat)
        own = self._own(row)
        if own is not None:
            own = self._cut(row, self._flat(own))
            found["own"] = self._distance(own, cut)
            raw = self._before_rounding(row)
            if raw is not None:
                raw = self._flat(raw)
                if row.params is not None:
                    # Integers clip values, which replaces a Relu before them.
                    limits = [self._number(limit) for limit in _range(row.params)]
                    raw = self._node("Clip", [raw, *limits], "clipped")
                found["weights"] = self._distance(self._cut(row, raw), cut)
            if row.precision.value == "fp16":
                low, high = (self._number([[limit]]) for limit in (-_INFINITE_HALF, _INFINITE_HALF))
                found["overflow"] = self._counted_beyond(
                    found, low, high, row.size, lambda: self._overflows(own, cut)
                )
        if row.params is not None:
            found["saturation"] = self._saturated(row, found, cut)
        self._add_ranges(row, found, real, flat)
        zero = self._number([[0.0]])
        name = self.fresh.make(value, "observed")
        self._add_node("Concat", [*(found.get(field, zero) for field in FIELDS), *elements], name, axis=1)
        return name

    def _cut(self, row: ObservedNode, flat: str) -> str:
        """Limit a value as its only readers do; the values that they cut do not matter."""
        for limiter in row.limiters:
            copy = clone_unnamed(limiter)
            cut = self.fresh.make(flat, "cut")
            rename_values([copy], {**self.named, limiter.input[0]: flat, limiter.output[0]: cut})
            self.observers.append(copy)
            self.flats.append(cut)
            flat = cut
        return flat

    def _own(self, row: ObservedNode) -> str | None:
        if row.kind is not Kind.ROUNDED or row.value in self.integers:
            return None
        return self._copied(row.value, self.own, _OWN, self._fed, self._taken_integers(row.value))

    def _before_rounding(self, row: ObservedNode) -> str | None:
        """Return the copy of a node's result before rounding, if its weights are rounded."""
        name, node, is_float = row.value, self.makers[row.value], True
        while node.op_type in _ROUNDING_CHAIN and node.input[0] in self.makers:
            if node.op_type in {"DequantizeLinear", "QuantizeLinear"}:
                is_float = node.op_type == "QuantizeLinear"
            elif node.op_type == "Reshape" and is_float:
                break
            name = str(node.input[0])
            node = self.makers[name]
        if name == row.value or not is_float or not self._has_reduced_constant(name):
            return None
        return self.own.get(name)

    def _has_reduced_constant(self, name: str) -> bool:
        """Return True if a value is computed from observed values and constants of another precision."""
        pending, seen = [name], {name}
        while pending:
            node = self.makers.get(pending.pop())
            for part in () if node is None else node.input:
                if part in self.constants and part:
                    maker = self.makers.get(part)
                    weight = self.deployed.weights.get(part)
                    if (maker is not None and maker.op_type in {"Cast", "DequantizeLinear"}) or (
                        weight is not None and weight.blocks is not None
                    ):
                        return True
                elif part in self.own and part not in seen:
                    seen.add(part)
                    pending.append(part)
        return False

    def _overflows(self, own: str, flat: str) -> str:
        """Count results that are finite in the reference but not in the deployed node."""
        infinity = self._number([[math.inf]])
        finite = self._count(self._binary("Less", self._abs(flat), infinity))
        still = self._count(self._binary("Less", self._abs(own), infinity))
        return self._binary("Sub", finite, still)

    def _saturated(self, row: ObservedNode, found: dict[str, str], flat: str) -> str:
        """Count values that exceed the range of the integers by more than half a step."""
        params = row.params
        if params is None:
            raise AssertionError(row.value)
        low, high = _range(params)
        low, high = low - params.scale / 2, high + params.scale / 2
        bounds = self._number([[low]]), self._number([[high]])

        def count() -> str:
            below = self._binary("Less", flat, bounds[0])
            return self._count(self._binary("Or", below, self._binary("Less", bounds[1], flat)))

        return self._counted_beyond(found, *bounds, row.size, count)

    def _add_ranges(self, row: ObservedNode, found: dict[str, str], real: str, flat: str) -> None:
        """Add quantile, underflow and the channels of a value."""
        if not self._has_elements(row.size):
            return
        spaced, size = self._spaced(flat, row.size, SPACED)
        sizes = self._abs(spaced)
        found["spaced"] = self._length(spaced, size)
        found["quantile"] = self._nth_largest(sizes, self._thousandth(spaced, size))
        if row.precision.value == "fp16" and row.kind is Kind.ROUNDED:
            small = self._binary("Less", sizes, self._number([[_SMALLEST_HALF]]))
            some = self._binary("Less", self._number([[0.0]]), sizes)
            found["underflow"] = self._count(self._binary("And", small, some))
        axis, shape = row.channel_axis, row.shape
        if axis is None or shape is None or shape[axis] > _MOST_CHANNELS:
            return
        channels = sizes
        if row.size != shape[axis]:
            largest = self._channel_largest(self._abs(real), [at for at in range(len(shape)) if at != axis])
            channels = self._node("Reshape", [largest, self._integer(1, -1)], "channels")
        found["channel_median"] = self._nth_largest(channels, shape[axis] // 2 + 1)
        found["channel_maximum"] = self._reduced("ReduceMax", channels)

    def _elements(self, row: ObservedNode, flat: str, deployed: str) -> tuple[str, ...]:
        """Return elements of a rounded value, and of the same value in the deployed program."""
        size = row.size
        if not self._has_elements(size) or row.kind is not Kind.ROUNDED:
            return ()
        if size is None:
            # The number of elements is the same in every run; a smaller value repeats some elements.
            places = self._binary("Mul", self._integer(*range(_HISTOGRAM_ELEMENTS)), self._size(flat))
            places = self._binary("Div", places, self._integer(_HISTOGRAM_ELEMENTS))
            self.elements[-1] = _HISTOGRAM_ELEMENTS
            return tuple(
                self._node("Gather", [name, places], "elements", axis=1) for name in (flat, deployed)
            )
        flat, count = self._spaced(flat, size, _HISTOGRAM_ELEMENTS)
        deployed, _ = self._spaced(deployed, size, _HISTOGRAM_ELEMENTS)
        self.elements[-1] = count or 0
        return flat, deployed

    def _zero(self) -> str:
        if not any(value.name == ZERO for value in self.graph.input):
            add_input(self.graph, helper.make_tensor_value_info(ZERO, FLOAT, [1]))
        return ZERO


def _range(params: QuantParams) -> tuple[float, float]:
    """Return the smallest and the largest number that the integers represent."""
    low, high = params.limits
    return params.scale * (low - params.zero_point), params.scale * (high - params.zero_point)


def _nested(nodes: Iterable[onnx.NodeProto]) -> Iterable[onnx.GraphProto]:
    """Yield every graph inside nodes."""
    for node in all_nodes(nodes):
        yield from subgraphs(node)


def _captured(node: onnx.NodeProto) -> set[str]:
    """Return the outer values that graphs inside a node read."""
    read: set[str] = set()
    made: set[str] = set()
    for graph in _nested([node]):
        made |= {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
        read |= {value.name for value in graph.output}
        for inner in graph.node:
            made.update(inner.output)
            read.update(inner.input)
    return read - made - {""}
