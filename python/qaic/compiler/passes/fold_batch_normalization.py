"""Folds BatchNormalization into the preceding Conv, so that both round once.

The compiler of the card folds these nodes too. The folded constants are computed in float32 and then rounded
like all other constants.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import onnx

from qaic.compiler.ir.constants.in_graph import ConstantReader, with_factors
from qaic.compiler.ir.constants.weights import Weight
from qaic.compiler.ir.elem_types import FLOAT
from qaic.compiler.ir.graph_edits import remove_nodes, rename_output, set_inputs
from qaic.compiler.ir.graph_walk import (
    FreshNames,
    attribute_of,
    node_key,
    producers,
    standard,
    standard_version,
    uses,
)
from qaic.compiler.ir.model import Context, Model, Skip, compiler_pass
from qaic.compiler.ir.precision import PrecisionClass


def fold_batch_normalization(
    model: onnx.ModelProto,
    weights: dict[str, Weight],
    are_one_unit: Callable[[onnx.NodeProto, onnx.NodeProto], bool],
    skip: Skip = lambda _reason, _node: None,
) -> int:
    """Fold normalizations of the main graph; changes `model` and `weights`.

    `are_one_unit` returns True if a convolution and the normalization after it may become one node. `skip`
    receives the reason for each normalization that stays. Returns the number of folded nodes.
    """
    graph = model.graph
    if not any(node.op_type == "BatchNormalization" for node in graph.node):
        return 0
    makers = producers(graph.node)
    constants = ConstantReader(graph, weights)
    count, version = uses(graph), standard_version(model)
    fresh = FreshNames(graph)
    folded: list[int] = []
    for index, norm in enumerate(graph.node):
        if not standard(norm, "BatchNormalization"):
            continue
        conv = makers.get(norm.input[0])
        if conv is None or not standard(conv, "Conv"):
            skip("no convolution computes the operand", norm)
            continue
        if not _is_inference(norm, version):
            skip("the normalization does not use stored statistics for each channel", norm)
            continue
        if count[norm.input[0]] != 1:
            skip("the result of the convolution has other readers", norm)
            continue
        if not are_one_unit(conv, norm):
            skip("options keep the convolution and the normalization apart", norm)
            continue
        bias_name = conv.input[2] if len(conv.input) > 2 else ""
        names = [*norm.input[1:5], *([bias_name] if bias_name else [])]
        kernel = constants.describe(conv.input[1])
        if kernel is None or kernel.elem_type != FLOAT or not all(constants.is_float(name) for name in names):
            skip("an operand is no float32 constant", norm)
            continue
        epsilon = attribute_of(norm, "epsilon", 1e-5)
        factors, bias = _folded_constants(
            [constants.read(name) for name in norm.input[1:5]],
            constants.read(bias_name) if bias_name else None,
            epsilon,
        )
        new_kernel = fresh.make(conv.input[1], "folded")
        new_bias = fresh.make(norm.output[0], "folded_bias")
        constants.add(with_factors(kernel, new_kernel, factors, 0))
        constants.add_array(new_bias, bias)
        set_inputs(conv, [conv.input[0], new_kernel, new_bias])
        rename_output(conv, 0, norm.output[0])
        folded.append(index)
    remove_nodes(graph, folded)
    return len(folded)


def _folded_constants(
    statistics: list[npt.NDArray[np.float32]], bias: npt.NDArray[np.float32] | None, epsilon: float
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    scale, shift, mean, variance = statistics
    factors = scale / np.sqrt(variance + np.float32(epsilon))
    start = -mean if bias is None else bias - mean
    return factors.astype(np.float32), (start * factors + shift).astype(np.float32)


def _is_inference(norm: onnx.NodeProto, version: int) -> bool:
    """Return True if the node uses stored statistics per channel; a node that trains has more results."""
    return (
        not any(norm.output[1:])
        and attribute_of(norm, "spatial", 1) == 1
        # Before operator set 7, the node trains unless this attribute is set; later sets do not have it.
        and attribute_of(norm, "is_test", int(version >= 7)) == 1
    )


@compiler_pass(lambda context: context.for_integers)
def fold_batch_normalization_for_integers_pass(model: Model, context: Context) -> None:
    """Fold a normalization into its convolution, so that both have one range.

    Options that name operators by type do not change the result, because a profile must fit any later
    compilation. Options that name single nodes are the same when a profile is written and when it is read.
    """
    lists = context.options.node_precision_info_file
    named = set() if lists is None else {*lists.fp16, *lists.fp32}

    def are_one_unit(conv: onnx.NodeProto, norm: onnx.NodeProto) -> bool:
        return not named & {node_key(conv), node_key(norm)}

    _fold(model, context, are_one_unit)


@compiler_pass()
def fold_batch_normalization_for_float16_pass(model: Model, context: Context) -> None:
    """Fold a float16 normalization into its convolution, so that both round once."""
    classes, requested = context.plan.classes, context.plan.requested

    def are_one_unit(conv: onnx.NodeProto, norm: onnx.NodeProto) -> bool:
        same = classes.get(node_key(conv)) is classes.get(node_key(norm)) is PrecisionClass.FP16
        return same and {node_key(conv), node_key(norm)} <= requested

    if requested:
        _fold(model, context, are_one_unit)


def _fold(
    model: Model, context: Context, are_one_unit: Callable[[onnx.NodeProto, onnx.NodeProto], bool]
) -> None:
    if fold_batch_normalization(model.proto, model.weights, are_one_unit, context.skip):
        model.learn_constants()
