"""Quantization in numpy, node by node.

This module uses nothing of the compiler: it computes ranges, scales, weights and biases again in float64, and
evaluates floating-point operators with onnx's reference implementation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

LIMITS = {"Int8": (-128, 127), "Int16": (-32768, 32767), "Int32": (-(2**29), 2**29 - 1)}
EPSILON = float(np.finfo(np.float32).eps)


def params_of(low, high, schema, precision="Int8"):
    """Scale and offset of a range."""
    qmin, qmax = LIMITS[precision]
    low, high = min(float(low), 0.0), max(float(high), 0.0)
    centered = schema in {"symmetric", "symmetric_with_power2_scale"} or (
        schema == "symmetric_with_uint8" and low != 0
    )
    if centered:
        step = max(low / qmin, high / qmax)
        low, high = step * qmin, step * qmax
    scale = (high - low) / (qmax - qmin)
    if scale == 0:
        scale = 0.1
    if schema == "symmetric_with_power2_scale":
        scale = 2.0 ** math.ceil(math.log2(scale))
    if centered or abs(high + low) <= EPSILON:
        offset = 0
    else:
        at_min, at_max = qmin - low / scale, qmax - high / scale
        error_min, error_max = abs(qmin) + abs(low / scale), abs(qmax) + abs(high / scale)
        offset = at_min if error_min < error_max else at_max
        offset = min(max(offset, qmin), qmax)
        offset = int(math.copysign(math.floor(abs(offset) + 0.5), offset))
    return float(np.float32(scale)), offset


def quantize(values, scale, offset, precision="Int8"):
    """Integers of real numbers, in the order of the engine, which rounds before it adds the offset."""
    low, high = LIMITS[precision]
    levels = np.rint(np.asarray(values, np.float32) / np.float32(scale)).astype(np.float64)
    return np.clip(levels + offset, low, high)


def through(values, scale, offset, precision="Int8"):
    """Return real numbers as the engine quantizes and dequantizes them."""
    return (np.float32(scale) * (quantize(values, scale, offset, precision) - offset)).astype(np.float32)


def stored(values, scale, offset, precision="Int8"):
    """Return constants after quantization, which rounds after it adds the offset in float32."""
    low, high = LIMITS[precision]
    levels = np.rint(np.asarray(values, np.float32) / np.float32(scale) + np.float32(offset))
    return (np.float32(scale) * (np.clip(levels, low, high) - np.float32(offset))).astype(np.float32)


@dataclass
class Tensor:
    """The part of a profile entry that the compiler reads."""

    minimum: float
    maximum: float
    histogram: np.ndarray | None = None
    scale: float | None = None
    offset: int | None = None
    channel_scales: np.ndarray | None = None
    channel_offsets: np.ndarray | None = None
    channel_axis: int | None = None
    bits: int = 8

    @property
    def is_fixed(self):
        return self.scale is not None or self.channel_scales is not None


def run(model, feeds, *, optimize=True, path=None, unsigned_weights=False):
    """Run a model in the engine; return outputs by name.

    With `unsigned_weights`, weights are as on x86 without VNNI, where signed weights would overflow.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if unsigned_weights:
        options.add_session_config_entry("session.x64quantprecision", "1")
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if path is not None:
        options.optimized_model_filepath = str(path)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def with_outputs(model, names):
    """A copy of a model with additional outputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    present = {value.name for value in copy.graph.output}
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in present)
    return copy


def profile_of(model, samples):
    """Ranges of all float tensors of a model over samples, as the compiler's profile."""
    made = [name for node in model.graph.node for name in node.output if name]
    seen: dict[str, list[np.ndarray]] = {}
    probe = with_outputs(model, made)
    for sample in samples:
        for name, value in {**sample, **run(probe, sample, optimize=False)}.items():
            if value.dtype == np.float32 and value.size:
                seen.setdefault(name, []).append(value)
    tensors = {
        name: Tensor(float(min(v.min() for v in values)), float(max(v.max() for v in values)))
        for name, values in seen.items()
    }
    return SimpleNamespace(tensors=tensors)


