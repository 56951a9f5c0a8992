"""Inserts Q and DQ for every value of a quantized group, as planned.

Every value of a quantized node is between a QuantizeLinear and a DequantizeLinear. The dequantized value
keeps the name of the float value, so that float nodes, nested graphs and outputs do not change. The engine
fuses the nodes between two such pairs into an integer kernel. Operators that only move values read the
integers directly, which needs no optimization by the engine.

A matrix product with a bias becomes a Gemm, for which the engine has a kernel that adds the bias to the sums.
Data with more than two dimensions is reshaped to two and back, as integers.

This module decides nothing: the plan states the quantized values, their schemes and their parameters.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from qaic import _core
from qaic.compiler.ir import graph_edits as edit
from qaic.compiler.ir.constants.in_graph import read_array, with_factors
from qaic.compiler.ir.constants.weights import ComputedSource, MemoryRange, Weight
from qaic.compiler.ir.elem_types import FLOAT, INT8, INT16, UINT8, tensor_bytes
from qaic.compiler.ir.graph_walk import subgraphs, uses
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.compiler.ir.precision import PrecisionClass
from qaic.compiler.ir.quantization import (
    FloatNodes,
    Group,
    PlannedTable,
    PlannedWeight,
    QuantizationPlan,
    QuantizedBias,
    QuantizedGroup,
    QuantParams,
    Scheme,
    operands,
    results,
)
from qaic.compiler.quantization.builder import GraphBuilder, QuantizedTensor
from qaic.options.table import is_quantizing


def quantized_weight(
    name: str,
    inner: Weight,
    scales: npt.NDArray[np.float32],
    offset: int,
    *,
    axis: int | None,
    precision: str,
    unsigned: bool,
) -> Weight:
    """Describe the integers of a float32 constant as a separate weight.

    There is one scale, or one per channel along `axis`. All channels share the offset, as a signed integer.
    `precision` is ``Int8`` or ``Int16``. With `unsigned`, int8 is stored as uint8, shifted by 128.
    """
    elem_type = INT16 if precision == "Int16" else UINT8 if unsigned else INT8

    def chunks() -> Iterator[bytes | memoryview]:
        # Scales per channel do not follow the boundaries of pieces, so the weight is quantized as a whole.
        values = read_array(inner)
        if axis is None:
            stored = _core.quantize_tensor(values, float(scales.reshape(-1)[0]), offset, precision)
        else:
            offsets = np.full(len(scales), offset, np.int32)
            stored = _core.quantize_tensor(values, scales, offsets, precision, axis)
        if elem_type == UINT8:
            stored = stored.view(np.uint8) ^ np.uint8(0x80)
        yield from MemoryRange(stored.tobytes()).chunks()

    nbytes = tensor_bytes(elem_type, inner.dims)
    return Weight(name, elem_type, inner.dims, ComputedSource(nbytes, chunks))


_QUANTIZED: Final = frozenset({"QuantizeLinear", "DequantizeLinear"})

#: first operator set whose Clip runs on uint8, with its bounds as inputs
_CLIP_UINT8_VERSION: Final = 12
_CLIP_INPUTS_VERSION: Final = 11


class Inserter(GraphBuilder):
    """Rewrites the main graph by a plan."""

    def __init__(self, model: Model, classes: dict[str, PrecisionClass]) -> None:
        super().__init__(model, classes)
        #: value -> its integers
        self.stored: dict[str, QuantizedTensor] = {}
        #: value of a float node -> the value after quantization and dequantization
        self._reals: dict[str, str] = {}
        #: results of quantized nodes, which are already dequantized
        self._made: set[str] = set()
        #: table -> its numbers, steps and smallest values
        self.tables: dict[str, tuple[str, str, str]] = {}
        #: node of the plan -> written node
        self._written: dict[int, onnx.NodeProto] = {}

    def written(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """Copy a node of the plan once; insertions change names in the copy."""
        if id(node) not in self._written:
            self._written[id(node)] = edit.clone(node)
        return self._written[id(node)]

    def insert(self, plan: QuantizationPlan) -> None:
        """Rewrite the graph of the plan."""
        for entry in plan.entries:
            if isinstance(entry, FloatNodes):
                self._share_operands(entry)
                self.nodes.extend(map(self.written, entry.nodes))
            else:
                self.kind = PrecisionClass.INT8 if entry.precision == "Int8" else PrecisionClass.INT16
                self._insert_group(entry)
        self._drop_unread()
        edit.set_nodes(self.graph, self.nodes)

    def _insert_group(self, planned: QuantizedGroup) -> None:
        match planned.scheme:
            case Scheme.FUNCTION:
                self._insert_function(planned)
            case Scheme.ROWWISE:
                if planned.table is not None:
                    insert_table(self, planned, planned.table)
            case Scheme.INTEGERS | Scheme.EQUAL_INTEGERS:
                self._insert_on_integers(planned)
            case Scheme.SAME_PARAMETERS:
                self._insert_same_parameters(planned)
            case Scheme.KERNEL:
                if planned.weight is not None:
                    insert_kernel(self, planned, planned.weight)
            case Scheme.DEQUANTIZED:
                node = self.written(planned.group.node)
                for position in operands(node):
                    edit.replace_input_with(node, position, self.real(node.input[position], planned))
                self.finish(planned, node)

    def _share_operands(self, entry: FloatNodes) -> None:
        """Let the nodes of a normalization read the same copy of a dequantized value."""
        for name in entry.shared:
            shared = self._shared(name, self.stored[name])
            for node in map(self.written, entry.readers):
                for position, given in enumerate(node.input):
                    if given == name:
                        edit.replace_input_with(node, position, shared)

    def _shared(self, real: str, stored: QuantizedTensor) -> str:
        """Add a node without an effect after a dequantized value: a Clip to the range of the integers.

        The engine gives each reader of a DequantizeLinear a copy of it, and then does not recognize that a
        Gelu or a normalization has one operand. It keeps the Clip, and fuses the nodes after it.
        """
        params = stored.params
        bounds = [np.float32(params.scale * (level - params.zero_point)) for level in params.limits]
        clip = self._clip(real, self.fresh.make(real, "shared"), bounds)
        self.nodes.append(clip)
        self.note_like(clip.output[0], FLOAT, real)
        return str(clip.output[0])

    def _clip(self, source: str, name: str, bounds: Iterable[np.generic]) -> onnx.NodeProto:
        """Create a Clip whose bounds are inputs."""
        sides = zip(("minimum", "maximum"), bounds, strict=True)
        limits = [self.number(name, side, np.asarray(value)) for side, value in sides]
        return helper.make_node("Clip", [source, *limits], [name])

    def _insert_function(self, planned: QuantizedGroup) -> None:
        """Write a function in floating point, between a dequantized operand and a quantized result."""
        (entry,) = planned.operands
        real = self.real(entry, planned)
        if planned.shared:
            real = self._shared(real, self.integers(entry, planned))
            self.classes[real] = self.kind
        *before, last = map(self.written, planned.group.function)
        for node in (*before, last):
            for position, name in enumerate(node.input):
                if name == entry:
                    edit.replace_input_with(node, position, real)
        for node in before:
            self.add(node)
        self.finish(planned, last)

    def _insert_on_integers(self, planned: QuantizedGroup) -> None:
        """Write an operator that moves the integers of its operands; its results have their parameters."""
        node = self.written(planned.group.node)
        sources = [self.integers(node.input[position], planned) for position in operands(node)]
        for position, source in zip(operands(node), sources, strict=True):
            edit.replace_input_with(node, position, source.name)
        first = sources[0]
        if node.op_type == "Pad":
            self._store_padding(node, first.params)
        names = [node.output[position] for position in results(node)]
        for position, name in zip(results(node), names, strict=True):
            edit.rename_output(node, position, self.fresh.make(name, "quantized"))
            self.note_like(node.output[position], first.params.elem_type, name)
        self.add(node)
        for position, name in zip(results(node), names, strict=True):
            result = QuantizedTensor(node.output[position], first.params, first.scale, first.zero)
            self.publish(name, self.bounded(result, planned.group))

    def _insert_same_parameters(self, planned: QuantizedGroup) -> None:
        """Write an operator between DQ and Q that share scale and zero point."""
        node = self.written(planned.group.node)
        source = self.integers(node.input[0], planned)
        edit.replace_input_with(node, 0, self.real(node.input[0], planned))
        renamed = [(self.rename(node, position), node.output[position]) for position in results(node)]
        self.add(node)
        for name, raw in renamed:
            self.publish(name, self.quantized(raw, name, source.params, like=source))

    def _store_padding(self, node: onnx.NodeProto, params: QuantParams) -> None:
        """Set the padding of a Pad on integers to an integer."""
        given = node.input[2] if len(node.input) > 2 else ""
        value = float(self.constants.read(given).reshape(-1)[0]) if given else 0.0
        dtype = np.uint8 if params.precision == "Int8" else np.int16
        name = self.number(node.output[0], "padding", np.array(params.store(value), dtype))
        data, pads, _, *axes = [*node.input, "", ""][: max(3, len(node.input))]
        edit.set_inputs(node, [data, pads, name, *axes])

    def finish(self, planned: QuantizedGroup, node: onnx.NodeProto) -> None:
        """Add the node of a group and quantize its result with its bounds."""
        group = planned.group
        raw = self.fresh.make(group.output, "float")
        edit.rename_output(node, 0, raw)
        self.note_like(raw, FLOAT, group.output)
        self.add(node)
        if node.op_type == "Softmax" and self.kind is PrecisionClass.INT8:
            raw = self._saturated(raw, planned)
        self.publish(group.output, self.quantized_result(planned, raw))

    def _saturated(self, raw: str, planned: QuantizedGroup) -> str:
        """Prevent the engine's integer softmax, which wraps around instead of saturating.

        The integer softmax is also three times slower than the float kernel between Q and DQ (measured with
        onnxruntime 1.31). The added bound, the largest number that the integers represent, has no effect.
        """
        output = planned.group.output
        params = planned.results[output]
        largest = np.float32(params.scale) * np.float32(params.limits[1] - params.zero_point)
        name = self.fresh.make(output, "saturated")
        limit = self.number(name, "limit", np.array(largest, np.float32))
        self.add(helper.make_node("Min", [raw, limit], [name]))
        self.note_like(name, FLOAT, raw)
        return name

    def quantized_result(self, planned: QuantizedGroup, raw: str) -> QuantizedTensor:
        """Quantize the result of a group and apply its bounds."""
        group = planned.group
        params = planned.results[group.output]
        if not self.clips_integers():
            raw = self._bound_floats(raw, group, params)
        return self.bounded(self.quantized(raw, group.output, params), group)

    def clips_integers(self) -> bool:
        """Return True if the engine has Clip for the stored integers."""
        return self.kind is PrecisionClass.INT8 and self.version >= _CLIP_UINT8_VERSION

    def _bound_floats(self, raw: str, group: Group, params: QuantParams) -> str:
        """Apply the bounds of a group before quantization, if there is no Clip on integers."""
        for low, high in group.bounds:
            if (params.store(low), params.store(high)) == params.limits:
                continue
            name = self.fresh.make(group.output, "bounded")
            if self.version < _CLIP_INPUTS_VERSION:
                clip = helper.make_node("Clip", [raw], [name])
                for side, value in (("min", low), ("max", high)):
                    if not math.isinf(value):
                        edit.add_attribute(clip, helper.make_attribute(side, value))
                self.add(clip)
            else:
                self.add(self._clip(raw, name, map(np.float32, (low, high))))
            self.note_like(name, FLOAT, raw)
            raw = name
        return raw

    def bounded(self, result: QuantizedTensor, group: Group) -> QuantizedTensor:
        """Apply the bounds of a group to the integers; bounds that saturation applies need no node."""
        if not self.clips_integers():
            return result
        low, high = result.params.limits
        for smallest, largest in group.bounds:
            at_least, at_most = result.params.store(smallest), result.params.store(largest)
            low, high = min(max(low, at_least), at_most), max(min(high, at_most), at_least)
        if (low, high) == result.params.limits:
            return result
        name = self.fresh.make(group.output, "bounded")
        self.add(self._clip(result.name, name, map(np.uint8, (low, high))))
        self.note_like(name, result.params.elem_type, result.name)
        return QuantizedTensor(name, result.params, result.scale, result.zero)

    def integers(self, name: str, planned: QuantizedGroup) -> QuantizedTensor:
        """Return the integers of an operand of a group; quantize the operand if necessary."""
        if name not in self.stored:
            params = planned.operands[name]
            if name in self.constants:
                self.stored[name] = self._stored_constant(name, params)
            else:
                self.stored[name] = self.quantized(name, name, params)
        return self.stored[name]

    def real(self, name: str, planned: QuantizedGroup) -> str:
        """Return the name of the real numbers that the integers of an operand represent.

        Constants get a node per use, because the engine fuses a node with only one reader.
        """
        if name in self._made:
            return name
        if name in self.constants:
            return self.dequantized(self.integers(name, planned), name)
        if name not in self._reals:
            self._reals[name] = self.dequantized(self.integers(name, planned), name)
        return self._reals[name]

    def _stored_constant(self, name: str, params: QuantParams) -> QuantizedTensor:
        weight = self.constants.weight(name)
        stored = self.fresh.make(name, "quantized")
        self.constants.add(
            quantized_weight(
                stored,
                weight,
                np.array([params.scale], np.float32),
                params.offset,
                axis=None,
                precision=self.precision,
                unsigned=True,
            )
        )
        self.note_like(stored, params.elem_type, name)
        return QuantizedTensor(stored, params, *self.constants_of(name, params))

    def publish(self, name: str, stored: QuantizedTensor) -> None:
        """Publish integers as the value of a result, and their dequantized value under its name."""
        self.stored[name] = stored
        self.linear("DequantizeLinear", [stored.name, stored.scale, stored.zero], name)
        self._made.add(name)

    def _drop_unread(self) -> None:
        """Remove unused pairs, or their unused half."""
        count: Counter[str] = Counter()
        for node in self.nodes:
            count.update(node.input)
            for inner in subgraphs(node):
                count.update(uses(inner))
        count.update(value.name for value in self.graph.output)
        kept = []
        for node in reversed(self.nodes):
            if node.op_type in _QUANTIZED and not any(count[name] for name in node.output):
                count.subtract(node.input)
            else:
                kept.append(node)
        self.nodes = kept[::-1]


@compiler_pass(lambda context: is_quantizing(context.options))
def insert_qdq_pass(model: Model, context: Context) -> None:
    """Insert QuantizeLinear and DequantizeLinear around the groups of the plan."""
    plan = context.quantization
    if plan is not None and any(True for _ in plan.groups()):
        Inserter(model, context.plan.classes).insert(plan)


def insert_kernel(inserter: Inserter, planned: QuantizedGroup, weight: PlannedWeight) -> None:
    """Write a group with a constant weight."""
    node = inserter.written(planned.group.node)
    source = inserter.integers(node.input[0], planned)
    kernel = _dequantized_weight(inserter, weight)
    operands = [kernel]
    if weight.bias is not None:
        operands.append(_dequantized_bias(inserter, planned.group.output, weight.bias))
    if node.op_type == "MatMul" and weight.bias is not None:
        _insert_product(inserter, planned, source, operands)
        return
    if node.op_type == "Gemm":
        # The weight and the bias already include these factors.
        for attribute in node.attribute:
            if attribute.name in {"alpha", "beta"}:
                attribute.f = 1.0
    data = inserter.real(node.input[0], planned)
    edit.set_inputs(node, [data, *operands])
    inserter.finish(planned, node)


def _float_weight(inserter: Inserter, weight: PlannedWeight) -> Weight:
    """Describe the weight of a group in float, with the factors multiplied into it."""
    found = inserter.constants.weight(weight.name)
    if weight.factors is None or weight.channel_axis is None:
        return found
    name = inserter.fresh.make(weight.name, "scaled")
    return with_factors(found, name, weight.factors, weight.channel_axis)


def _dequantized_weight(inserter: Inserter, weight: PlannedWeight) -> str:
    """Store a weight as integers, with a separate zero point.

    Other nodes share neither. For x86 without VNNI, the engine converts signed weights to unsigned ones, and
    fails on weights and zero points with two readers (onnxruntime 1.31).
    """
    found = _float_weight(inserter, weight)
    scales, offset, axis = weight.stored_scales, weight.offset, weight.axis
    stored = inserter.fresh.make(found.name, "quantized")
    inserter.constants.add(
        quantized_weight(
            stored, found, scales, offset, axis=axis, precision=inserter.precision, unsigned=False
        )
    )
    inserter.note(stored, INT8 if inserter.precision == "Int8" else INT16, found.dims)
    dtype = np.int8 if inserter.precision == "Int8" else np.int16
    zeros = np.full(scales.shape, offset, dtype)
    return inserter.dequantized_weight(stored, scales, zeros, found.name, axis)


def _dequantized_bias(inserter: Inserter, output: str, bias: QuantizedBias) -> str:
    """Store a bias; its scale depends on the data, so it is never shared."""
    name = inserter.fresh.make(output, "bias")
    inserter.constants.add_array(name, bias.values)
    axis = 0 if len(bias.scales) > 1 else None
    return inserter.dequantized_weight(name, bias.scales, np.zeros(bias.scales.shape, np.int32), name, axis)


def _insert_product(
    inserter: Inserter, planned: QuantizedGroup, source: QuantizedTensor, operands: list[str]
) -> None:
    """Write a matrix product with a bias as a Gemm."""
    node, output = planned.group.node, planned.group.output
    shape = inserter.facts.shapes[node.output[0]]
    given = inserter.facts.shapes.get(node.input[0])
    if given is not None and len(given) == 2:
        data = inserter.real(node.input[0], planned)
        inserter.finish(planned, helper.make_node("Gemm", [data, *operands], [output]))
        return
    weight = inserter.constants.weight(node.input[1])
    rows = inserter.reshaped(source, node.input[0], (-1, weight.dims[0]))
    data = inserter.dequantized(rows, node.input[0])
    raw = inserter.fresh.make(output, "float")
    inserter.add(helper.make_node("Gemm", [data, *operands], [raw]))
    inserter.note(raw, FLOAT, (-1, shape[-1]))
    result = inserter.quantized_result(planned, raw)
    inserter.publish(output, inserter.reshaped(result, output, shape))


def insert_table(inserter: Inserter, planned: QuantizedGroup, table: PlannedTable) -> None:
    """Write a Gather of rows: gather numbers, steps and smallest values, and compute the rows from them."""
    group = planned.group
    places = group.node.input[1]
    stored, steps, lows = (inserter.fresh.make(table.name, part) for part in ("rows", "steps", "lows"))
    if table.name in inserter.tables:
        stored, steps, lows = inserter.tables[table.name]
    else:
        inserter.tables[table.name] = (stored, steps, lows)
        weight = inserter.constants.weight(table.name)

        def chunks() -> Iterator[bytes]:
            rows = read_array(weight).reshape(len(table.steps), -1)
            for row, step, low in zip(rows, table.steps, table.lows, strict=True):
                yield np.clip(np.rint((row - low) / step), 0, 255).astype(np.uint8).tobytes()

        source = ComputedSource(weight.source.nbytes // 4, chunks)
        inserter.constants.add(Weight(stored, UINT8, weight.dims, source))
        shape = (weight.dims[0],) + (1,) * (len(weight.dims) - 1)
        inserter.constants.add_array(steps, table.steps.reshape(shape))
        inserter.constants.add_array(lows, table.lows.reshape(shape))
    names = [inserter.fresh.make(group.output, part) for part in ("numbers", "cast", "step", "low", "scaled")]
    numbers, cast, step_name, low_name, scaled = names
    inserter.add(helper.make_node("Gather", [stored, places], [numbers]))
    inserter.add(helper.make_node("Cast", [numbers], [cast], to=FLOAT))
    inserter.add(helper.make_node("Gather", [steps, places], [step_name]))
    inserter.add(helper.make_node("Gather", [lows, places], [low_name]))
    inserter.add(helper.make_node("Mul", [cast, step_name], [scaled]))
    for name in names:
        inserter.note(name, UINT8 if name == numbers else FLOAT, None)
    inserter.finish(planned, helper.make_node("Add", [scaled, low_name], [group.output]))
