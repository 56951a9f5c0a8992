"""Rounding to MXINT8 inside a graph, for values between partitions, and the size of MXINT8 blocks.

The operators compute the same bits as storing and reading a value. Results do not depend on how the engine
rounds divisions or logarithms: the power of two below a magnitude is computed in exact double arithmetic, and
scaling a float32 by a power of two is exact. Blocks have 32 elements along the last dimension, and the last
block is padded with zeros. All elements of a block that contains a NaN or an infinity become NaN.

The CPU device runs the whole graph. A value that a later partition reads is therefore rounded before its
first reader in that partition. Partitions that share each node exchange values that only the card's compiler
knows. For such partitions, the option is recorded and has no other effect.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import onnx

from qaic.compiler.diagnostics.messages import refuse, warn
from qaic.compiler.ir.constants.in_graph import constant_values
from qaic.compiler.ir.elem_types import DOUBLE, FLOAT
from qaic.compiler.ir.graph_edits import NodeWriter, append_nodes, replace_all_uses_with, set_nodes
from qaic.compiler.ir.graph_walk import FreshNames, node_key, standard, standard_version, values_read_by
from qaic.compiler.ir.model import Context, Model, compiler_pass

#: number of elements that share a scale
BLOCK: Final = 32
#: number of bytes of a block: one for the scale, and one for each element
BLOCK_BYTES: Final = BLOCK + 1

#: first operator set that supports the added nodes
_MINIMUM_OPSET: Final = 13

#: factor that separates the highest bit of a double from the others
_SPLIT: Final = 2.0**52 + 1
_HALF_ULP: Final = 2.0**-53
_SMALLEST_SCALE: Final = 2.0**-127
_LARGEST: Final = 127.0
_STEPS: Final = 64.0


def packed_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the raw blocks of a tensor; its last dimension is a number of bytes.

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

    `shape` contains -1 for dimensions that differ between sets of shapes; None if it is unknown. `fresh` is
    created from `graph` if None. Returns the name of the rounded float32 tensor. Raises CompileError if the
    operator set is too old.
    """
    if opset < _MINIMUM_OPSET:
        raise refuse(
            f"MXINT8 for tensor {name!r}",
            code="unsupported_opset",
            found=f"operator set {opset}",
            expected=f"at least {_MINIMUM_OPSET}",
            fix="export the model with a newer operator set, or convert it with onnx.version_converter",
            context={"tensor": name, "opset": opset},
        )
    if shape is not None and 0 in shape:
        return name
    parts = _Blocks(fresh or FreshNames(graph), opset, name, "mxint8")
    parts.shape = None if shape is None else tuple(shape)
    elements, scale, poison = parts.encode(parts.to_blocks(name))
    values = parts.add("Mul", elements, parts.add("Mul", scale, np.float32(1 / _STEPS)))
    rounded = parts.from_blocks(parts.add("Add", values, poison), like=name)
    append_nodes(graph, parts.nodes)
    return rounded


