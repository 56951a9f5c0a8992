"""Rewriting the float graph so that chosen nodes work on integers.

Every value of a quantized node lies between a QuantizeLinear and a DequantizeLinear; the value behind the
latter keeps the name of the float one, so that float nodes, nested graphs and outputs read on as before. The
engine fuses what stands between two such pairs into an integer kernel. Operators that only move values are
written on the integers directly, which asks nothing of the engine's optimizer.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from typing import TYPE_CHECKING, Final

from qaic.compiler.diagnostics.compile_error import listing
from qaic.compiler.ir.constant_propagation import node_key
from qaic.compiler.ir.elem_types import FLOAT
from qaic.compiler.ir.graph_walk import subgraphs, uses
from qaic.compiler.ir.op_types import (
    DIRECT,
    SAME_PARAMETERS,
    WEIGHTED,
    operands,
    quantizable,
    results,
)
from qaic.compiler.ir.precision import INTEGERS, PrecisionClass, is_quantizing
from qaic.compiler.quantization import rowwise_embeddings, weighted
from qaic.compiler.quantization.builder import NodeWriter, Stored
from qaic.compiler.quantization.fold_constants import fold_constants
from qaic.compiler.quantization.groups import Unit, find_units
from qaic.compiler.quantization.parameters import Parameters, QuantParams, value_range
from qaic.compiler.quantization.quantized_tensor import quantized_weight
from qaic.compiler.quantization.raise_opset import raise_operator_set

if TYPE_CHECKING:
    import onnx

    from qaic.compiler.ir.context import Context
    from qaic.compiler.ir.model import Model
    from qaic.compiler.ir.profile import Profile
    from qaic.compiler.ir.value_info import ValueFacts
    from qaic.compiler.ir.weights import Weight
    from qaic.options.models import CompileOptions

_log = logging.getLogger("qaic.compiler")

_QUANTIZED: Final = frozenset({"QuantizeLinear", "DequantizeLinear"})

#: operators by which the engine knows an activation that it has a kernel for
_FUSED: Final = frozenset({"Erf", "Tanh"})

#: operator sets from which on Clip runs on uint8, and takes its bounds as inputs
_CLIP_UINT8_VERSION: Final = 12
_CLIP_INPUTS_VERSION: Final = 11


def quantize(
    model: onnx.ModelProto,
    weights: dict[str, Weight],
    facts: ValueFacts,
    classes: dict[str, PrecisionClass],
    *,
    profile: Profile,
    options: CompileOptions,
) -> None:
    """Quantize the nodes of class INT8 and INT16; changes all arguments but the last two.

    Parameters
    ----------
    model : onnx.ModelProto
        Skeleton of a float32 model without model-local functions, its normalizations folded.
    weights : dict[str, Weight]
        Weights of the main graph; those of quantized nodes become integers.
    facts : ValueFacts
        Types and shapes of the values; new values are added.
    classes : dict[str, PrecisionClass]
        Class of each node by its first output; new nodes are added.
    profile : Profile
        Ranges of the tensors of the float graph.
    options : CompileOptions
        Schemas, calibration, precisions, row-wise and channel-wise.

    Raises
    ------
    CompileError
        A constant of a quantized node is not finite.
    """
    if not any(kind in INTEGERS for kind in classes.values()) or not raise_operator_set(model, weights):
        return
    fold_constants(model, weights, facts)
    parameters = Parameters(profile, options)
    Inserter(model, weights, facts, classes, parameters=parameters, options=options).run()
    parameters.report()


class Inserter(NodeWriter):
    """Rewrites the main graph; see `quantize`."""

    def __init__(
        self,
        model: onnx.ModelProto,
        weights: dict[str, Weight],
        facts: ValueFacts,
        classes: dict[str, PrecisionClass],
        *,
        parameters: Parameters,
        options: CompileOptions,
    ) -> None:
        super().__init__(model, weights, facts, classes)
        self.parameters = parameters
        self.options = options
        #: value -> its integers
        self.stored: dict[str, Stored] = {}
        #: value of a float node -> the same after quantizing and dequantizing
        self._reals: dict[str, str] = {}
        #: result of a quantized node, which is dequantized already
        self._made: set[str] = set()
        #: table -> its numbers, steps and smallest values
        self.tables: dict[str, tuple[str, str, str]] = {}
        #: constant operand -> whether all its values are finite
        self._finite: dict[str, bool] = {}

    def run(self) -> None:
        """Rewrite the graph."""
        units = find_units(self.graph, self.classes, self.constants, self.facts, self.parameters.profiled)
        for unit in units:
            kind = self.classes.get(node_key(unit.node))
            if kind in INTEGERS and not unit.in_float and self._fits(unit):
                self.kind = kind
                self._write(unit)
            else:
                if unit.in_float:
                    self._share_operands(unit)
                self.nodes.extend(unit.inner or (unit.node,))
        self._drop_unread()
        infinite = sorted(name for name, finite in self._finite.items() if not finite)
        if infinite:
            _log.warning(
                "quantization: operators stay in floating point whose constants %s are not finite",
                listing(infinite),
            )
        copies = [type(node).FromString(node.SerializeToString()) for node in self.nodes]
        del self.graph.node[:]
        self.graph.node.extend(copies)

    def _fits(self, unit: Unit) -> bool:
        """Whether everything is known that the unit needs to be quantized."""
        node, types = unit.node, self.facts.types
        if unit.inner:
            entry = self._entry(unit)
            known = entry in self.stored or self.parameters.profiled(entry)
            return known and types.get(entry) == types.get(unit.output) == FLOAT
        if not quantizable(node) or any(subgraphs(node)) or not operands(node):
            return False
        for position in operands(node):
            name = node.input[position]
            if self.constants.is_float(name):
                if node.op_type not in WEIGHTED and not self._is_finite(name):
                    return False
                continue
            if types.get(name) != FLOAT or not (name in self.stored or self.parameters.profiled(name)):
                return False
        found = [node.output[p] for p in results(node)] if node.op_type in SAME_PARAMETERS else [unit.output]
        if any(types.get(name) != FLOAT for name in found):
            return False
        if node.op_type in SAME_PARAMETERS:
            return not rowwise_embeddings.is_table(self, node) or self.parameters.profiled(unit.output)
        return self.parameters.profiled(unit.output)

    def _entry(self, unit: Unit) -> str:
        """Name the one value that a function written out is of."""
        made = {name for node in unit.inner for name in node.output}
        names = (name for node in unit.inner for name in node.input if name and name not in made)
        return next(name for name in names if name not in self.constants and self.facts.types[name] == FLOAT)

    def _is_finite(self, name: str) -> bool:
        """Whether a constant operand can be quantized; models compare with infinity and mask with it."""
        import numpy as np

        if name not in self._finite:
            self._finite[name] = bool(np.isfinite(self.constants.read(name)).all())
        return self._finite[name]

    def _write(self, unit: Unit) -> None:
        node = unit.node
        if unit.inner:
            self._write_function(unit)
        elif rowwise_embeddings.is_table(self, node):
            rowwise_embeddings.write(self, unit)
        elif node.op_type in SAME_PARAMETERS:
            self._write_same(node)
        elif node.op_type in WEIGHTED and self._has_kernel(node):
            weighted.write(self, unit)
        else:
            self._write_computing(unit)

    def _share_operands(self, unit: Unit) -> None:
        """Let the nodes of a normalization read one and the same copy of a dequantized value."""
        if unit.node is not unit.in_float[0] or self.version < _CLIP_INPUTS_VERSION:
            return
        read = Counter(name for node in unit.in_float for name in node.input if name in self._made)
        for name in [name for name, count in read.items() if count > 1]:
            shared = self._shared(name, self.stored[name])
            for node in unit.in_float:
                for position, given in enumerate(node.input):
                    if given == name:
                        node.input[position] = shared

    def _shared(self, real: str, stored: Stored) -> str:
        """Add a node behind a dequantized value that changes nothing: a Clip to what integers can mean.

        The engine gives each reader of a DequantizeLinear a copy of it, and then no longer sees that a Gelu
        or a normalization is computed from one value. It keeps the Clip, and fuses what is behind it.
        """
        import numpy as np
        from onnx import helper

        name = self.fresh.make(real, "shared")
        params = stored.params
        bounds = [
            self.number(name, side, np.array(params.scale * (level - params.zero_point), np.float32))
            for side, level in zip(("minimum", "maximum"), params.limits, strict=True)
        ]
        clip = helper.make_node("Clip", [real, *bounds], [name])
        self.nodes.append(clip)
        self.note_like(name, FLOAT, real)
        return name

    def _write_function(self, unit: Unit) -> None:
        """Write a function in float, between a dequantized operand and a quantized result."""
        entry = self._entry(unit)
        real = self.real(entry)
        fuses = self.version >= _CLIP_INPUTS_VERSION and any(node.op_type in _FUSED for node in unit.inner)
        if fuses and sum(list(node.input).count(entry) for node in unit.inner) > 1:
            real = self._shared(real, self.integers(entry))
            self.classes[real] = self.kind
        for node in unit.inner:
            for position, name in enumerate(node.input):
                if name == entry:
                    node.input[position] = real
            if node is not unit.node:
                self.add(node)
        self.finish(unit, unit.node)

    def _has_kernel(self, node: onnx.NodeProto) -> bool:
        """Whether weight and bias are constants that can be quantized with the operator."""
        return self.constants.is_float(node.input[1]) and weighted.has_channel_bias(self, node)

    def _write_same(self, node: onnx.NodeProto) -> None:
        """Write an operator whose results have the parameters of its operand."""
        source = self.integers(node.input[0])
        if self._runs_on_integers(node):
            node.input[0] = source.name
            names = [node.output[position] for position in results(node)]
            for position, name in zip(results(node), names, strict=True):
                node.output[position] = self.fresh.make(name, "quantized")
                self.note_like(node.output[position], source.params.elem_type, name)
            self.add(node)
            for position, name in zip(results(node), names, strict=True):
                self.publish(name, Stored(node.output[position], source.params, source.scale, source.zero))
            return
        node.input[0] = self.real(node.input[0])
        renamed = [(self.rename(node, position), node.output[position]) for position in results(node)]
        self.add(node)
        for name, raw in renamed:
            self.publish(name, self.quantized(raw, name, source.params, like=source))

    def _write_computing(self, unit: Unit) -> None:
        """Write an operator that computes between dequantized operands and a quantized result."""
        node = unit.node
        params = self.result_params(unit.output)
        if self._picks_equal(node, params):
            sources = [self.integers(node.input[position]) for position in operands(node)]
            for position, source in zip(operands(node), sources, strict=True):
                node.input[position] = source.name
            if node.op_type == "Pad":
                self._store_padding(node, params)
            node.output[0] = self.fresh.make(unit.output, "quantized")
            self.note_like(node.output[0], params.elem_type, unit.output)
            self.add(node)
            result = Stored(node.output[0], params, sources[0].scale, sources[0].zero)
            self.publish(unit.output, self.bounded(result, unit))
            return
        for position in operands(node):
            node.input[position] = self.real(node.input[position])
        self.finish(unit, node)

    def _runs_on_integers(self, node: onnx.NodeProto) -> bool:
        direct = DIRECT.get(node.op_type)
        if direct is None:
            return False
        first = direct.uint8 if self.kind is PrecisionClass.INT8 else direct.int16
        return first is not None and self.version >= first

    def _picks_equal(self, node: onnx.NodeProto, params: QuantParams) -> bool:
        """Whether a node only picks from operands that all have the parameters of its result."""
        if not self._runs_on_integers(node):
            return False
        attributes = {attribute.name: attribute.s for attribute in node.attribute}
        if node.op_type == "Resize":
            if attributes.get("mode", b"nearest") != b"nearest":
                return False
            if attributes.get("coordinate_transformation_mode") == b"tf_crop_and_resize":
                return False
        padding = node.input[2] if node.op_type == "Pad" and len(node.input) > 2 else ""
        if padding and not self.constants.is_float(padding):
            return False
        return all(self._params_of(node.input[position]) == params for position in operands(node))

    def _params_of(self, name: str) -> QuantParams:
        """Tell the parameters an operand has or will have."""
        if name in self.stored:
            return self.stored[name].params
        if name in self.constants:
            return self._constant_params(name)[0]
        return self.parameters.activation(name, self.precision, scalar=self._is_scalar(name))

    def _store_padding(self, node: onnx.NodeProto, params: QuantParams) -> None:
        """Give a Pad on integers its padding as an integer."""
        import numpy as np

        given = node.input[2] if len(node.input) > 2 else ""
        value = float(self.constants.read(given).reshape(-1)[0]) if given else 0.0
        dtype = np.uint8 if params.precision == "Int8" else np.int16
        name = self.number(node.output[0], "padding", np.array(params.store(value), dtype))
        while len(node.input) < 3:
            node.input.append("")
        node.input[2] = name

    def result_params(self, name: str) -> QuantParams:
        """Choose the parameters of a result."""
        return self.parameters.activation(name, self.precision, scalar=self._is_scalar(name))

    def _is_scalar(self, name: str) -> bool:
        shape = self.facts.shapes.get(name)
        return shape is not None and all(size == 1 for size in shape)

    def finish(self, unit: Unit, node: onnx.NodeProto) -> None:
        """Add the node of a unit and quantize its result, bounds included."""
        raw = self.fresh.make(unit.output, "float")
        node.output[0] = raw
        self.note_like(raw, FLOAT, unit.output)
        self.add(node)
        if node.op_type == "Softmax" and self.kind is PrecisionClass.INT8:
            raw = self._saturated(raw, unit)
        self.publish(unit.output, self.quantized_result(unit, raw))

    def _saturated(self, raw: str, unit: Unit) -> str:
        """Keep the engine from its integer softmax, which wraps around where it should saturate.

        It is also three times slower than the float kernel between Q and DQ (measured with onnxruntime
        1.31). What is added changes nothing: the largest number that the integers stand for.
        """
        import numpy as np
        from onnx import helper

        params = self.result_params(unit.output)
        largest = np.float32(params.scale) * np.float32(params.limits[1] - params.zero_point)
        name = self.fresh.make(unit.output, "saturated")
        limit = self.number(name, "limit", np.array(largest, np.float32))
        self.add(helper.make_node("Min", [raw, limit], [name]))
        self.note_like(name, FLOAT, unit.output)
        return name

    def quantized_result(self, unit: Unit, raw: str) -> Stored:
        """Quantize the result of a unit and apply its bounds."""
        params = self.result_params(unit.output)
        if not self.clips_integers():
            raw = self._bound_floats(raw, unit, params)
        return self.bounded(self.quantized(raw, unit.output, params), unit)

    def clips_integers(self) -> bool:
        """Whether the engine has Clip for the stored integers."""
        return self.kind is PrecisionClass.INT8 and self.version >= _CLIP_UINT8_VERSION

    def _bound_floats(self, raw: str, unit: Unit, params: QuantParams) -> str:
        """Apply the bounds of a unit in front of quantization, where there is no Clip on integers."""
        import numpy as np
        from onnx import helper

        for low, high in unit.bounds:
            if (params.store(low), params.store(high)) == params.limits:
                continue
            name = self.fresh.make(unit.output, "bounded")
            if self.version < _CLIP_INPUTS_VERSION:
                clip = helper.make_node("Clip", [raw], [name])
                for side, value in (("min", low), ("max", high)):
                    if not math.isinf(value):
                        clip.attribute.append(helper.make_attribute(side, value))
                self.add(clip)
            else:
                bounds = [
                    self.number(name, side, np.array(value, np.float32))
                    for side, value in (("minimum", low), ("maximum", high))
                ]
                self.add(helper.make_node("Clip", [raw, *bounds], [name]))
            self.note_like(name, FLOAT, unit.output)
            raw = name
        return raw

    def bounded(self, result: Stored, unit: Unit) -> Stored:
        """Apply the bounds of a unit to the integers; what saturation does anyway needs no node."""
        import numpy as np
        from onnx import helper

        if not self.clips_integers():
            return result
        low, high = result.params.limits
        for smallest, largest in unit.bounds:
            at_least, at_most = result.params.store(smallest), result.params.store(largest)
            low, high = min(max(low, at_least), at_most), max(min(high, at_most), at_least)
        if (low, high) == result.params.limits:
            return result
        name = self.fresh.make(unit.output, "bounded")
        bounds = [
            self.number(name, side, np.array(value, np.uint8))
            for side, value in (("minimum", low), ("maximum", high))
        ]
        self.add(helper.make_node("Clip", [result.name, *bounds], [name]))
        self.note_like(name, result.params.elem_type, unit.output)
        return Stored(name, result.params, result.scale, result.zero)

    def integers(self, name: str) -> Stored:
        """Return the integers of a value or constant; make them where there are none."""
        if name not in self.stored:
            if name in self.constants:
                self.stored[name] = self._stored_constant(name)
            else:
                params = self.parameters.activation(name, self.precision, scalar=self._is_scalar(name))
                self.stored[name] = self.quantized(name, name, params)
        return self.stored[name]

    def real(self, name: str) -> str:
        """Return the name of the real numbers that the integers of a value mean.

        Constants get a node per use: the engine fuses a node that nothing else reads.
        """
        if name in self._made:
            return name
        if name in self.constants:
            return self.dequantized(self.integers(name), name)
        if name not in self._reals:
            self._reals[name] = self.dequantized(self.integers(name), name)
        return self._reals[name]

    def _constant_params(self, name: str) -> tuple[QuantParams, Weight]:
        """Choose the parameters of a constant that is an operand like any other."""
        weight = self.constants.describe(name)
        if weight is None:
            raise KeyError(name)
        fixed = self.parameters.fixed(name, self.precision)
        if fixed is not None and fixed.scale is not None:
            return QuantParams(fixed.scale, fixed.offset or 0, self.precision), weight
        low, high = value_range(self.constants.read(name), name)
        scale, offset = self.parameters.constant(float(low), float(high), self.precision)
        return QuantParams(scale, offset, self.precision), weight

    def _stored_constant(self, name: str) -> Stored:
        import numpy as np

        params, weight = self._constant_params(name)
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
        return Stored(stored, params, *self.constants_of(name, params))

    def publish(self, name: str, stored: Stored) -> None:
        """Make integers the value of a result, and what they mean the float value of its name."""
        self.stored[name] = stored
        self.linear("DequantizeLinear", [stored.name, stored.scale, stored.zero], name)
        self._made.add(name)

    def _drop_unread(self) -> None:
        """Remove pairs of which one half or both turned out to be unused."""
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


class Quantize:
    """Let nodes work on integers that are to."""

    name = "quantize"

    def is_needed(self, context: Context) -> bool:
        """Whether integers are asked for."""
        return is_quantizing(context.options)

    def run(self, model: Model, context: Context) -> bool:
        """Change the model."""
        if context.profile is None:
            return False
        classes, options = context.plan.classes, context.options
        quantize(model.proto, model.weights, model.facts, classes, profile=context.profile, options=options)
        return True
