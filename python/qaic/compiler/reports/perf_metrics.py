"""Costs of a program before it runs: parameters, multiply-accumulates, weight bytes, activation memory.

Everything follows from shapes. Multiply-accumulates are those of matrix products, convolutions and recurrent
layers; the rest of a network does not weigh in. Activation memory is what the values need that are alive at
one time when the nodes run in their order, each in memory of its own: an upper bound of what an allocator
that reuses memory needs.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx

from qaic.compiler.ir.constants.weights import Weight
from qaic.compiler.ir.elem_types import TABLE, tensor_bytes, type_name
from qaic.compiler.ir.graph_walk import subgraphs
from qaic.compiler.ir.macs import macs_of
from qaic.compiler.ir.value_info import collect_shapes, collect_types

_Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """Cost of one inference with one set of shapes."""

    #: name of the set of shapes; empty where there is only one
    name: str
    #: multiply-accumulates by operator
    macs: Counter[str]
    #: nodes whose cost is not known, because a shape is not known before the program runs or the node repeats
    #: a body
    unknown: int
    #: memory of the values alive at one time, weights not included
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
                f"not counted{label}  ".ljust(18) + f"{work.unknown} nodes of unknown shape or in loops"
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
