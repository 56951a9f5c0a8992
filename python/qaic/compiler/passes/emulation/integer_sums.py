"""Integers that are cast to float and scaled; they stay in float32 until the scale is applied.

A dynamically quantized product casts its int32 sums to float and multiplies them by the scales of its
operands. The sums exceed the largest float16, 65504, and the scales are below its normal range. Only their
product fits. The same applies to other scaled integers, such as counts, positions and sizes.
"""

import math
from collections.abc import Collection
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx

from qaic.compiler.diagnostics.messages import listing, warn
from qaic.compiler.ir import elem_types
from qaic.compiler.ir.constants.float16_weights import FLOAT16_MAX
from qaic.compiler.ir.constants.in_graph import constant_reader, split_constants
from qaic.compiler.ir.graph_walk import (
    SHAPE_READERS,
    all_graphs,
    all_nodes,
    node_key,
    node_label,
    standard,
    subgraphs,
    usages,
)
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.precision import (
    Classification,
    PrecisionClass,
    parameter_inputs,
    parameter_outputs,
    selected_inputs,
)
from qaic.compiler.passes.emulation.computed_constants import filling

#: operators whose results may be larger than their operands by an unknown factor
_GROWING: Final = (
    *("BitShift", "BitwiseNot", "BitwiseOr", "BitwiseXor", "ConvInteger", "CumProd", "Einsum", "Gemm"),
    *("MatMul", "MatMulInteger", "Pow", "ReduceL2", "ReduceProd", "ReduceSumSquare"),
)
#: operators that may add or multiply several updates at one position
_SCATTERING: Final = ("ScatterElements", "ScatterND")
#: operators whose results are positions in an operand
_INDEXING: Final = ("ArgMax", "ArgMin", "NonZero")
_CASTING: Final = ("Cast", "CastLike")
_SCALING: Final = ("Div", "Mul")
_ADDING: Final = ("Add", "Sub")

#: integer type -> its largest magnitude
_LARGEST: Final = {
    elem_types.BOOL: 1,
    elem_types.INT8: 128,
    elem_types.UINT8: 255,
    elem_types.INT16: 1 << 15,
    elem_types.UINT16: (1 << 16) - 1,
    **dict.fromkeys((elem_types.INT32, elem_types.INT64, elem_types.UINT32, elem_types.UINT64), math.inf),
}
#: element types whose values are rounded; float64 is treated as float32
ROUNDED: Final = frozenset({elem_types.FLOAT, elem_types.DOUBLE})
#: assumed limit of input integers, which may be larger; no warning names them
_GIVEN: Final = FLOAT16_MAX
#: limit of a float that is a scale
_SCALE: Final = 0.0


