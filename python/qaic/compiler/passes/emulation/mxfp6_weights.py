"""Constant weights of matrix products in the block format MXFP6.

The container stores blocks of 6.25 bits per element. The device computes with the stored blocks
(`store-weights`), or decodes them when it loads the program. Only the values of the weights change. Blocks
are along the dimension that the product sums over. A mixture of experts gathers its matrices from the blocks.
"""

import math
from functools import partial
from typing import Final

import onnx
from onnx import helper

from qaic.compiler.diagnostics.messages import listing, refuse, warn
from qaic.compiler.ir.constants.in_graph import ConstantReader
from qaic.compiler.ir.constants.packed import MXFP6, ROWS, Facts, Matrices, PackedSource, packed
from qaic.compiler.ir.constants.weights import BlockFormat, TensorSource, Weight
from qaic.compiler.ir.elem_types import DOUBLE, FLOAT, FLOATS, INT32, INT64, type_name
from qaic.compiler.ir.graph_edits import remove_unused_nodes, replace_input_with, set_nodes
from qaic.compiler.ir.graph_walk import FreshNames, all_nodes, attribute_of, node_key, producers, standard
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.compiler.ir.precision import INTEGERS, PrecisionClass
from qaic.compiler.ir.value_info import ValueInfo

#: format of weights
ENCODING: Final = MXFP6
#: least number of rows and of columns of a compressed matrix
_LEAST_SIDE: Final = 32


def mxfp6_source(
    source: TensorSource, elem_type: int, dims: tuple[int, ...], name: str, *, moved: bool
) -> PackedSource:
    """Encode a payload of floats as blocks along the last dimension, or along the second to last if `moved`.

    The dimension of the blocks is stored as the last one. `name` is for messages.
    """
    *batch, rows, columns = dims
    matrices = Matrices(math.prod(batch), rows, columns, moved, ROWS)
    return packed(
        source, type_name(elem_type), matrices, code=MXFP6, listener=partial(_refuse_not_finite, name)
    )


def _refuse_not_finite(name: str, facts: Facts) -> None:
    if facts.nan or facts.infinite:
        raise refuse(
            f"weight {name!r}",
            code="weight_not_finite",
            found=f"{facts.nan} NaN and {facts.infinite} infinite values, which MXFP6 cannot represent",
            expected="finite numbers",
            fix="name the operator in exclude_mxfp6_matmul, or repair the model",
            context={"tensor": name},
        )


@compiler_pass(lambda context: context.options.mxfp6_matmul)
def compress_weights_pass(model: Model, context: Context) -> None:
    """Convert constant weights of matrix products to MXFP6."""
    options = context.options
    original = model.facts.original
    names = {
        key: {str(node.name), key, original.get(key, key)}
        for node in all_nodes(model.proto.graph.node)
        for key in (node_key(node),)
    }
    excluded = set(options.exclude_mxfp6_matmul)
    unknown = sorted(excluded - {name for known in names.values() for name in known})
    if unknown:
        warn(
            "mxfp6.unknown_nodes",
            f"exclude_mxfp6_matmul: {len(unknown)} of {len(excluded)} names are not those of a node or its "
            f"output: {listing(unknown)}",
        )
    lists = options.node_precision_info_file
    excluded |= set() if lists is None else set(lists.fp32)
    compressor = _Compressor(model, context)
    count = sum(
        compressor.compress(node)
        for node in all_nodes(model.proto.graph.node)
        if standard(node, "MatMul", "Gemm") and not names[node_key(node)] & excluded
    )
    if count:
        compressor.finish()
    else:
        warn(
            "mxfp6.no_products",
            f"mxfp6_matmul: the model has no product with a constant matrix of at least {_LEAST_SIDE} x "
            f"{_LEAST_SIDE}",
        )


def swaps(node: onnx.NodeProto, rank: int) -> bool:
    """Return True if a Transpose swaps the dims of a matrix."""
    order = attribute_of(node, "perm", [*range(rank)][::-1])
    return order == [*range(rank - 2), rank - 1, rank - 2]


def chooses_matrices(node: onnx.NodeProto, facts: ValueInfo) -> bool:
    """Return True if a node gathers matrices by a list of indices."""
    return (
        standard(node, "Gather")
        and attribute_of(node, "axis", 0) == 0
        and facts.types.get(node.input[1]) in {INT32, INT64}
        and len(facts.shapes.get(node.input[1], ())) == 1
    )


