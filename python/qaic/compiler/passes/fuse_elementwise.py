"""Fuses roundings, and the arithmetic between them, into operators of the device.

A pair of casts rounds the result of a float16 or bfloat16 node, and each cast is an operation of the engine.
One ``Elementwise`` replaces the pair, the addition, subtraction, multiplication or division before it, and
rounded operands that nothing else reads. The engine fuses no nodes across roundings, so no result changes.
An operand of rotary embeddings, whose halves are exchanged and the first of them negated, is read in place.

Programs without other operators of the device do not change, because any engine can run them.
"""

from dataclasses import dataclass
from typing import Final

import onnx

from qaic.compiler.ir.constants.in_graph import constant_reader
from qaic.compiler.ir.elem_types import FLOAT
from qaic.compiler.ir.graph_walk import DEVICE_DOMAIN, attribute_of, behind, producers, standard, uses
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.compiler.ir.precision import BIAS_TAKERS, FLOAT_FORMATS, UNROUNDED, cast_target, widens

ELEMENTWISE: Final = "Elementwise"
#: operator -> its step
_ARITHMETIC: Final = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div"}
_READ: Final = "read"
_ROTATE: Final = "rotate"
_ROUND: Final = "round"
#: most operands of a fused operator
_MOST_OPERANDS: Final = 8


@dataclass(frozen=True, slots=True)
class _Expression:
    """Rounded arithmetic in postfix notation; each ``read`` or ``rotate`` takes the next operand."""

    operands: tuple[str, ...]
    steps: tuple[str, ...]
    #: name of the node that computes the last step; empty for a rounding alone
    name: str = ""


@compiler_pass(lambda context: context.options.stored_weights)
def fuse_elementwise_pass(model: Model, _: Context) -> None:
    """Replace roundings and the arithmetic between them by one operator of the device."""
    if model.own_operators:
        _Fusion(model).run()


