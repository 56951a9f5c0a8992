"""Multiply-accumulates of a node."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import onnx

from qaic.compiler.ir.graph_walk import attribute_of

#: the weights of StoredMatMul and StoredExperts are not an operand
_MATMULS: Final = frozenset(
    {
        *("MatMul", "MatMulInteger", "QLinearMatMul", "FusedMatMul", "MatMulIntegerToFloat"),
        *("DynamicQuantizeMatMul", "MatMulNBits", "StoredMatMul", "StoredExperts"),
    }
)
_CONVOLUTIONS: Final = frozenset({"Conv", "ConvInteger", "QLinearConv", "FusedConv"})
#: recurrent layers -> gates
_RECURRENT: Final = {"GRU": 3, "LSTM": 4, "RNN": 1}
#: index of the second operand of the quantized forms
_SECOND: Final = {"QLinearMatMul": 3, "QLinearConv": 3}

_Shape = tuple[int, ...]


def macs_of(node: onnx.NodeProto, shapes: Mapping[str, _Shape]) -> int | None:
    """Return the multiply-accumulates of a node; 0 for uncounted operators, None if a shape is missing."""
    kind = node.op_type
    counted = kind in _MATMULS or kind in _CONVOLUTIONS or kind in _RECURRENT
    if not (counted or kind in {"ConvTranspose", "Gemm", "Einsum"}):
        return 0
    first = shapes.get(node.input[0]) if node.input else None
    at = _SECOND.get(kind, 1)
    second = shapes.get(node.input[at]) if at < len(node.input) else None
    result = shapes.get(node.output[0]) if node.output and node.output[0] else None
    if kind in _MATMULS:
        return math.prod(result) * first[-1] if first and result is not None else None
    if first is None or second is None or (result is None and kind not in _RECURRENT):
        return None
    if kind == "Einsum":
        return _einsum(node, [shapes.get(name) for name in node.input])
    if kind in _RECURRENT and len(first) == 3 and len(second) == 3:
        directions, rows, inputs = second
        hidden = rows // _RECURRENT[kind]
        return first[0] * first[1] * directions * rows * (inputs + hidden)
    if not (first and second) or result is None:
        return None
    if kind == "Gemm":
        return math.prod(result) * first[0 if attribute_of(node, "transA", 0) else -1]
    # A convolution applies the kernel once per output element; a transposed one, once per input element.
    return math.prod(first if kind == "ConvTranspose" else result) * math.prod(second[1:])


def _einsum(node: onnx.NodeProto, shapes: Sequence[_Shape | None]) -> int | None:
    """Count one loop for each index of the equation."""
    equation = attribute_of(node, "equation", b"").decode("ascii", "replace")
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if "." in equation or len(terms) != len(shapes):
        return None
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        if shape is None or len(term) != len(shape):
            return None
        sizes.update(zip(term, shape, strict=True))
    return math.prod(sizes.values())