class _Compressor:
    """Encodes the blocks of each weight once for all readers."""

    def __init__(self, model: Model, context: Context) -> None:
        graph = model.proto.graph
        self.model = model
        self.classes, self.requested = context.plan.classes, context.plan.requested
        self.skip = context.skip
        self.fresh = FreshNames(graph)
        self.makers = producers(graph.node)
        self.constants = ConstantReader(graph, model.weights)
        self.passed: set[str] = set()
        self.made: dict[tuple[str, bool, bool], str] = {}
        #: blocks, node that gathers matrices, precision of its reader -> node that gathers blocks
        self.choosers: dict[tuple[str, str, PrecisionClass, bool], onnx.NodeProto] = {}

    def compress(self, node: onnx.NodeProto) -> bool:
        """Replace the constant operand of a product; returns True if this is possible.

        A left operand is replaced only if it consists of gathered matrices.
        """
        chosen = self.classes.get(node_key(node))
        if chosen is None or chosen in INTEGERS or len(node.input) < 2:
            self.skip(
                "the product has integers" if chosen in INTEGERS else "the product keeps its precision", node
            )
            return False
        position, (weight, swapped, chooser) = 1, self._constant(node.input[1])
        if weight is None and standard(node, "MatMul"):
            position, (weight, swapped, chooser) = 0, self._constant(node.input[0])
            weight = None if chooser is None else weight
        ranks = {3} if chooser is not None else {2, 3}
        if weight is None or weight.elem_type not in FLOATS or len(weight.dims) not in ranks:
            self.skip("no operand is a constant matrix of floats, or chosen ones", node)
            return False
        if min(weight.dims[-2:]) < _LEAST_SIDE or math.prod(weight.dims) == 0:
            self.skip(f"the matrix has a side below {_LEAST_SIDE}", node)
            return False
        by_columns = position == 0 or (node.op_type == "Gemm" and attribute_of(node, "transB", 0) != 0)
        # The product sums over the last or the second to last dimension of its operand.
        axis = len(weight.dims) - (1 if by_columns else 2)
        moved = by_columns == swapped
        key = (weight.name, swapped, by_columns)
        name = self.made.get(key)
        if name is None:
            name = self.made[key] = self.fresh.make(weight.name, "mxfp6")
            dims = (*weight.dims[:-2], *(weight.dims[:-3:-1] if swapped else weight.dims[-2:]))
            source = mxfp6_source(weight.source, weight.elem_type, weight.dims, weight.name, moved=moved)
            self.model.weights[name] = Weight(name, FLOAT, dims, source, BlockFormat(ENCODING, axis))
            facts = self.model.facts
            facts.types[name] = FLOAT
            facts.shapes[name] = dims
            if node.input[position] in facts.narrow:
                facts.narrow[name] = facts.narrow[node.input[position]]
        replace_input_with(node, position, name if chooser is None else self._chosen(chooser, name, node))
        return True

    def _chosen(self, chooser: onnx.NodeProto, blocks: str, product: onnx.NodeProto) -> str:
        """Gather the matrices of a mixture of experts from the blocks, in the precision of their product."""
        precision, is_requested = self.classes[node_key(product)], node_key(product) in self.requested
        key, facts = (blocks, node_key(chooser), precision, is_requested), self.model.facts
        if key not in self.choosers:
            name = self.fresh.make(key[1], "mxfp6")
            self.choosers[key] = helper.make_node("Gather", [blocks, chooser.input[1]], [name])
            facts.types[name] = FLOAT
            facts.shapes[name] = (*facts.shapes[chooser.input[1]], *facts.shapes[blocks][1:])
            self.classes[name] = precision
            if is_requested:
                self.requested.add(name)
            if blocks in facts.narrow:
                facts.narrow[name] = facts.narrow[blocks]
        return self.choosers[key].output[0]

    def _constant(self, name: str) -> tuple[Weight | None, bool, onnx.NodeProto | None]:
        """Find the constant that an operand is computed from, without changes of its values.

        Also returns True if the last two dimensions are swapped, and the node that gathers matrices, if any.
        """
        swapped, chooser = False, None
        while True:
            if (weight := self.constants.describe(name)) is not None:
                return (None if weight.blocks else weight), swapped, chooser
            maker = self.makers.get(name)
            if maker is None or not standard(maker, "Cast", "Identity", "Transpose", "Gather"):
                return None, False, None
            if maker.op_type == "Transpose":
                rank = len(self.model.facts.shapes.get(name, ()))
                if rank not in {2, 3} or not swaps(maker, rank):
                    return None, False, None
                swapped = not swapped
            elif maker.op_type == "Gather":
                if chooser is not None or not chooses_matrices(maker, self.model.facts):
                    return None, False, None
                chooser = maker
            elif self.model.facts.types.get(maker.input[0], 0) not in FLOATS - {DOUBLE}:
                return None, False, None
            self.passed.add(name)
            name = maker.input[0]

    def finish(self) -> None:
        """Insert the nodes that gather blocks, and remove nodes and constants that are no longer used."""
        graph = self.model.proto.graph
        added: dict[str, list[onnx.NodeProto]] = {}
        for (_, chooser, *_), node in self.choosers.items():
            added.setdefault(chooser, []).append(node)
        if added:
            set_nodes(graph, [made for node in graph.node for made in (node, *added.get(node_key(node), ()))])
        remove_unused_nodes(graph, self.passed)