def evaluate(node, values, opset):
    """Compute one floating-point node on given operands with onnx's reference implementation."""
    names = [name for name in dict.fromkeys(node.input) if name]
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(values[name].dtype), values[name].shape
            )
            for name in names
        ],
        [onnx.ValueInfoProto(name=name) for name in node.output if name],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    if node.op_type in {"ConvTranspose", "LRN"}:
        # The reference implementation does not support groups and has another window; the engine is also
        # independent.
        return run(model, {name: values[name] for name in names}, optimize=False)
    results = ReferenceEvaluator(model).run(None, {name: values[name] for name in names})
    return dict(zip([name for name in node.output if name], results, strict=True))


def constants_of(model):
    """Constants of a float model by name."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def weight_through(values, axis, schema, precision="Int8", scales=None):
    """A weight after quantization: with one scale, or with one per channel and offset 0 if offsets differ."""
    if axis is None:
        scale, offset = params_of(values.min(initial=0), values.max(initial=0), schema, precision)
        scales = np.array([scale], np.float32) if scales is None else scales
        return stored(values, scales[0], offset, precision), scales
    moved = np.moveaxis(values, axis, 0)
    pairs = [params_of(row.min(initial=0), row.max(initial=0), schema, precision) for row in moved]
    if len({offset for _, offset in pairs}) > 1:
        pairs = [params_of(row.min(initial=0), row.max(initial=0), "symmetric", precision) for row in moved]
    if scales is None:
        scales = np.array([scale for scale, _ in pairs], np.float32)
    rows = [
        stored(row, scale, offset, precision)
        for row, scale, (_, offset) in zip(moved, scales, pairs, strict=True)
    ]
    return np.moveaxis(np.stack(rows), 0, axis), scales


def bias_through(bias, input_scale, weight_scales, schema, precision="Int32", data="Int8"):
    """A bias in the form that integer kernels add, and the resulting scales of the weight."""
    scales = np.asarray(weight_scales, np.float32).copy()
    per_channel = len(scales) > 1
    result = np.zeros(len(bias))
    for index in range(len(scales)):
        part = slice(index, index + 1) if per_channel else slice(None)
        values = bias[part].astype(np.float64)
        low, high = min(values.min(), 0.0), max(values.max(), 0.0)
        grid = np.float32(input_scale) * scales[index]
        own, offset = params_of(low, high, schema, precision)
        if low != high and grid < own:
            if precision == "Int8":
                values = stored(values, own, offset).astype(np.float64)
            too_large = np.abs(values).max() / grid > 2**31 - 1
            if data == "Int16" and too_large and (precision == "Int8" or not per_channel):
                grid = np.float32(own)
            elif too_large or (per_channel and precision == "Int32"):
                needed = params_of(low, high, schema, "Int32")[0]
                scales[index] = np.float32(needed / np.float64(np.float32(input_scale)))
                grid = np.float32(input_scale) * scales[index]
        result[part] = np.rint(values / np.float64(grid)) * np.float64(grid)
    return result, scales


class Reference:
    """Expected results of a quantized model, computed from the actual operands.

    Parameters
    ----------
    model : onnx.ModelProto
        The float model.
    profile : namespace
        As `profile_of` makes it.
    actual : dict
        Values of the quantized model by name, inputs included.
    options : dict
        Compile options.
    """

    WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
    POINTWISE = frozenset({"Add", "Clip", "Div", "Erf", "HardSigmoid", "HardSwish", "LeakyRelu", "Max"}) | {
        *("Min", "Mul", "Pow", "Relu", "Sigmoid", "Sub", "Tanh")
    }
    ALL_INPUTS = frozenset({"Add", "Concat", "Div", "Max", "Min", "Mul", "PRelu", "Sub"})

    def __init__(self, model, profile, actual, same, **options):
        self.model, self.profile, self.actual, self.same = model, profile, actual, same
        self.constants = constants_of(model)
        self.makers = {name: node for node in model.graph.node for name in node.output}
        self.readers = {}
        for node in model.graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.outputs = {value.name for value in model.graph.output}
        self.opset = model.opset_import[0].version
        self.precision = options.get("quantization_precision", "Int8")
        self.bias_precision = options.get("quantization_precision_bias", "Int32")
        self.activations = options.get("quantization_schema_activations", "symmetric_with_uint8")
        self.weights = options.get("quantization_schema_constants", "symmetric_with_uint8")
        self.channelwise = options.get("enable_channelwise", False)
        self.rowwise = options.get("enable_rowwise", False)
        self.noise = 0.0

    def params(self, name):
        """Scale and offset of a tensor, or of the operand for operators that only select values."""
        node = self.makers.get(name)
        if node is not None and node.op_type in self.same:
            source = node.input[0]
            if source in self.constants:
                values = self.constants[source]
                return params_of(values.min(), values.max(), self.weights, self.precision)
            return self.params(source)
        found = self.profile.tensors[name]
        return params_of(found.minimum, found.maximum, self.activations, self.precision)

    def inside(self, name):
        """Return True if a value stays inside the unit that produces it."""
        if name not in self.makers or name in self.actual or self.makers[name].op_type in self.same:
            return False
        readers = self.readers.get(name, [])
        if all(reader.op_type not in self.POINTWISE for reader in readers):
            # The tensor is an operand of an operator that computes in integers.
            return False
        assert readers, name
        assert name not in self.outputs
        return True

    def operand(self, name, *, quantize=True):
        """Value of an operand in the quantized model."""
        if name in self.constants:
            values = self.constants[name]
            if not quantize or values.dtype != np.float32:
                return values
            return stored(
                values, *params_of(values.min(), values.max(), self.weights, self.precision), self.precision
            )
        if name in self.makers:
            return self.actual[name] if name in self.actual else self.result(name)
        return through(self.actual[name], *self.params(name), self.precision)

    def result(self, name):
        """Return the expected result."""
        nodes = self.unit(name)
        head, *rest = nodes
        self.noise = 0.0
        if head.op_type in self.WEIGHTED and head.input[1] in self.constants:
            values = self.weighted(head, [node for node in rest if node.op_type not in {"Relu", "Clip"}])
            rest = [node for node in rest if node.op_type in {"Relu", "Clip"}]
        elif any(node.op_type not in {"Relu", "Clip"} for node in rest):
            values, rest = self.function(nodes)[name], []
        else:
            values = self.head(head, head.output[0] if rest else name)
        #: Possible difference of float32 arithmetic inside the unit, if large numbers cancel.
        self.noise = max(self.noise, 1e-6 * float(np.abs(values).max(initial=0)))
        for node in rest:
            low, high = (0, np.inf) if node.op_type == "Relu" else bounds_of(node, self.constants)
            values = np.minimum(np.maximum(values, low), high)
        return through(values, *self.params(name), self.precision)

    def unit(self, name):
        """The nodes of the unit that computes a value, in order."""
        pending, found = [self.makers[name]], []
        while pending:
            node = pending.pop()
            if node not in found:
                found.append(node)
                pending += [self.makers[i] for i in node.input if self.inside(i)]
        return sorted(found, key=list(self.model.graph.node).index)

    def function(self, nodes):
        """Compute a function of simpler operators in real numbers, with its constants."""
        made = {name for node in nodes for name in node.output}
        entries = {i for node in nodes for i in node.input if i and i not in made | self.constants.keys()}
        assert len(entries) == 1, entries
        (entry,) = entries
        values = {**self.constants, entry: self.operand(entry)}
        for node in nodes:
            values |= evaluate(node, {i: values[i] for i in node.input if i}, self.opset)
            self.noise = max(self.noise, 1e-6 * float(np.abs(values[node.output[0]]).max(initial=0)))
        return values

    def head(self, node, name):
        """Compute an operator from quantized operands."""
        everything = node.op_type in self.ALL_INPUTS or node.op_type in self.WEIGHTED
        values = {
            operand: self.operand(operand, quantize=everything or position == 0)
            for position, operand in enumerate(node.input)
            if operand
        }
        return evaluate(node, values, self.opset)[name]

    def weighted(self, node, rest):
        """Compute a product with a constant weight; weight and bias contain the operators that follow."""
        weight = self.constants[node.input[1]]
        turned = number(node, "transB", 0)
        if node.op_type == "Conv":
            output_axis, channels = 0, weight.shape[0]
        elif node.op_type == "ConvTranspose":
            output_axis, channels = 1, weight.shape[1] * number(node, "group", 1)
        else:
            output_axis = 0 if turned else weight.ndim - 1
            channels = weight.shape[output_axis]
        factors = np.full(channels, number(node, "alpha", 1.0) if node.op_type == "Gemm" else 1, np.float32)
        total, biased = np.zeros(channels, np.float32), len(node.input) > 2 and bool(node.input[2])
        if biased:
            beta = number(node, "beta", 1.0) if node.op_type == "Gemm" else 1.0
            total = total + self.constants[node.input[2]].reshape(-1) * np.float32(beta)
        for step in rest:
            constant = self.constants[next(i for i in step.input if i in self.constants)].reshape(-1)
            if step.op_type in {"Mul", "Div"}:
                change = np.multiply if step.op_type == "Mul" else np.divide
                factors, total = change(factors, constant), change(total, constant)
            else:
                total = total + constant if step.op_type == "Add" else total - constant
                biased = True
        if (factors != 1).any():
            shape = [1] * weight.ndim
            shape[output_axis] = -1
            weight = weight * factors.reshape(shape)
        axis = None
        if node.op_type in {"Conv", "ConvTranspose"}:
            groups = number(node, "group", 1)
            if self.channelwise and (node.op_type == "Conv" or groups == 1):
                axis = 0 if node.op_type == "Conv" else 1
        elif self.rowwise and weight.ndim == 2:
            axis = 0 if number(node, "transB", 0) else 1
        kernel, scales = weight_through(weight, axis, self.weights, self.precision)
        added = np.zeros(channels)
        if biased:
            source = self.params(node.input[0])[0] if node.input[0] not in self.constants else None
            added, scales = bias_through(
                total, source, scales, self.weights, self.bias_precision, self.precision
            )
            kernel, _ = weight_through(weight, axis, self.weights, self.precision, scales)
        plain = onnx.NodeProto()
        plain.CopyFrom(node)
        del plain.input[2:]
        for attribute in plain.attribute:
            if attribute.name in {"alpha", "beta"}:
                attribute.f = 1.0
        values = evaluate(
            plain, {node.input[0]: self.operand(node.input[0]), node.input[1]: kernel}, self.opset
        )[node.output[0]].astype(np.float64)
        shape = [1] * values.ndim
        shape[1 if node.op_type in {"Conv", "ConvTranspose"} else -1] = -1
        return values + added.reshape(shape)


def number(node, name, default):
    """A numeric attribute of a node."""
    for attribute in node.attribute:
        if attribute.name == name:
            return attribute.f if attribute.type == attribute.FLOAT else attribute.i
    return default


def bounds_of(node, constants):
    """Bounds of a Clip."""
    low = number(node, "min", -math.inf)
    high = number(node, "max", math.inf)
    if len(node.input) > 1 and node.input[1]:
        low = float(constants[node.input[1]])
    if len(node.input) > 2 and node.input[2]:
        high = float(constants[node.input[2]])
    return low, high
