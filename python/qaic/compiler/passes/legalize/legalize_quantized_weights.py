"""4-bit weights and scales per block in operator sets that do not support them.

Exporters for the card use both in operator set 17: ``Cast`` to uint4 and ``DequantizeLinear`` with
``block_size`` have the meaning of set 21. A 4-bit number is stored in eight bits. Blocks are replaced by
``(x - zero_point) * scale`` in float32, with each scale repeated along the axis. The cast is replaced in all
sets, because some engines have no kernel for it (onnxruntime 1.22). Zero points of ``MatMulNBits`` with an
order of groups become floats, because the engine reads packed ones in the wrong order (onnxruntime 1.32).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import onnx
from onnx import helper

from qaic.compiler.diagnostics.messages import refuse
from qaic.compiler.ir.constants.in_graph import ConstantReader, dense, read_array
from qaic.compiler.ir.constants.weights import MemoryRange, Weight, read_all
from qaic.compiler.ir.elem_types import FLOAT, INT8, INT32, INT64, UINT8
from qaic.compiler.ir.graph_edits import NodeWriter, replace_input_with, set_nodes, set_payload
from qaic.compiler.ir.graph_walk import (
    FreshNames,
    all_graphs,
    all_nodes,
    attribute_of,
    find_nodes,
    nodes_of,
    op_types,
    standard,
    standard_version,
    subgraphs,
)
from qaic.compiler.ir.inlined_names import InlinedNames
from qaic.compiler.ir.model import Context, Model, compiler_pass

#: first operator set with 4-bit types and scales per block
_HAS_BLOCKS: Final = 21
#: first operator set with CastLike
_HAS_CAST_LIKE: Final = 15
#: first operator set whose DequantizeLinear has an axis
_HAS_CHANNELS: Final = 13

_UINT4: Final = 21
_INT4: Final = 22
#: 4-bit type -> type that its values are stored in
_KEPT_IN: Final = {_UINT4: UINT8, _INT4: INT8}

_ENGINE_DOMAIN: Final = "com.microsoft"
_PACKED_PRODUCT: Final = "MatMulNBits"
#: operators that may be expanded
_REWRITTEN: Final = frozenset({"Cast", "DequantizeLinear"})


def _quantized_weights(model: onnx.ModelProto, weights: dict[str, Weight]) -> list[str]:
    """Convert quantized weights to a form that the engine supports.

    Returns the values that the nodes of the weights compute; options for floats do not apply to them.
    """
    exact: list[str] = []
    present = op_types(model)
    if _PACKED_PRODUCT in present:
        constants = ConstantReader(model.graph, weights)
        for node in all_nodes(model.graph.node):
            if node.op_type == _PACKED_PRODUCT and node.domain == _ENGINE_DOMAIN:
                _unpack_zero_points(node, constants, model.graph)
    version = standard_version(model)
    has_casts = "Cast" in present and any(map(_is_narrow_cast, nodes_of(model)))
    if has_casts or _HAS_CHANNELS <= version < _HAS_BLOCKS:
        _widen_constants(model, weights)
    if present.isdisjoint(_REWRITTEN):
        return exact
    if version >= _HAS_CHANNELS and _is_rewritten(model.graph.node, version):
        floats = {tensor.name for tensor in model.graph.initializer if tensor.data_type == FLOAT}
        floats |= {name for name, weight in weights.items() if weight.elem_type == FLOAT}
        exact += _Rewriter(FreshNames(model.graph), version, floats).run(model.graph)
    for function in model.functions:
        version = standard_version(function)
        if version >= _HAS_CHANNELS and _is_rewritten(function.node, version):
            exact += _Rewriter(_names_of(function), version, set()).run(function)
            _keep_declared(function)
    return exact


def _is_ahead(node: onnx.NodeProto, version: int) -> bool:
    """Return True if the operator set lacks the node's blocks, or an engine lacks the kernel of its cast."""
    if version < _HAS_BLOCKS and standard(node, "DequantizeLinear"):
        return attribute_of(node, "block_size", 0) != 0
    return _is_narrow_cast(node)


