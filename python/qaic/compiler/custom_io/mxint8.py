"""MXINT8 blocks in a graph: a scale byte and 32 element bytes for every started 32 values.

A block stands for element / 64 x 2^(scale - 127); scale 255 is NaN (compile-options §5.3, §5.4). All steps
are exact in float32 but the one rounding of an element, half to even.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from qaic.compiler.custom_io.conversion import Converter

#: first operator set with the operators used here
MXINT8_OPERATORS: Final = 13

_BLOCK: Final = 32
_BLOCK_BYTES: Final = 1 + _BLOCK

#: exponents of a scale; also its bias
_SMALLEST, _LARGEST, _NAN = -127, 127, 255

_FLOAT, _UINT8, _INT32 = 1, 2, 6

#: operator set from which all reductions take their axes as an input
_AXES_ARE_INPUTS: Final = 18


def block_bytes(columns: int) -> int:
    """Bytes of the blocks of a row of values."""
    return -(-columns // _BLOCK) * _BLOCK_BYTES


class Mxint8Blocks:
    """Nodes between float32 values and their blocks.

    Parameters
    ----------
    build : Converter
        Takes the nodes.
    """

    def __init__(self, build: Converter) -> None:
        self._build = build

    def decode(self, value: str, rank: int, columns: int) -> str:
        """Read the blocks along the last dim of a uint8 tensor; returns `columns` float32 values for them."""
        build = self._build
        blocks = -(-columns // _BLOCK)
        value = build.node("Cast", [self._split(value, rank, blocks, _BLOCK_BYTES)], to=_INT32)
        scale, elements = build.nodes(
            "Split", [value, build.constant("parts", [1, _BLOCK], "int64")], 2, axis=-1
        )
        # Bytes above 127 are negative numbers.
        negative = build.node("Greater", [elements, build.constant("byte_limit", 127, "int32")])
        wrapped = build.node("Sub", [elements, build.constant("byte_values", 256, "int32")])
        elements = build.node("Cast", [build.node("Where", [negative, wrapped, elements])], to=_FLOAT)
        elements = build.node("Mul", [elements, build.constant("step", 2.0**-6)])
        value = build.node("Mul", [elements, build.node("Gather", [self._powers(), scale])])
        value = self._joined(value, rank, blocks * _BLOCK)
        if columns == blocks * _BLOCK:
            return value
        bounds = [build.constant(what, [at], "int64") for what, at in (("from", 0), ("to", columns))]
        return build.node("Slice", [value, *bounds, build.constant("last_axis", [-1], "int64")])

    def encode(self, value: str, rank: int, columns: int) -> str:
        """Make blocks of a float32 tensor along its last dim, which has `columns` values; returns uint8."""
        build = self._build
        blocks = -(-columns // _BLOCK)
        if columns != blocks * _BLOCK:
            pads = [0] * (2 * rank - 1) + [blocks * _BLOCK - columns]
            value = build.node("Pad", [value, build.constant("padding", pads, "int64")])
        value = self._split(value, rank, blocks, _BLOCK)
        largest = self._reduced("ReduceMax", build.node("Abs", [value]))
        exponent = self._exponent(largest)
        at = build.node("Add", [exponent, build.constant("bias", -_SMALLEST, "int32")])
        scaled = build.node("Div", [value, build.node("Gather", [self._powers(), at])])
        scaled = build.node("Round", [build.node("Mul", [scaled, build.constant("steps", 64.0)])])
        clipped = build.node("Clip", [scaled, *(build.constant("limit", x) for x in (-127.0, 127.0))])
        # NaN and infinity make the whole block NaN: they have no bytes of their own.
        zero = build.constant("nothing", 0.0)
        finite = build.node("Equal", [self._reduced("ReduceSum", build.node("Mul", [value, zero])), zero])
        elements = build.node("Where", [finite, clipped, zero])
        elements = build.node("Cast", [elements], to=_INT32)
        negative = build.node("Less", [elements, build.constant("none", 0, "int32")])
        wrapped = build.node("Add", [elements, build.constant("byte_values", 256, "int32")])
        elements = build.node("Where", [negative, wrapped, elements])
        scale = build.node("Where", [finite, at, build.constant("nan_scale", _NAN, "int32")])
        value = build.node("Concat", [scale, elements], axis=-1)
        value = build.node("Cast", [value], to=_UINT8)
        return self._joined(value, rank, blocks * _BLOCK_BYTES)

    def _exponent(self, largest: str) -> str:
        """Find the exponent of the largest power of two that is not above a value, inside the scale's range.

        The logarithm is off by one at most; comparing with the powers around it makes it exact.
        """
        build = self._build
        usable = [build.constant("limit", 2.0**at) for at in (_SMALLEST, _LARGEST)]
        # Comparing false, NaN takes the first branch and stays inside as well.
        above = build.node("Greater", [largest, usable[0]])
        value = build.node("Where", [above, largest, usable[0]])
        value = build.node("Min", [value, usable[1]])
        guess = build.node("Log", [value])
        guess = build.node("Mul", [guess, build.constant("per_octave", 1.4426950408889634)])
        guess = build.node("Cast", [build.node("Floor", [guess])], to=_INT32)
        limits = [build.constant("limit", at, "int32") for at in (_SMALLEST, _LARGEST)]
        guess = build.node("Clip", [guess, *limits])
        bias = build.constant("bias", -_SMALLEST, "int32")
        up = build.node("Add", [guess, build.constant("bias_and_one", 1 - _SMALLEST, "int32")])
        reached = build.node("GreaterOrEqual", [value, build.node("Gather", [self._powers(), up])])
        missed = build.node(
            "Less", [value, build.node("Gather", [self._powers(), build.node("Add", [guess, bias])])]
        )
        guess = build.node("Add", [guess, build.node("Cast", [reached], to=_INT32)])
        return build.node("Sub", [guess, build.node("Cast", [missed], to=_INT32)])

    def _reduced(self, operator: str, value: str) -> str:
        """Reduce every block to one value."""
        build = self._build
        if operator != "ReduceSum" and build.operators < _AXES_ARE_INPUTS:
            return build.node(operator, [value], axes=[-1], keepdims=1)
        return build.node(operator, [value, build.constant("last_axis", [-1], "int64")], keepdims=1)

    def _powers(self) -> str:
        """Name the table of 2^-127 ... 2^127, infinity and NaN by scale byte."""
        import numpy as np

        table = np.ldexp(np.float64(1), np.arange(_SMALLEST, _LARGEST + 2))
        table[-1] = np.nan
        return self._build.constant("powers", table)

    def _split(self, value: str, rank: int, blocks: int, size: int) -> str:
        """Make blocks of the last dim."""
        shape = [0] * (rank - 1) + [blocks, size]
        return self._build.node("Reshape", [value, self._build.constant("blocks", shape, "int64")])

    def _joined(self, value: str, rank: int, columns: int) -> str:
        """Undo `_split`."""
        shape = [0] * (rank - 1) + [columns]
        return self._build.node("Reshape", [value, self._build.constant("rows", shape, "int64")])
