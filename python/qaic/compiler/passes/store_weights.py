"""Replaces products and gathers by operators of the device that read weights in the container.

The engine copies the weights of products: it packs float32, and it widens and packs float16 and blocks. The
operators of the device refer to a weight by name and read its stored form in the mapped file. They also add
the bias and round the result. These products do not change:

* small products, and all products of a program whose weights fit the caches of a processor
* products that always have many rows of activations, unless their copies need gigabytes, because packed
  weights are faster for them

A mixture of experts gathers the matrices of the chosen experts and multiplies with the copies. One operator
of the device reads each of these matrices once, without a copy.

The engine's ``MatMulNBits`` copies its packed weights when a program is loaded, and decodes 8-bit weights in
each inference. The kernels of the device read the same rows; scales and zero points are stored after them.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from qaic.compiler.ir.constants.in_graph import ConstantReader, read_array
from qaic.compiler.ir.constants.packed import (
    MXFP6,
    MXFP6_OF_FLOAT16,
    PLAIN,
    SIGNED,
    TILE_ROWS,
    TILES,
    UNIT,
    JoinedSource,
    Matrices,
    PackedSource,
    packed,
)
from qaic.compiler.ir.constants.weights import (
    BlockFormat,
    ComputedSource,
    StoredLayout,
    TensorSource,
    Weight,
    read_all,
)
from qaic.compiler.ir.elem_types import BFLOAT16, FLOAT, FLOAT16, INT32, INT64, UINT8, type_name
from qaic.compiler.ir.graph_walk import (
    DEVICE_DOMAIN,
    FreshNames,
    attribute_of,
    behind,
    producers,
    standard,
    usages,
    uses,
)
from qaic.compiler.ir.model import Context, Model, Skip, compiler_pass
from qaic.compiler.ir.precision import cast_target, widens
from qaic.compiler.ir.value_info import collect_shapes
from qaic.compiler.passes.emulation.mxfp6_weights import ENCODING, chooses_matrices, swaps

PRODUCT: Final = "StoredMatMul"
GATHER: Final = "StoredGather"
EXPERTS: Final = "StoredExperts"
#: least number of elements of a matrix that is stored for the device
LEAST_ELEMENTS: Final = 1 << 16
#: least number of elements of a program whose weights do not fit the caches of a processor
LEAST_IN_PROGRAM: Final = 1 << 24
#: least number of elements of a program whose float32 weights are stored; copies of fewer are as fast
LEAST_FLOAT32: Final = 1 << 28
#: number of elements of a program from which copies of its weights take too much memory
MANY_ELEMENTS: Final = 1 << 28
#: most rows of activations for which the time of a product is the time to read its weights
FEW_ROWS: Final = 16

#: element types of stored weights
_FLOATS: Final = frozenset({FLOAT, FLOAT16, BFLOAT16})


@dataclass(frozen=True, slots=True)
class _Use:
    """A node that reads a weight, directly or through nodes that change its type or swap its dims."""

    node: onnx.NodeProto
    weight: Weight
    #: true if the node reads the matrix with its dims swapped
    swapped: bool
    #: value with the indices of the matrices to multiply; empty for a weight of one matrix
    indices: str
    #: position of the weight among the operands
    position: int


@compiler_pass(lambda context: context.options.stored_weights)
def store_weights_pass(model: Model, context: Context) -> None:
    """Replace products and gathers by operators that read large weights in their stored form."""
    if any(math.prod(weight.dims) >= LEAST_ELEMENTS for weight in model.weights.values()):
        _Rewriter(model, context.skip).run()


class _Rewriter:
    def __init__(self, model: Model, skip: Skip) -> None:
        graph = model.proto.graph
        self.model = model
        self.skip = skip
        self.graph = graph
        self.makers = producers(graph.node)
        self.readers = usages(graph.node)
        self.counts = uses(graph)
        self.outputs = {value.name for value in graph.output}
        self.fresh = FreshNames(graph)
        self.constants = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        self.constants |= {weight.name: weight.dims for weight in model.weights.values()}
        #: shapes of values without symbols, in each set of shapes
        self.sizes = list(map(collect_shapes, model.specialized))
        #: replacements of each node, by its identity; empty for a removed node
        self.replaced: dict[int, list[onnx.NodeProto]] = {}
        self.used: set[str] = set()

    def run(self) -> None:
        """Rewrite all suitable nodes."""
        found = [(weight, self._uses(weight)) for weight in self.model.weights.values()]
        candidates = [
            (weight, uses_of)
            for weight, uses_of in found
            # All readers share one layout.
            if uses_of and len({self._is_by_rows(use) for use in uses_of}) == 1
        ]
        total = sum(math.prod(weight.dims) for weight, _ in candidates)
        if total < LEAST_IN_PROGRAM:
            for use in chain.from_iterable(uses_of or () for _, uses_of in candidates):
                self.skip("the weights of the program are small", use.node)
            return
        for weight, uses_of in candidates:
            if uses_of[0].indices:
                # The engine copies one matrix for each index of an inference.
                self._rewrite(weight, uses_of)
                continue
            if weight.elem_type == FLOAT and weight.blocks is None and total < LEAST_FLOAT32:
                reason = "the float32 weights of the program are small"
            elif total >= MANY_ELEMENTS or self._has_few_rows(uses_of):
                self._rewrite(weight, uses_of)
                continue
            else:
                reason = "the product has many rows"
            for use in uses_of:
                self.skip(reason, use.node)
        if self.used:
            nodes = (self.replaced.get(id(node), [node]) for node in self.graph.node)
            self.model.set_device_nodes(chain.from_iterable(nodes), sorted(self.used))

    def _uses(self, weight: Weight) -> list[_Use] | None:
        """Find all readers of a weight; None if a reader needs the weight as a tensor."""
        is_known = weight.elem_type in _FLOATS and len(weight.dims) in {2, 3}
        if not is_known or math.prod(weight.dims) < LEAST_ELEMENTS or weight.layout is not None:
            return None
        if weight.blocks is not None and weight.blocks.encoding != ENCODING:
            return None
        found = []
        has_experts = len(weight.dims) == 3
        pending = [(weight.name, weight.elem_type, False, "")]
        while pending:
            name, elem_type, swapped, indices = pending.pop()
            readers = self.readers.get(name, [])
            # A value that is an output, or that a nested graph reads, has more uses than `readers` contains.
            if len(readers) != self.counts[name]:
                return None
            for node, position in readers:
                if widens(node):
                    pending.append((node.output[0], FLOAT, swapped, indices))
                elif standard(node, "Identity"):
                    pending.append((node.output[0], elem_type, swapped, indices))
                elif standard(node, "Transpose") and swaps(node, len(weight.dims)):
                    pending.append((node.output[0], elem_type, not swapped, indices))
                elif (
                    has_experts and not indices and position == 0 and chooses_matrices(node, self.model.facts)
                ):
                    pending.append((node.output[0], elem_type, swapped, node.input[1]))
                else:
                    use = _Use(node, weight, swapped, indices, position)
                    if elem_type != FLOAT or not self._can_read(use):
                        self.skip("a reader needs a large weight as a tensor", node)
                        return None
                    found.append(use)
        return found

    def _can_read(self, use: _Use) -> bool:
        node, weight, position = use.node, use.weight, use.position
        shapes = self.model.facts.shapes
        # Blocks must be along the dimension that a product sums over.
        axis = len(weight.dims) - (1 if self._is_by_rows(use) else 2)
        if weight.blocks is not None and weight.blocks.axis != axis:
            return False
        if len(weight.dims) == 3:
            return (
                use.indices != ""
                and standard(node, "MatMul")
                and (position == 1 or not self._is_constant(node.input[1]))
                and self._columns(use) % TILE_ROWS == 0
                and len(shapes.get(self._described(node.input[1 - position], shapes), ())) == 3
            )
        if standard(node, "Gather"):
            return (
                position == 0
                and attribute_of(node, "axis", 0) == 0
                and not use.swapped
                and self.model.facts.types.get(node.input[1]) in {INT32, INT64}
            )
        if position != 1 or not standard(node, "MatMul", "Gemm"):
            return False
        if node.op_type == "Gemm":
            factors = {attribute_of(node, name, 1.0) for name in ("alpha", "beta")}
            if factors != {1.0} or attribute_of(node, "transA", 0):
                return False
            if len(node.input) > 2 and node.input[2] and not self._is_bias(node.input[2], self._columns(use)):
                return False
        return True

    def _is_constant(self, name: str) -> bool:
        """Return True if the elements of a value are those of a constant."""
        return behind(name, self.makers, "Cast", "Identity", "Transpose", "Gather") in self.constants

    @staticmethod
    def _is_by_rows(use: _Use) -> bool:
        """Return True if the reader of a weight sums along its rows, or selects rows."""
        if use.node.op_type == "Gather":
            return True
        is_turned = use.node.op_type == "Gemm" and attribute_of(use.node, "transB", 0) == 1
        return use.swapped != (use.position == 0 or is_turned)

    def _columns(self, use: _Use) -> int:
        return use.weight.dims[-2 if self._is_by_rows(use) else -1]

    def _is_bias(self, name: str, columns: int) -> bool:
        """Return True if a value is a constant with one element for each column."""
        return self.constants.get(behind(name, self.makers, "Cast", "Identity")) == (columns,)

    def _has_few_rows(self, uses_of: Sequence[_Use]) -> bool:
        """Return True if a product may have few rows of activations in some set of shapes."""
        if all(use.node.op_type == "Gather" for use in uses_of):
            # The engine gathers rows of a float32 tensor without a copy, but widens other tensors completely.
            weight = uses_of[0].weight
            return weight.elem_type != FLOAT or weight.blocks is not None
        return any(self._few_rows(use.node.input[0]) for use in uses_of if use.node.op_type != "Gather")

    def _few_rows(self, name: str) -> bool:
        name = self._described(name, *self.sizes)
        known = [sizes.get(name) for sizes in self.sizes]
        return not known or any(size is None or math.prod(size[:-1]) <= FEW_ROWS for size in known)

    def _described(self, name: str, *described: Collection[str]) -> str:
        """Return the first value before `name`, through casts, that one of the descriptions contains."""
        while not any(name in names for names in described):
            maker = self.makers.get(name)
            if maker is None or not standard(maker, "Cast"):
                break
            name = maker.input[0]
        return name

    def _fewest(self, indices: str) -> int:
        """Return the smallest number of indices in any set of shapes; 0 if unknown."""
        known = [sizes[indices] for sizes in self.sizes if indices in sizes]
        declared = self.model.facts.shapes[indices]
        return min((dims[0] for dims in (declared, *known) if dims[0] > 0), default=0)

    def _rewrite(self, weight: Weight, uses_of: Sequence[_Use]) -> None:
        moved = not self._is_by_rows(uses_of[0])
        self.model.weights[weight.name] = _stored(weight, moved=moved)
        for use in uses_of:
            if use.node.op_type == "Gather":
                self._gather(use)
            else:
                self._product(use)

    def _wide(self, indices: str) -> tuple[str, list[onnx.NodeProto]]:
        """Return int64 indices, and the node that computes them, if any."""
        if self.model.facts.types[indices] == INT64:
            return indices, []
        wide = self.fresh.make(indices, "int64")
        return wide, [helper.make_node("Cast", [indices], [wide], to=INT64)]

    def _gather(self, use: _Use) -> None:
        node = use.node
        indices, made = self._wide(node.input[1])
        self.used.add(GATHER)
        made.append(stored_node(GATHER, [indices], node.output, use.node, weight=use.weight.name))
        self.replaced[id(node)] = made

    def _product(self, use: _Use) -> None:
        """Replace a product, and the addition of a bias and the rounding that follow it."""
        node = place = use.node
        bias = node.input[2] if len(node.input) > 2 else ""
        result = node.output[0]
        reader = self._only_reader(result)
        if not bias and not use.indices and reader is not None and standard(reader, "Add"):
            other = reader.input[1] if reader.input[0] == result else reader.input[0]
            if other != result and self._is_bias(other, self._columns(use)):
                # The new node replaces the addition, because its bias may be computed after the product.
                self.replaced[id(node)] = []
                bias, result, place = other, reader.output[0], reader
                reader = self._only_reader(result)
        narrow, rounding = "", FLOAT
        if reader is not None and cast_target(reader):
            widened = [other for other, _ in self.readers.get(reader.output[0], []) if widens(other)]
            if widened:
                self.replaced[id(reader)] = self.replaced[id(widened[0])] = []
                narrow, rounding, result = reader.output[0], cast_target(reader), widened[0].output[0]
        operator, operands = PRODUCT, [node.input[0], *([bias] if bias else [])]
        more: dict[str, Any] = {}
        made: list[onnx.NodeProto] = []
        computed = result
        if use.indices:
            indices, made = self._wide(use.indices)
            operator, operands = EXPERTS, [node.input[1 - use.position], indices]
            more = {"experts": use.weight.dims[0], "chosen": self._fewest(use.indices)}
            if use.position == 0:
                # The dims of the other operand and of the result are swapped.
                swapped = self.fresh.make(operands[0], "swapped")
                made.append(helper.make_node("Transpose", operands[:1], [swapped], perm=[0, 2, 1]))
                operands[0], computed = swapped, self.fresh.make(result, "swapped")
        self.used.add(operator)
        more |= {"weight": use.weight.name, "rounding": rounding}
        made.append(stored_node(operator, operands, [computed], node, **more))
        if computed != result:
            made.append(helper.make_node("Transpose", [computed], [result], perm=[0, 2, 1]))
        if narrow and self.counts[narrow] > 1:
            # The product is already rounded, so this cast changes no values.
            made.append(helper.make_node("Cast", [result], [narrow], to=rounding))
        self.replaced[id(place)] = made

    def _only_reader(self, name: str) -> onnx.NodeProto | None:
        readers = self.readers.get(name, [])
        return readers[0][0] if len(readers) == self.counts[name] == 1 else None


def stored_node(
    operator: str, operands: Iterable[str], results: Iterable[str], like: onnx.NodeProto, **attributes: Any
) -> onnx.NodeProto:
    """Create a node of the device with the name of the replaced node."""
    return helper.make_node(
        operator, list(operands), list(results), name=like.name, domain=DEVICE_DOMAIN, **attributes
    )


def _stored(weight: Weight, *, moved: bool) -> Weight:
    """Convert a weight to the layout of the kernels; its columns become rows if `moved`."""
    *matrices, first, second = weight.dims
    count = math.prod(matrices)
    rows, length = (count * second, first) if moved else (count * first, second)
    source, blocks = weight.source, weight.blocks
    if isinstance(source, PackedSource) and source.matrices is not None:
        # Blocks are always stored along the sum.
        code = MXFP6_OF_FLOAT16 if weight.elem_type == FLOAT16 else MXFP6
        source = replace(source, code=code, matrices=replace(source.matrices, layout=TILES))
        blocks = BlockFormat(ENCODING, 1)
    else:
        order = Matrices(count, first, second, moved, TILES)
        source = packed(source, type_name(weight.elem_type), order)
    return replace(weight, dims=(rows, length), source=source, blocks=blocks, layout=StoredLayout(TILES))


_PACKED_PRODUCT: Final = "MatMulNBits"
_ENGINE_DOMAIN: Final = "com.microsoft"
#: bits -> form of the rows, and the default zero point
_FORMS: Final = {4: ("uint4", 8), 8: ("int8", 128)}


def _packed(
    codes: TensorSource, bits: int, scales: Weight, zeros: Weight | None, shape: tuple[int, int]
) -> TensorSource:
    """Store packed unsigned integers as tiles, with scales and zero points after them.

    8-bit integers become signed. `shape` is the number of rows, and of groups per row. Each group has a scale
    of any float type, and a zero point that is packed like the integers.
    """
    rows, groups = shape
    order = Matrices(1, rows, codes.nbytes // rows, False, TILES, UNIT * bits // 8)  # noqa: FBT003
    stored = packed(codes, "uint8", order, code=SIGNED if bits == 8 else PLAIN)
    numbers = -(-rows // TILE_ROWS) * TILE_ROWS * groups

    def scales_and_zeros() -> Iterator[bytes]:
        for values in (read_array(scales).astype("<f4"), _zero_points(bits, zeros, shape)):
            yield tiles(values.reshape(shape)).tobytes()

    return JoinedSource((stored, ComputedSource(5 * numbers, scales_and_zeros)))


def tiles(rows: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Interleave the numbers of rows, tile by tile; rows of zeros fill the last tile.

    ``[rows, numbers]`` become ``[tiles, numbers, TILE_ROWS]``.
    """
    missing = -len(rows) % TILE_ROWS
    if missing:
        rows = np.concatenate([rows, np.zeros((missing, rows.shape[1]), rows.dtype)])
    return np.ascontiguousarray(rows.reshape(-1, TILE_ROWS, rows.shape[1]).swapaxes(1, 2))


