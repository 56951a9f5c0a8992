"""Lets products read packed weights of four or eight bits in the container.

The engine's ``MatMulNBits`` copies its weights when a program is loaded, and decodes those of eight bits in
each inference. Its rows are those that the kernels of the device read; scales and zero points go behind them.
"""

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx

from qaic.compiler.ir.constants.propagation import ConstantReader, read_array
from qaic.compiler.ir.constants.stored_rows import TILE_ROWS, TILES, UNIT, as_tiles, tiles
from qaic.compiler.ir.constants.weights import (
    BlockFormat,
    ComputedSource,
    StoredLayout,
    TensorSource,
    Weight,
    read_all,
)
from qaic.compiler.ir.context import Context, Skip, compiler_pass
from qaic.compiler.ir.elem_types import BFLOAT16, FLOAT, FLOAT16, UINT8
from qaic.compiler.ir.graph_walk import producers, uses
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.precision_ops import attribute_of, behind
from qaic.compiler.passes import store_weights

_PACKED_PRODUCT: Final = "MatMulNBits"
_ENGINE_DOMAIN: Final = "com.microsoft"
#: bits -> form of the rows, and the default zero point
_FORMS: Final = {4: ("uint4", 8), 8: ("int8", 128)}


def _packed(
    codes: TensorSource, bits: int, scales: Weight, zeros: Weight | None, shape: tuple[int, int]
) -> TensorSource:
    """Put scales and zero points behind tiles of packed unsigned numbers; those of eight bits become signed.

    `shape` is the number of rows, and of groups in each. A group has a scale, a float of any type, and a zero
    point, which is packed like the numbers.
    """

    def chunks() -> Iterator[bytes | bytearray | memoryview]:
        for piece in codes.chunks():
            yield (np.frombuffer(piece, np.uint8) ^ 0x80).tobytes() if bits == 8 else piece
        for numbers in (read_array(scales).astype("<f4"), _zero_points(bits, zeros, shape)):
            yield tiles(numbers.reshape(shape)).tobytes()

    rows = -(-shape[0] // TILE_ROWS) * TILE_ROWS
    return ComputedSource(codes.nbytes + 5 * rows * shape[1], chunks)


def _zero_points(bits: int, zeros: Weight | None, shape: tuple[int, int]) -> npt.NDArray[np.int8]:
    offset = 128 if bits == 8 else 0
    if zeros is None:
        return np.full(shape, _FORMS[bits][1] - offset, np.int8)
    held = np.frombuffer(read_all(zeros.source), np.uint8).reshape(shape[0], -1)
    if bits == 4:
        held = np.stack([held & 15, held >> 4], axis=-1).reshape(shape[0], -1)[:, : shape[1]]
    return (held.astype(np.int16) - offset).astype(np.int8)


@compiler_pass(lambda context: context.options.stored_weights)
def store_packed_weights_pass(model: Model, context: Context) -> bool:
    """Let products read packed weights in their stored form."""
    finder = _Finder(model, context.skip)
    graph = model.proto.graph
    found = {id(node): weight for node in graph.node if (weight := finder.stored(node)) is not None}
    if sum(math.prod(weight.dims) for weight in found.values()) < store_weights.LEAST_IN_PROGRAM:
        for node in graph.node:
            if id(node) in found:
                context.skip("the weights of the program are small", node)
        return False
    for weight in found.values():
        model.weights[weight.name] = weight
    nodes = [_product(node, found[id(node)]) if id(node) in found else node for node in graph.node]
    model.set_device_nodes(nodes, [store_weights.PRODUCT])
    counts = uses(graph)
    for name in finder.copied:
        # Scales and zero points are now stored after the rows.
        if not counts[name]:
            model.weights.pop(name, None)
    return True


class _Finder:
    def __init__(self, model: Model, skip: Skip) -> None:
        self.skip = skip
        self.constants = ConstantReader(model.proto.graph, model.weights)
        self.makers = producers(model.proto.graph.node)
        self.counts = uses(model.proto.graph)
        self.types = model.facts.types
        #: constants whose numbers are stored with those of a weight
        self.copied: set[str] = set()

    def stored(self, node: onnx.NodeProto) -> Weight | None:
        """Describe the weight of a product as the kernels read it; None where they cannot."""
        if node.op_type != _PACKED_PRODUCT or node.domain != _ENGINE_DOMAIN:
            return None
        rows, length = attribute_of(node, "N", 0), attribute_of(node, "K", 0)
        bits, group = attribute_of(node, "bits", 4), attribute_of(node, "block_size", 0)
        is_known = bits in _FORMS and group >= UNIT and group & (group - 1) == 0
        if not is_known or length % group or rows * length < store_weights.LEAST_ELEMENTS:
            self.skip("the matrix or its groups are small, or its number of bits has no stored form", node)
            return None
        given = [*node.input, "", "", ""]
        # The engine computes products with an order of groups or a computed bias.
        if given[4] or given[5] or self.types.get(node.input[0]) != FLOAT:
            self.skip("the groups have an order, or a bias or other type is used", node)
            return None
        groups = length // group
        codes, scales = self._constant(given[1]), self._constant(given[2])
        zeros = self._constant(given[3]) if given[3] else None
        if codes is None or scales is None or (given[3] and zeros is None):
            self.skip("the weight, its scales or its zero points are not constants", node)
            return None
        fits = (
            codes.elem_type == UINT8
            and codes.source.nbytes == rows * length * bits // 8
            and self.counts[codes.name] == 1
            and scales.elem_type in {FLOAT, FLOAT16, BFLOAT16}
            and math.prod(scales.dims) == rows * groups
        )
        if not fits or (
            zeros is not None
            and (zeros.elem_type != UINT8 or zeros.source.nbytes != rows * -(-groups * bits // 8))
        ):
            self.skip("the weight has other readers, or its constants other types or sizes", node)
            return None
        self.copied |= {constant.name for constant in (scales, zeros) if constant is not None}
        source = _packed(as_tiles(codes.source, rows, UNIT * bits // 8), bits, scales, zeros, (rows, groups))
        blocks, layout = BlockFormat(_FORMS[bits][0], 1), StoredLayout(TILES, group)
        return Weight(codes.name, UINT8, (rows, length), source, blocks, layout)

    def _constant(self, name: str) -> Weight | None:
        """Find the constant behind casts that widen it."""
        return self.constants.describe(behind(name, self.makers, "Cast", "Identity"))


def _product(node: onnx.NodeProto, weight: Weight) -> onnx.NodeProto:
    attributes = {"weight": weight.name, "rounding": FLOAT}
    return store_weights.stored_node(store_weights.PRODUCT, [node.input[0]], node.output, node, **attributes)