class IntegerSums:
    """Finds the nodes between large integers and their scaled values, also in nested graphs."""

    def __init__(self, model: Model, decided: Classification) -> None:
        # A dim is -1 if it differs between sets of shapes.
        self._types, self._shapes, self._decided = model.facts.types, model.facts.shapes, decided
        self._constant = constant_reader(model.proto.graph, model.weights)
        #: largest magnitude of each integer value
        self._integers: dict[str, float] = {}
        #: largest magnitude of integers cast to float, and of values computed from them
        self._floats: dict[str, float] = {}
        #: nodes that read their floats unrounded
        self.scaling: set[str] = set()
        #: nodes whose results are not rounded
        self.unrounded: set[str] = set()
        #: values that become float16 without a scale -> node that reads them, "" for an output
        self.rounded: dict[str, str] = {}
        graph = model.proto.graph
        nodes = list(all_nodes(graph.node))
        if any(self._is_cast(node) or parameter_outputs(node) for node in nodes):
            self._readers = usages(nodes)
            self._outputs = {value.name for inner in all_graphs(graph) for value in inner.output}
            self._search(graph, model.weights.keys())
            self._find_rounded(nodes)

    def _is_cast(self, node: onnx.NodeProto) -> bool:
        """Return True if a node casts integers to float and they may exceed float16."""
        return (
            standard(node, *_CASTING)
            and _LARGEST.get(self._types.get(node.input[0], 0), 0) > _GIVEN
            and self._types.get(node.output[0]) in ROUNDED
        )

    def _is_float16(self, node: onnx.NodeProto) -> bool:
        key = node_key(node)
        return self._decided.classes.get(key) is PrecisionClass.FP16 and key in self._decided.requested

    def _search(self, graph: onnx.GraphProto, outer: Collection[str]) -> None:
        constants, folded = split_constants(graph, outer)
        keys = {node_key(node) for node in folded}
        for node in graph.node:
            for inner in subgraphs(node):
                self._search(inner, constants)
            # Constant nodes have no inputs; their values are read when they are needed.
            for name in node.output if node.input else ():
                if self._types.get(name, 0) in _LARGEST:
                    self._integers[name] = min(self._integer_limit(node), _LARGEST[self._types[name]])
            self._floats.update(
                (node.output[position], _SCALE)
                for position in parameter_outputs(node)
                if position < len(node.output)
            )
            limit = self._float_limit(node, constants)
            # The limit of a constant is exact.
            if limit is None or (node_key(node) in keys and limit <= _GIVEN):
                continue
            self._floats.update((name, limit) for name in node.output if self._types.get(name) in ROUNDED)
            if not self._is_float16(node):
                continue
            if not self._is_cast(node):
                self.scaling.add(node_key(node))
            following = [reader for name in node.output for reader, _ in self._readers.get(name, ())]
            if self._outputs.isdisjoint(node.output) and any(
                # A later node may compute the scale of a sum.
                (limit > _GIVEN and self._may_scale(reader))
                or self._float_limit(reader, constants) is not None
                or not self._is_float16(reader)
                for reader in following
            ):
                self.unrounded.add(node_key(node))

    @staticmethod
    def _may_scale(node: onnx.NodeProto) -> bool:
        """Return True if a node of this kind can read unrounded values."""
        return (
            standard(node, *_SCALING, *_ADDING, *_CASTING)
            or selected_inputs(node, elem_types.FLOAT16) is not None
        )

    def _integer_limit(self, node: onnx.NodeProto) -> float:
        """Return the largest magnitude of the integers that a node computes."""
        if standard(node, *_GROWING):
            return math.inf
        limits = [self._limit_of(name) if name else 0.0 for name in node.input]
        limits += [self._limit_of(value.name) for graph in subgraphs(node) for value in graph.output]
        sizes = self._shapes.get(node.input[0] if node.input else "", (-1,))
        known = _GIVEN if -1 in sizes else 0.0
        if standard(node, "Shape", *_INDEXING):
            return max(known, *sizes, 0)
        if standard(node, "TopK", "Unique"):
            # Some results are positions or counts, others are values of the operand.
            is_integer = self._types.get(node.input[0], 0) in _LARGEST
            return max(known, math.prod(sizes), limits[0] if is_integer else 0)
        if standard(node, "ConstantOfShape"):
            return _magnitude(filling(node))
        if standard(node, "Size"):
            return known or math.prod(sizes)
        if standard(node, *_ADDING, "Sum"):
            return sum(limits)
        if standard(node, "Mul"):
            return math.prod(limits)
        if standard(node, "CumSum"):
            return math.inf if known else limits[0] * max(sizes, default=1)
        if standard(node, "ReduceL1", "ReduceSum"):
            kept = math.prod(self._shapes.get(node.output[0], ()))
            return math.inf if known else limits[0] * math.prod(sizes) / max(kept, 1)
        picked = selected_inputs(node, elem_types.FLOAT16)
        if picked is None and standard(node, *_SCATTERING):
            return math.inf
        positions = range(len(limits)) if picked is None else (at for at in picked if at < len(limits))
        return max((limits[at] for at in positions), default=_GIVEN)

    def _limit_of(self, name: str) -> float:
        if name in self._floats:
            return max(self._floats[name], _GIVEN)
        if name not in self._integers:
            limit = _LARGEST.get(self._types.get(name, 0), 0)
            values = self._constant(name) if limit > _GIVEN else None
            self._integers[name] = min(_GIVEN, limit or _GIVEN) if values is None else _magnitude(values)
        return self._integers[name]

    def _float_limit(self, node: onnx.NodeProto, constants: Collection[str]) -> float | None:
        """Return the limit of the result of a node that may read unrounded values; None for other nodes."""
        if self._is_cast(node):
            limit = self._limit_of(node.input[0])
            return limit if limit >= _GIVEN else None
        limits = [self._floats[name] for name in node.input if name in self._floats]
        if not limits:
            return None
        if standard(node, *_SCALING):
            others = [at for at, name in enumerate(node.input) if name not in self._floats]
            if not all(self._is_scale(node, at, constants) for at in others):
                return None
            if not any(limits):
                return _SCALE
            return _GIVEN if others or _SCALE in limits or node.op_type == "Div" else math.inf
        picked = (0, 1) if standard(node, *_ADDING) else selected_inputs(node, elem_types.FLOAT16)
        if standard(node, *_CASTING):
            picked = (0,)
        names = [node.input[at] for at in picked or () if at < len(node.input) and node.input[at]]
        if self._floats.keys().isdisjoint(names):
            return None
        for name in names:
            if name not in self._floats and (
                name not in constants or _magnitude(self._constant(name)) > FLOAT16_MAX
            ):
                return None
        return max(self._floats[name] for name in names if name in self._floats)

    def _is_scale(self, node: onnx.NodeProto, at: int, constants: Collection[str]) -> bool:
        """Return True if a factor is at most 1, a divisor at least 1, or either applies to many elements."""
        name = node.input[at]
        values = self._constant(name)
        if node.op_type == "Div" and at == 0:
            return _magnitude(values) <= FLOAT16_MAX
        if values is not None:
            sizes = np.abs(values)
            return bool((sizes >= 1).all() if node.op_type == "Div" else (sizes <= 1).all())
        shape, result = self._shapes.get(name, (-1,)), self._shapes.get(node.output[0], (-1,))
        is_shared = -1 not in (*shape, *result) and shape != result
        return name in constants or is_shared or {*shape} <= {1}

    def _find_rounded(self, nodes: list[onnx.NodeProto]) -> None:
        large = {name for name, limit in self._floats.items() if limit > _GIVEN}
        made = {name for node in nodes if self._is_float16(node) for name in node.output}
        self.rounded.update((name, "") for name in sorted(large & made & self._outputs))
        for node in nodes:
            if not large or node_key(node) in self.scaling or not self._is_float16(node):
                continue
            for at, name in enumerate(node.input):
                if name in large and at not in parameter_inputs(node) and not standard(node, *SHAPE_READERS):
                    self.rounded.setdefault(name, node_label(node))

    def report(self, known: Collection[str]) -> None:
        """Warn about integers that become float16 before a scale is applied; skip `known` constants."""
        rounded = {name: reader for name, reader in self.rounded.items() if name not in known}
        if rounded:
            nodes = [reader for reader in dict.fromkeys(rounded.values()) if reader]
            readers = [listing(nodes)] if nodes else []
            readers += ["outputs of the model"] if "" in rounded.values() else []
            warn(
                "float16.integer_sums",
                "float16: computed integers become float16 without a scale, and those beyond 65504 become "
                f"infinite: {listing(list(rounded))}, read by {' and '.join(readers)}; "
                "node_precision_info_file keeps these values and the nodes that read them in float32",
                nodes=list(rounded),
            )


def _magnitude(values: npt.NDArray[Any] | None) -> float:
    """Return the largest magnitude of a constant; 0 if it is not known or empty."""
    if values is None or not np.size(values):
        return 0.0
    return max(abs(float(values.max())), abs(float(values.min())))