class _Blocks(NodeWriter):
    """Writes the nodes that round one tensor."""

    #: dims, -1 if they differ between sets of shapes; None if unknown
    shape: tuple[int, ...] | None = None

    @property
    def last(self) -> int:
        """Size of the last dimension; -1 if unknown, 1 for a scalar."""
        return -1 if self.shape is None else self.shape[-1] if self.shape else 1

    def _leading(self, name: str) -> str:
        """Compute all dimensions of `name` except the last."""
        return self.add("Slice", self.add("Shape", name), [0], [-1])

    def _joined(self, blocks: str, name: str, size: int, *block: int) -> str:
        """Reshape values to the dims of `name`, with the last replaced by `size` and the dims of `block`."""
        if self.shape is not None:
            # 0 keeps a dimension, and -1 derives one.
            return self.add("Reshape", blocks, [*[0] * (len(self.shape) - 1), size, *block])
        target = self.add("Concat", self._leading(name), [-1, *block], axis=0)
        return self.add("Reshape", blocks, target)

    def to_blocks(self, name: str) -> str:
        """Reshape `name` to blocks, padded with zeros, which become a new last dimension."""
        if self.shape == ():
            name = self.add("Reshape", name, [1])
        if self.last < 0:
            last = self.add("Slice", self.add("Shape", name), [-1], [2**31])
            # The result of Mod has the sign of the divisor.
            lacking = self.add("Mod", self.add("Neg", last), [BLOCK])
            name = self._with_zeros(name, self.add("Concat", self._leading(name), lacking, axis=0))
        elif self.last % BLOCK:
            name = self._with_zeros(
                name, self.add("Concat", self._leading(name), [-self.last % BLOCK], axis=0)
            )
        return self._joined(name, name, -(-self.last // BLOCK) if self.last >= 0 else -1, BLOCK)

    def _with_zeros(self, name: str, zeros_shape: str) -> str:
        return self.add("Concat", name, self.add("Expand", np.float32(0), zeros_shape), axis=-1)

    def encode(self, blocks: str) -> tuple[str, str, str]:
        """Compute the elements in steps of 1/64, and for each block its scale and a 0 or NaN to add."""
        largest = self.reduced("ReduceMax", self.add("Abs", blocks), -1, keepdims=1)
        magnitude = self.add("Cast", largest, to=DOUBLE)
        # The product of zero and a finite value is zero; other products and sums with them are NaN.
        nothing = self.add("Mul", blocks, np.float32(0))
        poison = self.add("ReduceSum", nothing, [-1], keepdims=1)
        split = self.add("Mul", magnitude, np.float64(_SPLIT))
        # The engine treats the factor 1 - 2**-53 as 1 and would remove a product with it.
        below = self.add("Sub", split, self.add("Mul", split, np.float64(_HALF_ULP)))
        power = self.add("Abs", self.add("Sub", split, below))
        scale = self.add("Cast", self.add("Max", power, np.float64(_SMALLEST_SCALE)), to=FLOAT)
        scaled = self.add("Mul", self.add("Div", blocks, scale), np.float32(_STEPS))
        rounded = self.add("Round", scaled)
        return self.add("Clip", rounded, np.float32(-_LARGEST), np.float32(_LARGEST)), scale, poison

    def from_blocks(self, blocks: str, *, like: str) -> str:
        """Undo `to_blocks`."""
        if self.shape == ():
            return self.add("Gather", self.add("Reshape", blocks, [BLOCK]), 0)
        merged = self._joined(blocks, like, -(-self.last // BLOCK) * BLOCK if self.last >= 0 else -1)
        if self.last >= 0 and self.last % BLOCK == 0:
            return merged
        if self.last >= 0:
            ends = self.constant([self.last])
        else:
            ends = self.add("Slice", self.add("Shape", like), [-1], [2**31])
        return self.add("Slice", merged, [0], ends, [-1])


@compiler_pass(lambda context: context.options.allow_mxint8_mdp_io)
def round_partition_traffic_pass(model: Model, context: Context) -> None:
    """Round values that one partition sends to the next to MXINT8.

    The pass runs before floats are rounded to the formats of their nodes.
    """
    config = context.options.mdp_load_partition_config
    listed = [] if config is None else [set(partition.nodes or ()) for partition in config.partitions]
    if sum(map(bool, listed)) < 2:
        warn(
            "partitions.no_traffic",
            "allow_mxint8_mdp_io: no value passes between partitions, because fewer than two have a nodeList",
        )
        return
    _Traffic(model, listed).run()


class _Traffic:
    """Rounds the values between partitions of the main graph, in the order of its nodes."""

    def __init__(self, model: Model, listed: list[set[str]]) -> None:
        graph = model.proto.graph
        self.graph = graph
        self.facts = model.facts
        self.numbers = {name: number for number, names in enumerate(listed) for name in names}
        self.constants = constant_values(graph, model.weights)
        self.fresh = FreshNames(graph)
        self.opset = standard_version(model.proto)
        #: value -> partition of its node
        self.places: dict[str, int] = {}
        #: values that are integers on the card and need no rounding
        self.integers: set[str] = set()
        self.rounded: dict[str, str] = {}

    def run(self) -> None:
        scratch = type(self.graph)()
        for node in list(self.graph.node):
            place = self._place(node)
            if place is not None:
                for name in sorted(self._crossing(node, place)):
                    if name not in self.rounded:
                        self.rounded[name] = self._round(scratch, name)
                    replace_all_uses_with([node], {name: self.rounded[name]})
                self.places.update(dict.fromkeys(node.output, place))
            if standard(node, "DequantizeLinear"):
                self.integers.update(node.output)
            append_nodes(scratch, [node])
        if self.rounded:
            set_nodes(self.graph, scratch.node)

    def _place(self, node: onnx.NodeProto) -> int | None:
        """Return the partition of a node, or the last partition that it reads from if it has none."""
        key = node_key(node)
        for name in (str(node.name), key, self.facts.original.get(key, key)):
            if name in self.numbers:
                return self.numbers[name]
        return max((self.places[name] for name in values_read_by(node) if name in self.places), default=None)

    def _crossing(self, node: onnx.NodeProto, place: int) -> Iterable[str]:
        """Find the floats that a node reads from another partition."""
        return {
            name
            for name in values_read_by(node)
            if self.places.get(name, place) != place
            and self.facts.types.get(name) == FLOAT
            and name not in self.constants
            and name not in self.integers
        }

    def _round(self, scratch: onnx.GraphProto, name: str) -> str:
        shape = self.facts.shapes.get(name)
        made = append_mxint8_rounding(scratch, name, opset=self.opset, shape=shape, fresh=self.fresh)
        self.facts.types[made] = FLOAT
        if shape is not None:
            self.facts.shapes[made] = shape
        if name in self.facts.narrow:
            self.facts.narrow[made] = self.facts.narrow[name]
        return made
