"""Integer divisions by -1 and 0, which can end the process.

Integer divisions by zero trap, and engines before 1.25 do not refuse them. The compiler refuses a constant
divisor of zero. Other divisors pass through a Gather, which fails if they contain a zero. The quotient of
the smallest int32 or int64 and -1 exceeds its type, so the division traps, in an inference and when the
engine folds constants. A division by -1 is therefore replaced by a division by 1 and a change of sign. The
result of the smallest integer is the smallest integer, as for int8 and int16. All other results are those of
ONNX.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import onnx
from onnx import helper

from qaic.compiler.ir.constants.in_graph import constant_reader
from qaic.compiler.ir.elem_types import BOOL, FLOATS, INT8, INT16, INT32, INT64, UINT8, UINT16
from qaic.compiler.ir.graph_edits import clone, rename_output, replace_input_with, rewrite_nodes
from qaic.compiler.ir.graph_walk import (
    FreshNames,
    all_nodes,
    find_nodes,
    producers,
    standard,
    standard_version,
)
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.compiler.ir.value_info import Added, ShapesInSets, shapes_in
from qaic.compiler.passes.legalize.guard_nodes import GuardNodes, refused_operand

#: operators that divide; Mod traps in engines before 1.23
DIVISIONS: Final = frozenset({"Div", "Mod"})

#: smallest value of types that the processor divides; narrower types are divided as int32
_SMALLEST: Final = {INT32: -(2**31), INT64: -(2**63)}

#: types to which a cast may convert a nonzero size to zero
_NARROW: Final = frozenset({INT8, UINT8, INT16, UINT16})

#: magnitude below which every integer type represents a number
_EVERYWHERE: Final = 128

#: operators whose results are sizes, which are never negative
_SIZES: Final = frozenset({"Shape", "Size"})

_CASTING: Final = frozenset({"Cast", "CastLike"})
#: operators that do not change the values of their first operand; casts keep only sizes and small numbers
_PASSING: Final = frozenset({"Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze"})


def traps(model: onnx.ModelProto, types: Mapping[str, int]) -> bool:
    """Return True if a division of the main graph or of a nested graph may end the process."""
    divisions = _Divisions(model, types, shapes_in(model))
    return bool(divisions.found) or divisions.by_zero is not None


def legalize_division(
    model: onnx.ModelProto, types: Mapping[str, int], shapes: ShapesInSets
) -> dict[str, Added]:
    """Rewrite the integer divisions that may end the process; changes `model` in place.

    The model has no functions with such nodes. Returns the added values. Raises CompileError if a constant
    divisor contains a zero.
    """
    _name_divisions(model, types)
    divisions = _Divisions(model, types, shapes)
    if divisions.by_zero is not None:
        raise refused_operand(divisions.by_zero, "an integer division by zero", "a divisor without zeros")
    added: dict[str, Added] = {}
    if not divisions.found:
        return added
    fresh, version = FreshNames(model.graph), standard_version(model)

    def guarded(node: onnx.NodeProto) -> list[onnx.NodeProto]:
        guard = divisions.found.get(_key(node))
        return [node] if guard is None else _guarded(node, guard, GuardNodes(fresh, added, version))

    rewrite_nodes(model.graph, guarded)
    return added


def _name_divisions(model: onnx.ModelProto, types: Mapping[str, int]) -> None:
    """Name integer divisions after their results, so that errors of the engine identify the division."""
    taken = {node.name for node in all_nodes(model.graph.node)}
    for node in find_nodes(model.graph.node, DIVISIONS):
        key = next(filter(None, node.output), "")
        kinds = {types[name] for name in (*node.input, *node.output) if name in types}
        if not node.name and key not in taken and kinds and not kinds & FLOATS:
            node.name = key


def _key(node: onnx.NodeProto) -> tuple[str, ...]:
    return (node.op_type, *node.input, *node.output)


@dataclass(frozen=True, slots=True)
class _Guard:
    """The divisors that a division needs a guard against, and the element type of its operands."""

    elem_type: int
    zero: bool
    minus_one: bool


class _Divisions:
    def __init__(self, model: onnx.ModelProto, types: Mapping[str, int], shapes: ShapesInSets) -> None:
        self.found: dict[tuple[str, ...], _Guard] = {}
        self._shapes = shapes
        #: a division by a constant that contains a zero
        self.by_zero: onnx.NodeProto | None = None
        nodes = [node for node in find_nodes(model.graph.node, DIVISIONS) if len(node.input) > 1]
        kinds = [next((types[name] for name in (*n.input, *n.output) if name in types), 0) for n in nodes]
        divisions = [pair for pair in zip(nodes, kinds, strict=True) if pair[1] and pair[1] not in FLOATS]
        if not divisions:
            return
        self.makers = producers(all_nodes(model.graph.node))
        self._constant = constant_reader(model.graph)
        for node, elem_type in divisions:
            divisor = self._constant(node.input[1])
            if divisor is not None and not divisor.all():
                self.by_zero = node
            smallest = _SMALLEST.get(elem_type, 0)
            zero = divisor is None and self._may_hold(node.input[1], 0)
            minus_one = (
                smallest < 0 and self._may_hold(node.input[1], -1) and self._may_hold(node.input[0], smallest)
            )
            if zero or minus_one:
                self.found[_key(node)] = _Guard(elem_type, zero, minus_one)

    def _may_hold(self, name: str, number: int) -> bool:
        maker, is_cast, is_narrow = self.makers.get(name), False, False
        while maker is not None and standard(maker, *_CASTING, *_PASSING) and maker.input:
            is_cast = is_cast or maker.op_type in _CASTING
            is_narrow = (
                is_narrow or maker.op_type == "CastLike" or any(a.i in _NARROW for a in maker.attribute)
            )
            name = maker.input[0]
            maker = self.makers.get(name)
        if maker is not None and standard(maker, *_SIZES):
            known = self._shapes(maker.input[0])
            return number == 0 and (is_narrow or not known or any(0 in shape for shape in known))
        values = self._constant(name)
        if values is None:
            return True
        if is_cast:
            # A cast keeps small numbers, because every type represents them.
            values = np.trunc(values.astype(np.float64))
            return bool(((values == number) | ~(np.abs(values) < _EVERYWHERE)).any())
        return bool((values == number).any())


def _guarded(node: onnx.NodeProto, guard: _Guard, guards: GuardNodes) -> list[onnx.NodeProto]:
    """Create the nodes of a division whose divisor is never 0 or -1."""
    divisor, result, elem_type = node.input[1], node.output[0], guard.elem_type
    add, value = guards.add, guards.value
    division = clone(node)
    if guard.zero:
        title = f"{node.name or result} (integer division by zero)"
        divisor = guards.reject(divisor, elem_type, title, guards.is_zero(divisor))
        replace_input_with(division, 1, divisor)
    if not guard.minus_one:
        return [*guards.nodes, division]
    one = np.ones((), helper.tensor_dtype_to_np_dtype(elem_type))
    # `twice` is 2 for a divisor of -1, else 0. It is computed, because old sets have no Where for integers.
    minus_one = guards.constant(result, -one)
    is_negative = add("Equal", [divisor, minus_one], value(divisor, "is_minus_one", divisor, BOOL))
    flag = add("Cast", [is_negative], value(divisor, "flag", divisor, elem_type), to=elem_type)
    twice = add("Add", [flag, flag], value(divisor, "twice", divisor, elem_type))
    safe = add("Add", [divisor, twice], value(divisor, "divisor", divisor, elem_type))
    replace_input_with(division, 1, safe)
    guards.nodes.append(division)
    if node.op_type == "Div":
        rename_output(division, 0, value(result, "quotient", result, elem_type))
        sign = add("Sub", [guards.constant(result, one), twice], value(divisor, "sign", divisor, elem_type))
        add("Mul", [division.output[0], sign], result)
    return guards.nodes


@compiler_pass()
def legalize_division_pass(model: Model, _: Context) -> None:
    """Guard integer divisions by 0 and -1, which would end the process."""
    model.rewrite(partial(legalize_division, shapes=shapes_in(*model.specialized)))