def _is_narrow_cast(node: onnx.NodeProto) -> bool:
    return standard(node, "Cast") and attribute_of(node, "to", 0) in _KEPT_IN


def _is_rewritten(nodes: Iterable[onnx.NodeProto], version: int) -> bool:
    return any(_is_ahead(node, version) for node in find_nodes(nodes, _REWRITTEN))


def _widen_constants(model: onnx.ModelProto, weights: dict[str, Weight]) -> None:
    """Store 4-bit constants in eight bits, so that all operands of an operator have one type."""
    for node in nodes_of(model):
        for attribute in node.attribute if standard(node, "Constant") else ():
            if attribute.name == "value":
                _widen(attribute.t)
    for graph in all_graphs(model.graph):
        for tensor in [tensor for tensor in graph.initializer if tensor.data_type in _KEPT_IN]:
            _widen(tensor)
        # Outputs keep their 4-bit type. No buffer has this type, so a later check refuses them.
        ends = () if graph is model.graph else (*graph.input, *graph.output)
        for value in (*ends, *graph.value_info):
            kept = _KEPT_IN.get(value.type.tensor_type.elem_type)
            if kept is not None:
                value.type.tensor_type.elem_type = kept
    for name, weight in weights.items():
        if weight.elem_type in _KEPT_IN:
            weights[name] = _wide(weight)


def _widen(tensor: onnx.TensorProto) -> None:
    kept = _KEPT_IN.get(tensor.data_type)
    if kept is not None:
        set_payload(tensor, kept, dense(tensor).astype("int8" if kept == INT8 else "uint8").tobytes())


def _wide(weight: Weight) -> Weight:
    """Unpack a large constant; the lower four bits of a byte come first."""
    packed = np.frombuffer(read_all(weight.source), np.uint8)
    values = np.stack([packed & 15, packed >> 4], axis=1).reshape(-1)[: math.prod(weight.dims)]
    if weight.elem_type == _INT4:
        values = ((values ^ 8).astype(np.int8) - 8).view(np.uint8)
    return Weight(weight.name, _KEPT_IN[weight.elem_type], weight.dims, MemoryRange(values.tobytes()))


def _names_of(function: onnx.FunctionProto) -> FreshNames:
    inputs = [onnx.ValueInfoProto(name=name) for name in function.input]
    return FreshNames(onnx.GraphProto(node=function.node, input=inputs))


def _keep_declared(function: onnx.FunctionProto) -> None:
    """Change the declared types of values in a body; onnx supports such declarations from 1.16."""
    for value in getattr(function, "value_info", ()):
        kept = _KEPT_IN.get(value.type.tensor_type.elem_type)
        if kept is not None:
            value.type.tensor_type.elem_type = kept


