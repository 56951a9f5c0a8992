"""Hints about what keeps a program from being fast on a card: level 3 of the warnings.

They are printed when asked for and never more than hints.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import onnx

from qaic.compiler.diagnostics.compile_error import listing
from qaic.compiler.ir.constants.propagation import constant_values, node_key
from qaic.compiler.ir.constants.weights import Weight
from qaic.compiler.ir.elem_types import FLOAT, INT64
from qaic.compiler.ir.graph_walk import STANDARD_DOMAINS, producers, subgraphs
from qaic.compiler.ir.precision import PrecisionClass
from qaic.compiler.ir.value_info import collect_shapes, collect_types

#: operators whose arithmetic the card does in its integer units, if it is not done while compiling
_ARITHMETIC: Final = frozenset(
    {"Add", "CumSum", "Div", "Max", "Min", "Mod", "Mul", "Pow", "ReduceMax", "ReduceSum", "Sub", "Sum"}
)
#: operators that only move data: what they do in fp32 costs no arithmetic
_MOVES: Final = frozenset(
    (
        *("Cast", "Concat", "Constant", "ConstantOfShape", "DepthToSpace", "DequantizeLinear", "Expand"),
        *("Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Pad", "QuantizeLinear", "Reshape"),
        *("ScatterElements", "ScatterND", "Shape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile"),
        *("Transpose", "Unsqueeze", "Where"),
    )
)
#: channels and columns are computed in groups of this many
_GROUP: Final = 32
_HALF_MAX: Final = 65504.0
_BEFORE_BATCH_NORM: Final = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


def hints(
    specialized_model: onnx.ModelProto, weights: Mapping[str, Weight], classes: Mapping[str, PrecisionClass]
) -> list[str]:
    """Find what is slow on a card.

    The graph has inferred shapes, its weights among its inputs. `classes` are what nodes compute in, by
    their first outputs; the others in the types of the model. Returns one line for each kind of finding.
    """
    shapes, types = collect_shapes(specialized_model), collect_types(specialized_model)
    constants = constant_values(specialized_model.graph, weights)
    makers = producers(specialized_model.graph.node)
    found: dict[str, list[str]] = {}
    for node in specialized_model.graph.node:
        key = node_key(node)
        if key in constants or node.domain not in STANDARD_DOMAINS:
            continue
        where = str(node.name) or key
        for text in _of_node(node, makers, shapes, types):
            found.setdefault(text, []).append(where)
        is_float = types.get(key) == FLOAT and classes.get(key, PrecisionClass.FP32) is PrecisionClass.FP32
        if is_float and node.op_type not in _MOVES and not any(True for _ in subgraphs(node)):
            found.setdefault("computed in fp32, which a card does slowly (convert_to_fp16)", []).append(where)
    outside = sorted(name for name, weight in weights.items() if _exceeds_half(weight))
    if outside:
        found["constants beyond the range of fp16 (clip_fp16_constants)"] = outside
    return [f"{len(names)}x {text}: {listing(names, 3)}" for text, names in sorted(found.items())]


def _of_node(
    node: onnx.NodeProto,
    makers: Mapping[str, onnx.NodeProto],
    shapes: Mapping[str, tuple[int, ...]],
    types: Mapping[str, int],
) -> Iterator[str]:
    kind = node.op_type
    if kind == "Einsum":
        yield "Einsum: write it as MatMul and Transpose"
    if kind in _ARITHMETIC and types.get(node_key(node)) == INT64:
        yield "arithmetic with 64-bit integers"
    maker = makers.get(node.input[0]) if node.input else None
    if kind == "BatchNormalization" and (maker is None or maker.op_type not in _BEFORE_BATCH_NORM):
        yield "BatchNormalization that no convolution or product before it can take in"
    if kind == "Transpose" and maker is not None and maker.op_type == "Transpose":
        yield "Transpose of a Transpose: one does the work of both"
    if kind == "Erf" and maker is not None and maker.op_type in {"Div", "Mul"}:
        yield "Gelu written out as Erf and others: export it as Gelu (operator set 20)"
    if kind == "Pow" and maker is not None and maker.op_type == "Sub":
        yield "a normalization written out as Sub, Pow and others: export it as LayerNormalization"
    second = shapes.get(node.input[1]) if len(node.input) > 1 else None
    if second and kind in {"MatMul", "Gemm"} and any(size % _GROUP for size in second[-2:]):
        yield f"sizes of a matrix that are no multiples of {_GROUP}"
    if second and kind == "Conv" and second[0] % _GROUP:
        yield f"output channels that are no multiple of {_GROUP}"


def _exceeds_half(weight: Weight) -> bool:
    if weight.elem_type != FLOAT:
        return False
    for piece in weight.source.chunks():
        values = np.frombuffer(piece, "<f4")
        with np.errstate(invalid="ignore"):
            if bool(np.any(np.isfinite(values) & (np.abs(values) > _HALF_MAX))):
                return True
    return False