def _zero_points(bits: int, zeros: Weight | None, shape: tuple[int, int]) -> npt.NDArray[np.int8]:
    offset = 128 if bits == 8 else 0
    if zeros is None:
        return np.full(shape, _FORMS[bits][1] - offset, np.int8)
    held = np.frombuffer(read_all(zeros.source), np.uint8).reshape(shape[0], -1)
    if bits == 4:
        held = np.stack([held & 15, held >> 4], axis=-1).reshape(shape[0], -1)[:, : shape[1]]
    return (held.astype(np.int16) - offset).astype(np.int8)


@compiler_pass(lambda context: context.options.stored_weights)
def store_packed_weights_pass(model: Model, context: Context) -> None:
    """Replace products with packed weights by operators that read the stored form."""
    graph = model.proto.graph
    products = [
        node for node in graph.node if node.op_type == _PACKED_PRODUCT and node.domain == _ENGINE_DOMAIN
    ]
    if not products:
        return
    finder = _Finder(model, context.skip)
    found = {id(node): weight for node in products if (weight := finder.stored(node)) is not None}
    if sum(math.prod(weight.dims) for weight in found.values()) < LEAST_IN_PROGRAM:
        for node in products:
            if id(node) in found:
                context.skip("the weights of the program are small", node)
        return
    for weight in found.values():
        model.weights[weight.name] = weight
    nodes = [_product(node, found[id(node)]) if id(node) in found else node for node in graph.node]
    model.set_device_nodes(nodes, [PRODUCT])
    counts = uses(graph)
    for name in finder.copied:
        # Scales and zero points are now stored after the rows.
        if not counts[name]:
            model.weights.pop(name, None)