@dataclass(slots=True)
class _Rewriter:
    fresh: FreshNames
    version: int
    #: constants that are float32
    floats: set[str]
    exact: list[str] = field(default_factory=list)

    def run(self, body: onnx.GraphProto | onnx.FunctionProto) -> list[str]:
        """Rewrite the nodes of a body; returns the values added for weights."""
        made: list[onnx.NodeProto] = []
        changed = False
        for node in body.node:
            for graph in subgraphs(node):
                self.run(graph)
            if not _is_ahead(node, self.version):
                made.append(node)
                continue
            changed = True
            writer = NodeWriter(self.fresh, self.version, node.output[0], "dequantized")
            if node.op_type == "Cast":
                self._cast(node, writer)
            else:
                self._dequantize(node, writer)
            writer.nodes[-1].name = node.name
            made += writer.nodes
        if changed:
            set_nodes(body, made)
        return self.exact

    def _cast(self, node: onnx.NodeProto, writer: NodeWriter) -> None:
        """Keep the lower four bits, like a cast to a 4-bit type."""
        source, result = node.input[0], node.output[0]
        if attribute_of(node, "to", 0) == _UINT4:
            number = writer.add("Cast", source, to=UINT8)
            writer.add("Mod", number, _number(writer, 16, UINT8), output=result)
        else:
            number = writer.add("Cast", source, to=INT32)
            eight, sixteen = (_number(writer, value, INT32) for value in (8, 16))
            above = writer.add("Mod", writer.add("Add", number, eight), sixteen)
            writer.add("Cast", writer.add("Sub", above, eight), output=result, to=INT8)

    def _dequantize(self, node: onnx.NodeProto, writer: NodeWriter) -> None:
        """Write ``(x - zero_point) * scale`` with the scales and zero points of blocks repeated."""
        result, add = node.output[0], writer.add
        axis, size = attribute_of(node, "axis", 1), attribute_of(node, "block_size", 0)
        if size < 0:
            raise refuse(
                f"node {node.name or result!r} (DequantizeLinear)",
                code="invalid_model",
                found=f"block_size {size}",
                expected="a positive number",
                fix="export the model again",
            )
        data, scale = node.input[:2]
        zero = node.input[2] if len(node.input) > 2 else ""
        place = add("Gather", add("Shape", data), _number(writer, axis))
        counted = add("Range", _number(writer, 0), place, _number(writer, 1))
        blocks = add("Div", counted, _number(writer, size))
        number = add("Cast", data, to=FLOAT)
        if zero:
            zeros = add("Cast", zero, to=FLOAT)
            number = add("Sub", number, add("Gather", zeros, blocks, axis=axis))
        is_float = scale in self.floats or self.version < _HAS_CAST_LIKE
        wide = scale if is_float else add("Cast", scale, to=FLOAT)
        scales = add("Gather", wide, blocks, axis=axis)
        if is_float:
            add("Mul", number, scales, output=result)
        else:
            add("CastLike", add("Mul", number, scales), scale, output=result)
        self.exact += [name for made in writer.nodes for name in made.output]


def _number(writer: NodeWriter, value: int, elem_type: int = INT64) -> str:
    return writer.add("Constant", value=helper.make_tensor("", elem_type, [], [value]))


def _unpack_zero_points(node: onnx.NodeProto, constants: ConstantReader, graph: onnx.GraphProto) -> None:
    """Convert zero points to floats if MatMulNBits has an order of groups (GPTQ with act_order)."""
    if len(node.input) < 5 or not node.input[3] or not node.input[4]:
        return
    packed, scales = constants.describe(node.input[3]), constants.describe(node.input[2])
    bits, size = attribute_of(node, "bits", 4), attribute_of(node, "block_size", 0)
    if packed is None or packed.elem_type != UINT8 or scales is None or bits not in {2, 4, 8} or size <= 0:
        return
    columns, blocks = attribute_of(node, "N", 0), -(-attribute_of(node, "K", 0) // size)
    row = -(-blocks * bits // 8)
    held = read_array(packed)
    if columns <= 0 or held.size != columns * row:
        return
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = (held.reshape(columns, row, 1) >> shifts & (1 << bits) - 1).reshape(columns, -1)[:, :blocks]
    name = FreshNames(graph).make(node.input[3], "unpacked")
    dtype = helper.tensor_dtype_to_np_dtype(scales.elem_type)
    constants.add_array(name, np.ascontiguousarray(numbers).reshape(-1).astype(dtype))
    replace_input_with(node, 3, name)


@compiler_pass()
def legalize_quantized_weights_pass(model: Model, context: Context) -> None:
    """Convert quantized weights to a form that every supported engine computes correctly."""
    context.exact = _quantized_weights(model.proto, model.weights)
    if context.exact and context.names is None:
        context.names = InlinedNames(model.proto)
