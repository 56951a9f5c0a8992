"""Costs of a program before it runs, and patterns that are slow on a card.

The costs are parameters, multiply-accumulates, weight bytes, activation memory.

All figures follow from shapes. Multiply-accumulates are those of matrix products, convolutions and recurrent
layers; other operators add little. Activation memory is the memory of all values that are alive at the same
time when the nodes run in order, each without reuse: an upper bound for an allocator that reuses memory.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx

from qaic.compiler.diagnostics.messages import listing
from qaic.compiler.ir.constants.float16_weights import FLOAT16_MAX
from qaic.compiler.ir.constants.in_graph import constant_values
from qaic.compiler.ir.constants.weights import Weight
from qaic.compiler.ir.elem_types import FLOAT, INT64, TABLE, tensor_bytes, type_name
from qaic.compiler.ir.graph_walk import STANDARD_DOMAINS, node_key, producers, subgraphs
from qaic.compiler.ir.macs import macs_of
from qaic.compiler.ir.precision import PrecisionClass
from qaic.compiler.ir.value_info import collect_shapes, collect_types
from qaic.support.text import counted

_Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """Cost of one inference with one set of shapes."""

    #: name of the set of shapes; empty if there is only one
    name: str
    #: multiply-accumulates by operator
    macs: Counter[str]
    #: nodes with an unknown cost, because a shape is unknown before the program runs, or the node repeats a
    #: body
    unknown: int
    #: memory of the values that are alive at the same time, without weights
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class WeightCounts:
    """Weights of a program."""

    #: elements
    count: int
    #: bytes by the format they are stored in
    stored_bytes: Counter[str]


def work_of(specialized_model: onnx.ModelProto, name: str = "") -> Work:
    """Measure a graph whose shapes were inferred, its weights among its inputs or initializers."""
    shapes, types = collect_shapes(specialized_model), collect_types(specialized_model)
    macs: Counter[str] = Counter()
    unknown = 0
    for node in specialized_model.graph.node:
        if any(True for _ in subgraphs(node)):
            unknown += 1
            continue
        cost = macs_of(node, shapes)
        if cost is None:
            unknown += 1
        elif cost:
            macs[node.op_type] += cost
    return Work(name, macs, unknown, _peak(specialized_model.graph, shapes, types))


def parameters_of(model: onnx.ModelProto, weights: Mapping[str, Weight]) -> WeightCounts:
    """Count the weights of a program: those stored apart and those in its graph."""
    count, stored = 0, Counter[str]()
    for weight in weights.values():
        count += math.prod(weight.dims)
        stored[_format(weight)] += weight.source.nbytes
    for tensor in model.graph.initializer:
        if tensor.name not in weights and TABLE.get(tensor.data_type, ("", 0))[1]:
            count += math.prod(tensor.dims)
            stored[type_name(tensor.data_type)] += tensor_bytes(tensor.data_type, tensor.dims)
    return WeightCounts(count, stored)


def table(works: Sequence[Work], parameters: WeightCounts) -> str:
    """Write the figures for people."""
    lines = [f"parameters        {parameters.count:,}"]
    total = sum(parameters.stored_bytes.values())
    formats = ", ".join(f"{kind} {size:,}" for kind, size in sorted(parameters.stored_bytes.items()))
    each = f", {total / parameters.count:.3g} per parameter" if parameters.count else ""
    lines.append(f"weight bytes      {total:,}" + (f" ({formats})" if formats else "") + each)
    for work in works:
        label = f" [{work.name}]" if work.name else ""
        op_types = ", ".join(f"{kind} {count:,}" for kind, count in sorted(work.macs.items()))
        lines.append(
            f"MACs{label}  ".ljust(18)
            + f"{sum(work.macs.values()):,}"
            + (f" ({op_types})" if op_types else "")
        )
        lines.append(f"activations{label}  ".ljust(18) + f"{work.peak_bytes:,} bytes at one time (estimate)")
        if work.unknown:
            lines.append(
                f"not counted{label}  ".ljust(18)
                + f"{counted(work.unknown, 'node')} of unknown shape or in loops"
            )
    return "\n".join(lines)


def _format(weight: Weight) -> str:
    blocks = getattr(weight, "blocks", None)
    return type_name(weight.elem_type) if blocks is None else str(blocks.encoding)


def _peak(graph: onnx.GraphProto, shapes: Mapping[str, _Shape], types: Mapping[str, int]) -> int:
    """Add up the values alive while each node runs, and return the largest sum."""
    last: dict[str, int] = {}
    for number, node in enumerate(graph.node):
        # A nested graph reads values of the outer one by name.
        inner = {name for graph in subgraphs(node) for child in graph.node for name in child.input}
        for name in (*node.input, *inner):
            last[name] = number
    end = len(graph.node)
    for value in graph.output:
        last[value.name] = end
    ends: dict[int, list[str]] = {}
    made = {name for node in graph.node for name in node.output if name}
    for name in made:
        ends.setdefault(last.get(name, -1), []).append(name)

    def size(name: str) -> int:
        code = types.get(name, 0)
        return tensor_bytes(code, shapes[name]) if name in shapes and code in TABLE else 0

    alive = peak = 0
    for number, node in enumerate(graph.node):
        alive += sum(size(name) for name in node.output if name)
        peak = max(peak, alive)
        alive -= sum(size(name) for name in ends.get(number, ()))
        alive -= sum(size(name) for name in node.output if name and name not in last)
    return peak


#: operators that the card computes in its integer units, unless they are computed during compilation
_ARITHMETIC: Final = frozenset(
    {"Add", "CumSum", "Div", "Max", "Min", "Mod", "Mul", "Pow", "ReduceMax", "ReduceSum", "Sub", "Sum"}
)
#: operators that only move data, without arithmetic in any precision
_MOVES: Final = frozenset(
    (
        *("Cast", "Concat", "Constant", "ConstantOfShape", "DepthToSpace", "DequantizeLinear", "Expand"),
        *("Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Pad", "QuantizeLinear", "Reshape"),
        *("ScatterElements", "ScatterND", "Shape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile"),
        *("Transpose", "Unsqueeze", "Where"),
    )
)
#: number of channels or columns that are computed together
_GROUP: Final = 32
_BEFORE_BATCH_NORM: Final = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


def hints(
    specialized_model: onnx.ModelProto, weights: Mapping[str, Weight], classes: Mapping[str, PrecisionClass]
) -> list[str]:
    """Find patterns that are slow on a card.

    The graph has inferred shapes, and its weights are inputs. `classes` are the precisions of nodes by their
    first outputs; other nodes compute in the types of the model. Returns one line for each kind of finding.
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
            found.setdefault("computed in float32, slow on a card (convert_to_fp16)", []).append(where)
    outside = sorted(name for name, weight in weights.items() if _exceeds_half(weight))
    if outside:
        found["constants beyond the range of float16 (clip_fp16_constants)"] = outside
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
        yield "BatchNormalization that cannot be folded into a convolution or product before it"
    if kind == "Transpose" and maker is not None and maker.op_type == "Transpose":
        yield "Transpose of a Transpose: replace both with one"
    if kind == "Erf" and maker is not None and maker.op_type in {"Div", "Mul"}:
        yield "Gelu expanded to Erf and others: export it as Gelu (operator set 20)"
    if kind == "Pow" and maker is not None and maker.op_type == "Sub":
        yield "a normalization expanded to Sub, Pow and others: export it as LayerNormalization"
    second = shapes.get(node.input[1]) if len(node.input) > 1 else None
    if second and kind in {"MatMul", "Gemm"} and any(size % _GROUP for size in second[-2:]):
        yield f"matrix sizes that are not multiples of {_GROUP}"
    if second and kind == "Conv" and second[0] % _GROUP:
        yield f"output channels that are not a multiple of {_GROUP}"


def _exceeds_half(weight: Weight) -> bool:
    return weight.elem_type == FLOAT and any(
        (np.abs(np.nan_to_num(np.frombuffer(piece, "<f4"), posinf=0, neginf=0)) > FLOAT16_MAX).any()
        for piece in weight.source.chunks()
    )