class _Fusion:
    def __init__(self, model: Model) -> None:
        self.model = model
        self.graph = model.proto.graph
        self.makers = producers(self.graph.node)
        self.counts = uses(self.graph)
        self.types = model.facts.types
        self.shapes = model.facts.shapes
        self.constant = constant_reader(self.graph)
        self.constants = self._constants()
        #: rounded value and its format -> expression that computes the value
        self.found: dict[tuple[str, int], _Expression] = {}

    def run(self) -> None:
        """Rewrite all roundings; nodes whose results are no longer read are removed."""
        nodes = [self._fused(node) for node in self.graph.node]
        if self.found:
            self.model.set_device_nodes(nodes, [ELEMENTWISE])

    def _constants(self) -> set[str]:
        """Collect the values that the engine computes when it loads a program."""
        found = self.model.constants()
        for node in self.graph.node:
            if node.input and found.issuperset(node.input):
                found.update(node.output)
        return found

    def _fused(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """Return the operator for the second cast of a rounding; return other nodes unchanged."""
        narrow = self.makers.get(node.input[0]) if widens(node) else None
        rounding = 0 if narrow is None else cast_target(narrow)
        if narrow is None or rounding not in FLOAT_FORMATS:
            return node
        source, result = narrow.input[0], node.output[0]
        if source in self.constants or not self._is_float32(source):
            return node
        expression = self._arithmetic(source, result, rounding)
        self.found[result, rounding] = expression
        return onnx.helper.make_node(
            ELEMENTWISE,
            expression.operands,
            [result],
            name=expression.name,
            domain=DEVICE_DOMAIN,
            steps=" ".join(expression.steps),
            rounding=rounding,
        )

    def _arithmetic(self, source: str, result: str, rounding: int) -> _Expression:
        """Return the expression of `result`, which is `source` after rounding."""
        maker = self.makers.get(source)
        if (
            maker is None
            or not standard(maker, *_ARITHMETIC)
            or maker.attribute
            or self.counts[source] != 1
            # Operands of other nodes may be unrounded, so the engine may fuse these nodes.
            or not source.startswith(f"{result}{UNROUNDED}")
            or any(map(self._is_merged, maker.input))
        ):
            return _Expression((source,), (_READ, _ROUND))
        first, second = (self._operand(name, rounding) for name in maker.input)
        if len(first.operands) + len(second.operands) > _MOST_OPERANDS:
            first, second = map(_read, maker.input)
        steps = (*first.steps, *second.steps, _ARITHMETIC[maker.op_type])
        return _Expression(first.operands + second.operands, steps, maker.name)

    def _operand(self, name: str, rounding: int) -> _Expression:
        """Return the expression of an operand if nothing else reads the operand; else read its value."""
        if self.counts[name] != 1:
            return _read(name)
        source = self._rotated(name)
        return _Expression((source,), (_ROTATE,)) if source else self.found.get((name, rounding), _read(name))

    def _rotated(self, name: str) -> str:
        """Return the value whose halves `name` has exchanged, the first of them negated; "" for others."""
        joined = self._maker(name, "Concat")
        negated = None if joined is None else self._maker(joined.input[0], "Neg")
        if joined is None or negated is None or len(joined.input) != 2 or not self._is_last(joined, name):
            return ""
        first, second = negated.input[0], joined.input[1]
        source, start = self._cut(first)
        half = self._width(first)
        are_halves = half > 0 and self._width(source) == 2 * half and self._width(second) == half
        return source if are_halves and start == half and self._cut(second) == (source, 0) else ""

    def _cut(self, name: str) -> tuple[str, int]:
        """Return the value of which `name` is a part along the last axis, and its start; -1 for others."""
        cut = self._maker(name, "Slice", "Split")
        if cut is None:
            return name, -1
        source = cut.input[0]
        if cut.op_type == "Split":
            start = 0 if name == cut.output[0] else self._width(cut.output[0])
            return source, start if len(cut.output) == 2 and self._is_last(cut, name) else -1
        found = [self.constant(bound) for bound in cut.input[1:]]
        numbers = [int(array.item()) for array in found if array is not None and array.size == 1]
        width, last = self._width(source), len(self._shape(source)) - 1
        if len(numbers) != len(found) or len(numbers) < 3 or numbers[3:] not in ([], [1]) or width < 0:
            return source, -1
        start, stop, axis = numbers[:3]
        return source, slice(start, stop).indices(width)[0] if axis in {-1, last} else -1

    def _maker(self, name: str, *op_types: str) -> onnx.NodeProto | None:
        """Return the node that computes a value if it has one of the kinds."""
        maker = self.makers.get(name)
        return maker if maker is not None and standard(maker, *op_types) else None

    def _shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a value, which casts do not change; () if it is unknown."""
        return self.shapes.get(behind(name, self.makers, "Cast"), ())

    def _width(self, name: str) -> int:
        """Return the size of the last axis of a value; -1 if it is unknown."""
        return self._shape(name)[-1] if self._shape(name) else -1

    def _is_last(self, node: onnx.NodeProto, name: str) -> bool:
        """Return True if the axis of a node is the last one of its result."""
        return attribute_of(node, "axis", 0) in {-1, len(self._shape(name)) - 1}

    def _is_float32(self, name: str) -> bool:
        """Return True if a value is float32; values in expanded functions have the type of an operand."""
        maker = self.makers.get(name)
        operands = maker.input if maker is not None and standard(maker, *_ARITHMETIC) else ()
        return any(self.types.get(one) == FLOAT for one in (name, *operands))

    def _is_merged(self, name: str) -> bool:
        """Return True if the engine may merge the node of a value with a bias or a scale after it."""
        maker = self.makers.get(name)
        if maker is None:
            return False
        is_scaled = standard(maker, "Cast") and self.types.get(maker.input[0]) not in FLOAT_FORMATS
        return is_scaled or standard(maker, *BIAS_TAKERS)


def _read(name: str) -> _Expression:
    return _Expression((name,), (_READ,))
