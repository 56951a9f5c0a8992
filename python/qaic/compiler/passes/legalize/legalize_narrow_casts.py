"""Casts to float8 without saturation, which the engine rounds wrongly beyond the largest float8.

Values beyond the largest float8 become infinite in E5M2, and NaN in E4M3FN, which has no infinity. For values
below the next power of two, the engine returns NaN in E5M2. For some values, it returns the largest float8 in
E4M3FN. The engine converts infinities correctly, so such values become infinite before the cast.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

import numpy as np
import onnx

from qaic.compiler.ir.elem_types import BOOL, FLOAT
from qaic.compiler.ir.graph_edits import clone, replace_input_with, rewrite_nodes
from qaic.compiler.ir.graph_walk import FreshNames, find_nodes, standard, standard_version
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.compiler.ir.value_info import Added
from qaic.compiler.passes.legalize.guard_nodes import GuardNodes

_CASTING: Final = frozenset({"Cast", "CastLike", "QuantizeLinear"})

#: type -> comparison with the midpoint after its largest value, and the midpoint; ties round to even
_LIMITS: Final = {17: ("Greater", 464.0), 19: ("GreaterOrEqual", 61440.0)}


def is_unsaturated(node: onnx.NodeProto) -> bool:
    """Return True for a node whose result may exceed the largest value of its type."""
    given = (one for one in node.attribute if one.name == "saturate")
    return standard(node, *_CASTING) and any(one.ref_attr_name or not one.i for one in given)


def legalize_narrow_casts(model: onnx.ModelProto, types: Mapping[str, int]) -> dict[str, Added]:
    """Rewrite casts without saturation that the engine rounds wrongly; changes `model` in place.

    The model has no functions with such nodes. Returns the added values.
    """
    added: dict[str, Added] = {}
    if not any(is_unsaturated(node) for node in find_nodes(model.graph.node, _CASTING)):
        return added
    fresh, version = FreshNames(model.graph), standard_version(model)

    def written(node: onnx.NodeProto) -> list[onnx.NodeProto]:
        target = types.get(node.output[0], 0) if is_unsaturated(node) else 0
        if target not in _LIMITS:
            return [node]
        guards, copy = GuardNodes(fresh, added, version), clone(node)
        replace_input_with(copy, 0, _with_infinities(node, target, types, guards))
        return [*guards.nodes, copy]

    rewrite_nodes(model.graph, written)
    return added


def _with_infinities(node: onnx.NodeProto, target: int, types: Mapping[str, int], guards: GuardNodes) -> str:
    """Append nodes that replace elements by infinity if they round beyond the largest value."""
    operand, base = node.input[0], node.output[0]
    compute = partial(guards.compute, base)
    if types.get(operand, FLOAT) != FLOAT:
        operand = compute("Cast", operand, elem_type=FLOAT, to=FLOAT)
    quotient = operand
    if node.op_type == "QuantizeLinear":
        # Dequantizing ones returns the scales in the shape of the operand.
        ones = compute("Equal", operand, operand, elem_type=BOOL)
        codes = compute("Cast", compute("Cast", ones, elem_type=FLOAT, to=FLOAT), elem_type=target, to=target)
        along = {one.name: one.i for one in node.attribute if one.name in {"axis", "block_size"}}
        scales = compute("DequantizeLinear", codes, node.input[1], elem_type=FLOAT, **along)
        quotient = compute("Div", operand, scales, elem_type=FLOAT)
    comparison, limit = _LIMITS[target]
    bound, infinity = (guards.constant(base, np.array(number, np.float32)) for number in (limit, np.inf))
    size = compute("Abs", quotient, elem_type=FLOAT)
    is_beyond = compute(comparison, size, bound, elem_type=BOOL)
    # The infinity has the sign of the operand; a negative scale changes the sign.
    infinite = compute("Mul", operand, infinity, elem_type=FLOAT)
    return compute("Where", is_beyond, infinite, operand, elem_type=FLOAT)


@compiler_pass()
def legalize_narrow_casts_pass(model: Model, _: Context) -> None:
    """Replace values by infinity if casts to float8 without saturation exceed the largest float8."""
    model.rewrite(legalize_narrow_casts)
