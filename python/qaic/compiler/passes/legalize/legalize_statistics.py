"""Mean and inverse standard deviation of normalizations, which the engine does not always return.

Onnxruntime 1.22 does not write these results of SkipLayerNormalization and SkipSimplifiedLayerNormalization,
so a program would return the previous contents of its buffers. Shape inference of the engine gives the
deviation of a SimplifiedLayerNormalization over several axes a wrong shape. Other nodes compute these results
in float32, as newer engines do.
"""

from typing import Final

import numpy as np
import onnx
from onnx import helper

from qaic.compiler.ir import graph_edits as edit
from qaic.compiler.ir.constants.weights import with_weights_as_inputs
from qaic.compiler.ir.elem_types import FLOAT
from qaic.compiler.ir.graph_walk import (
    FreshNames,
    all_nodes,
    attribute_of,
    node_key,
    operator_of,
    standard_version,
)
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.compiler.ir.value_info import DimsInSets, dims_in

_ENGINE_DOMAIN: Final = "com.microsoft"
#: operators -> positions of mean and inverse standard deviation; a simplified one has no mean of its operand
_STATISTICS: Final[dict[tuple[str, str], tuple[int | None, int]]] = {
    ("", "SimplifiedLayerNormalization"): (None, 1),
    (_ENGINE_DOMAIN, "SkipLayerNormalization"): (1, 2),
    (_ENGINE_DOMAIN, "SkipSimplifiedLayerNormalization"): (1, 2),
}
#: position of the sum that a Skip operator normalizes
_SUM: Final = 3
#: first operator set in which the axes of ReduceMean are an input
_AXES_AS_INPUT: Final = 18
#: default epsilons of the engine
_EPSILONS: Final = {"SimplifiedLayerNormalization": 1e-5}
_EPSILON: Final = 1e-12


def returns_statistics(node: onnx.NodeProto) -> bool:
    """Return True if results of a node are a mean or a deviation, which the pass may compute."""
    return operator_of(node) in _STATISTICS and any(node.output[1:_SUM])


def _axes(node: onnx.NodeProto, dims: DimsInSets) -> list[int]:
    """Return the normalized axes, counted from the end; [] if they are not known."""
    if node.domain == _ENGINE_DOMAIN:
        return [-1]
    axis = attribute_of(node, "axis", -1)
    scales = {len(sizes) for sizes in dims(node.input[1])}
    rank = -axis if axis < 0 else scales.pop() if len(scales) == 1 else 0
    return list(range(-rank, 0))


def _computed(node: onnx.NodeProto, axes: list[int], fresh: FreshNames, version: int) -> list[onnx.NodeProto]:
    """Return a node without statistics, and nodes that compute them."""
    writer = edit.NodeWriter(fresh, version, node_key(node))
    results = [*node.output, *[""] * (_SUM + 1 - len(node.output))]
    mean_at, deviation_at = _STATISTICS[operator_of(node)]
    mean, deviation = "" if mean_at is None else results[mean_at], results[deviation_at]
    source, kept = node.input[0], results[:1]
    if node.domain == _ENGINE_DOMAIN:
        source = results[_SUM] or fresh.make(results[0], "sum")
        kept += ["", "", source]
    plain = helper.make_node(node.op_type, node.input, kept, node.name, domain=node.domain)
    edit.set_attributes(plain, node.attribute)

    def mean_of(value: str, output: str = "") -> str:
        if version < _AXES_AS_INPUT:
            return writer.add("ReduceMean", value, axes=axes, keepdims=1, output=output)
        return writer.add("ReduceMean", value, axes, keepdims=1, output=output)

    centered = writer.add("Cast", source, to=FLOAT)
    is_simplified = "Simplified" in node.op_type
    if not is_simplified:
        centered = writer.add("Sub", centered, mean_of(centered, mean))
    variance = mean_of(writer.add("Mul", centered, centered))
    epsilon = np.float32(attribute_of(node, "epsilon", _EPSILONS.get(node.op_type, _EPSILON)))
    root = writer.add("Sqrt", writer.add("Add", variance, epsilon))
    deviation = writer.add("Reciprocal", root, output=deviation)
    if is_simplified and mean:
        # Newer engines return zeros.
        writer.add("Sub", deviation, deviation, output=mean)
    return [plain, *writer.nodes]


@compiler_pass()
def legalize_statistics_pass(model: Model, _: Context) -> None:
    """Compute means and deviations that the engine does not return, or with a wrong shape."""
    proto = model.proto
    if not any(map(returns_statistics, all_nodes(proto.graph.node))):
        return
    fresh, version = FreshNames(proto.graph), standard_version(proto)
    dims = dims_in(with_weights_as_inputs(proto, model.weights))

    def rewritten(node: onnx.NodeProto) -> list[onnx.NodeProto]:
        axes = _axes(node, dims) if returns_statistics(node) else []
        # The engine infers the right shape for one axis of the operand.
        if not axes or (node.domain != _ENGINE_DOMAIN and len(axes) == 1):
            return [node]
        nodes = _computed(node, axes, fresh, version)
        model.facts.transparent.update(name for made in nodes[1:] for name in made.output)
        return nodes

    edit.rewrite_nodes(proto.graph, rewritten)
