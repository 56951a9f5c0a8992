"""Rounding to MXINT8 inside a graph, and the size of what is stored in it.

The operators do what storing and reading would, bit for bit, and nothing depends on how the engine rounds a
division or a logarithm: the power of two below a magnitude comes from exact double arithmetic, and a float32
multiplied or divided by a power of two is exact. Blocks of 32 lie along the last dimension, the last one
filled up with zeros. A block with a NaN or an infinity becomes NaN as a whole.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from qaic.compiler.diagnostics.compile_error import refuse
from qaic.compiler.ir.elem_types import DOUBLE, FLOAT
from qaic.compiler.ir.graph_edits import append_nodes
from qaic.compiler.ir.graph_walk import FreshNames

#: elements that share a scale
BLOCK: Final = 32
#: bytes of a block: one for the scale, one for each element
BLOCK_BYTES: Final = BLOCK + 1

#: first operator set with the forms of operators used here
_MINIMUM_OPSET: Final = 13
#: first operator set in which ReduceMax has its axes as an input
_AXES_INPUT_OPSET: Final = 18

#: multiplying by 2**52 + 1 separates the highest bit of a double from the others
_SPLIT: Final = 2.0**52 + 1
_HALF_ULP: Final = 2.0**-53
_SMALLEST_SCALE: Final = 2.0**-127
_LARGEST: Final = 127.0
_STEPS: Final = 64.0


def packed_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Shape of the raw blocks of a tensor: the last dimension becomes a count of bytes.

    The tensor has at least one dimension.
    """
    return (*shape[:-1], -(-shape[-1] // BLOCK) * BLOCK_BYTES)


def append_mxint8_rounding(
    graph: onnx.GraphProto,
    name: str,
    *,
    opset: int,
    shape: Sequence[int] | None = None,
    fresh: FreshNames | None = None,
) -> str:
    """Append nodes that round a float32 tensor to MXINT8.

    `shape` has -1 for dimensions that differ between sets of shapes; None when nothing is known. `fresh` is
    made from `graph` when None. Returns the rounded tensor, float32, of the same shape. Raises CompileError
    if the operator set is too old.
    """
    parts = _Builder(graph, name, opset, shape, fresh)
    if parts.is_empty():
        return name
    blocks = parts.to_blocks(name)
    elements, scale, poison = parts.encode(blocks)
    values = parts.node("Mul", [elements, parts.node("Mul", [scale, parts.number(1 / _STEPS)])])
    return parts.from_blocks(parts.node("Add", [values, poison]), like=name)


class _Builder:
    """Appends nodes to a graph for one of its tensors."""

    def __init__(
        self,
        graph: onnx.GraphProto,
        base: str,
        opset: int,
        shape: Sequence[int] | None,
        fresh: FreshNames | None,
    ) -> None:
        if opset < _MINIMUM_OPSET:
            raise refuse(
                f"MXINT8 for tensor {base!r}",
                code="unsupported_opset",
                found=f"operator set {opset}",
                expected=f"at least {_MINIMUM_OPSET}",
                fix="export the model with a newer operator set, or convert it with onnx.version_converter",
                context={"tensor": base, "opset": opset},
            )
        self.graph = graph
        self.base = base
        self.opset = opset
        self.shape = None if shape is None else tuple(shape)
        self.fresh = FreshNames(graph) if fresh is None else fresh

    def is_empty(self) -> bool:
        return self.shape is not None and 0 in self.shape

    def node(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        output = self.fresh.make(self.base, "mxint8")
        append_nodes(self.graph, [helper.make_node(op_type, list(inputs), [output], **attributes)])
        return output

    def constant(self, values: npt.NDArray[np.generic]) -> str:
        return self.node("Constant", [], value=numpy_helper.from_array(values))

    def number(self, value: float, dtype: type[np.floating] = np.float32) -> str:
        return self.constant(np.array(value, dtype))

    def ints(self, values: Sequence[int]) -> str:
        return self.constant(np.array(values, np.int64))

    def cast(self, name: str, elem_type: int) -> str:
        return self.node("Cast", [name], to=elem_type)

    @property
    def last(self) -> int:
        """Last dimension, -1 when it is not known; a scalar is one element."""
        if self.shape is None:
            return -1
        return self.shape[-1] if self.shape else 1

    def block_shape(self, name: str) -> str:
        """Make the shape of `name` with its last dimension split into blocks."""
        if self.shape is not None:
            # 0 keeps a dimension; if the number of blocks is known, -1 may stand for another one.
            count = -(-self.last // BLOCK) if self.last >= 0 else -1
            return self.ints([*([0] * (len(self.shape) - 1)), count, BLOCK])
        return self.node("Concat", [self._leading(name), self.ints([-1, BLOCK])], axis=0)

    def _leading(self, name: str) -> str:
        """Compute all dimensions of `name` but the last."""
        return self.node("Slice", [self.node("Shape", [name]), self.ints([0]), self.ints([-1])])

    def to_blocks(self, name: str) -> str:
        """Give `name` one more dimension, the last one being a block, filled up with zeros."""
        if self.shape == ():
            name = self.node("Reshape", [name, self.ints([1])])
        missing = -self.last % BLOCK if self.last >= 0 else None
        if missing is None:
            last = self.node("Slice", [self.node("Shape", [name]), self.ints([-1]), self.ints([2**31])])
            # Mod takes the sign of the divisor.
            lacking = self.node("Mod", [self.node("Neg", [last]), self.ints([BLOCK])])
            zeros_shape = self.node("Concat", [self._leading(name), lacking], axis=0)
            name = self._with_zeros(name, zeros_shape)
        elif missing:
            zeros_shape = self.node("Concat", [self._leading(name), self.ints([missing])], axis=0)
            name = self._with_zeros(name, zeros_shape)
        return self.node("Reshape", [name, self.block_shape(name)])

    def _with_zeros(self, name: str, zeros_shape: str) -> str:
        zeros = self.node("Expand", [self.number(0), zeros_shape])
        return self.node("Concat", [name, zeros], axis=-1)

    def encode(self, blocks: str) -> tuple[str, str, str]:
        """Compute the elements in steps of 1/64, the scale of each block, and 0 or NaN for each block."""
        magnitude = self.cast(self._block_maximum(self.node("Abs", [blocks])), DOUBLE)
        # A finite number times zero is zero; anything else is NaN, and so is every sum with it.
        nothing = self.node("Mul", [blocks, self.number(0)])
        poison = self.node("ReduceSum", [nothing, self.ints([-1])], keepdims=1)
        split = self.node("Mul", [magnitude, self.number(_SPLIT, np.float64)])
        # The engine takes the factor 1 - 2**-53 for 1 and would remove the product, so subtract.
        below = self.node("Sub", [split, self.node("Mul", [split, self.number(_HALF_ULP, np.float64)])])
        power = self.node("Abs", [self.node("Sub", [split, below])])
        floor = self.number(_SMALLEST_SCALE, np.float64)
        scale = self.cast(self.node("Max", [power, floor]), FLOAT)
        scaled = self.node("Mul", [self.node("Div", [blocks, scale]), self.number(_STEPS)])
        rounded = self.node("Round", [scaled])
        return (self.node("Clip", [rounded, self.number(-_LARGEST), self.number(_LARGEST)]), scale, poison)

    def _block_maximum(self, blocks: str) -> str:
        if self.opset >= _AXES_INPUT_OPSET:
            return self.node("ReduceMax", [blocks, self.ints([-1])], keepdims=1)
        return self.node("ReduceMax", [blocks], axes=[-1], keepdims=1)

    def merge_blocks(self, blocks: str, *, like: str) -> str:
        """Join the blocks along the last dimension of `like`."""
        if self.shape is not None:
            rank = len(self.shape)
            size = -(-self.last // BLOCK) * BLOCK if self.last >= 0 else -1
            return self.node("Reshape", [blocks, self.ints([*([0] * (rank - 1)), size])])
        target = self.node("Concat", [self._leading(like), self.ints([-1])], axis=0)
        return self.node("Reshape", [blocks, target])

    def from_blocks(self, blocks: str, *, like: str) -> str:
        """Undo `to_blocks`."""
        if self.shape == ():
            first = self.node("Reshape", [blocks, self.ints([BLOCK])])
            return self.node("Gather", [first, self.constant(np.array(0, np.int64))])
        merged = self.merge_blocks(blocks, like=like)
        if self.last >= 0 and self.last % BLOCK == 0:
            return merged
        if self.last >= 0:
            ends = self.ints([self.last])
        else:
            ends = self.node("Slice", [self.node("Shape", [like]), self.ints([-1]), self.ints([2**31])])
        return self.node("Slice", [merged, self.ints([0]), ends, self.ints([-1])])