class _Finder:
    def __init__(self, model: Model, skip: Skip) -> None:
        self.skip = skip
        self.constants = ConstantReader(model.proto.graph, model.weights)
        self.makers = producers(model.proto.graph.node)
        self.counts = uses(model.proto.graph)
        self.types = model.facts.types
        #: constants whose values are stored with a weight
        self.copied: set[str] = set()

    def stored(self, node: onnx.NodeProto) -> Weight | None:
        """Describe the weight of a product in the layout of the kernels; None if they do not support it."""
        rows, length = attribute_of(node, "N", 0), attribute_of(node, "K", 0)
        bits, group = attribute_of(node, "bits", 4), attribute_of(node, "block_size", 0)
        is_known = bits in _FORMS and group >= UNIT and group & (group - 1) == 0
        if not is_known or length % group or rows * length < LEAST_ELEMENTS:
            self.skip("the matrix or its groups are small, or its number of bits has no stored form", node)
            return None
        given = [*node.input, "", "", ""]
        # Products with an order of groups or a computed bias stay with the engine.
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
        source = _packed(codes.source, bits, scales, zeros, (rows, groups))
        blocks, layout = BlockFormat(_FORMS[bits][0], 1), StoredLayout(TILES, group)
        return Weight(codes.name, UINT8, (rows, length), source, blocks, layout)

    def _constant(self, name: str) -> Weight | None:
        """Find the constant that a value is cast from."""
        return self.constants.describe(behind(name, self.makers, "Cast", "Identity"))


def _product(node: onnx.NodeProto, weight: Weight) -> onnx.NodeProto:
    attributes = {"weight": weight.name, "rounding": FLOAT}
    return stored_node(PRODUCT, [node.input[0]], node.output, node, **attributes)
