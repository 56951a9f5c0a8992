"""Rewrites decoders to read only the attended part of their caches.

A decoder with a symbolic length of its context supports any length. Slots after the largest position of an
inference are hidden: the softmax of their scores is zero, and their rows are blanked. The decoder therefore
computes the same results with a shorter context. `context_proof` proves this property for a graph. The pass
then reduces the context to the smallest multiple of `GRANULE` slots that contains every position. It also
removes gathers of all rows in order, and copies of heads that several queries share.

With multiples of `GRANULE`, the kernels add the elements of a row in the same order, and the omitted elements
are zero. Results are equal bit by bit.
"""

from copy import copy
from dataclasses import replace
from typing import Final

import onnx
from onnx import helper

from qaic.compiler.frontend import validation
from qaic.compiler.frontend.size_expressions import evaluate
from qaic.compiler.ir import graph_edits as edit
from qaic.compiler.ir.elem_types import BOOL, FLOAT, INT64
from qaic.compiler.ir.graph_walk import STANDARD_DOMAINS, FreshNames, producers, standard
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.compiler.passes.decoding.attention import (
    GATHERS,
    RANK,
    SCATTERS,
    SLOTS,
    Attention,
    SharedHeads,
    shared_heads,
)
from qaic.compiler.passes.decoding.context_proof import find_attention
from qaic.compiler.passes.inlining import inline_functions
from qaic.compiler.passes.legalize.legalize_qualcomm_functions import DOMAINS, is_unit
from qaic.options.codecs.enumerations import operator_kind
from qaic.options.files.node_precision import NodePrecision
from qaic.options.table import CompileOptions

#: number of slots that attended lengths are multiples of
GRANULE: Final = 64

#: operators that move rows of caches; the attended part is moved by other nodes
_MOVING: Final = frozenset({"Expand", "GatherND", "Reshape", "ScatterND", "Slice", "Transpose", "Unsqueeze"})

#: first operator set in which Shape can return a part of a shape
_PART_OF_SHAPE: Final = 15


def _is_needed(context: Context) -> bool:
    """Return True if the model has state and no option needs values inside the attention."""
    options = context.options
    return (
        options.retained_state
        and not options.whole_caches
        and not context.for_integers
        and not options.all_intermediate_outputs
        and not options.extra_output_tensors
        and not options.output_node_names
        and options.mdp_load_partition_config is None
    )


@compiler_pass(_is_needed)
def narrow_context_pass(model: Model, context: Context) -> None:
    """Reduce the caches that decoders read to the attended part, if results stay the same."""
    if not any(_is_cache_function(function) for function in model.proto.functions):
        return
    names = copy(context.names)
    flat = inline_functions(model.proto, lambda f: is_unit(f) or _is_cache_function(f), names)
    if flat is model.proto:
        flat = edit.clone(flat)
    gathers = [edit.clone(n) for n in flat.graph.node if n.domain in DOMAINS and n.op_type in GATHERS]
    found = find_attention(flat.graph)
    if not all(_scatters_once(f) for f in flat.functions if f.domain in DOMAINS and f.name in SCATTERS):
        found = "a function that writes caches has an unknown body"
    if not isinstance(found, str):
        options = context.options
        kinds = (*options.execute_nodes_in_fp16, *options.keep_original_precision_for_nodes)
        lists = options.node_precision_info_file or NodePrecision()
        listed = {value for name in (*lists.fp16, *lists.fp32) if names for value in names.find(name)}
        is_rounded = bool(options.convert_to_fp16 or options.execute_nodes_in_fp16 or listed)
        has_one_batch = all(_has_one_batch(flat.graph, gather, options) for gather in found.gathers)
        rewriter = _Rewriter(flat, found, is_rounded=is_rounded, has_one_batch=has_one_batch)
        rewriter.run()
        named = rewriter.replaced & listed | _MOVING & {*map(operator_kind, kinds)}
        if not named:
            validation.normalize(flat, model.weights)
            model.proto, context.names = flat, names
            model.facts.original |= rewriter.original
            model.facts.transparent |= rewriter.transparent
            return
        found = f"an option sets the precision of {min(named)}"
    for node in gathers:
        context.skip(f"whole caches are read: {found}", node)


def _is_cache_function(function: onnx.FunctionProto) -> bool:
    return function.domain in DOMAINS and function.name in SCATTERS.keys() | GATHERS.keys()


def _has_one_batch(graph: onnx.GraphProto, gather: onnx.NodeProto, options: CompileOptions) -> bool:
    """Return True if every set of shapes reads the same number of rows of a cache."""
    if len(gather.input) == GATHERS["CtxGather"]:
        # All rows of the cache are read, and its shape is the same in all sets.
        return True
    chosen = next((value for value in graph.input if value.name == gather.input[1]), None)
    dims = [] if chosen is None else list(chosen.type.tensor_type.shape.dim)
    if not dims:
        return False
    if dims[0].HasField("dim_value"):
        return True
    if options.dynamic_shape_input:
        return False
    entries = [entry.symbols for entry in options.network_specialization_config] or [{}]
    sets = [{**options.onnx_define_symbol, **symbols} for symbols in entries]
    sizes = {evaluate(dims[0].dim_param, symbols) for symbols in sets}
    return len(sizes) == 1 and None not in sizes


def _scatters_once(function: onnx.FunctionProto) -> bool:
    """Return True if a body has one scatter, from its first operand to its result."""
    scatters = [node for node in function.node if standard(node, "ScatterND", "ScatterElements")]
    if len(scatters) != 1 or len(function.output) != 1:
        return False
    (scatter,) = scatters
    is_plain = scatter.op_type == "ScatterND" and not scatter.attribute
    return is_plain and scatter.output[0] == function.output[0] and scatter.input[0] == function.input[0]


class _Rewriter:
    """Rewrites the nodes of a graph to use only the attended slots."""

    def __init__(
        self, model: onnx.ModelProto, found: Attention, *, is_rounded: bool, has_one_batch: bool
    ) -> None:
        self.model = model
        #: true if every set of shapes reads the same number of rows of the caches
        self.has_one_batch = has_one_batch
        self.bodies = {(function.domain, function.name): function for function in model.functions}
        graph = self.graph = model.graph
        self.found = found
        self.version = next(s.version for s in model.opset_import if s.domain in STANDARD_DOMAINS)
        self.fresh = FreshNames(graph)
        self.makers = producers(graph.node)
        self.writer = edit.NodeWriter(self.fresh, self.version, "attended", names_nodes=True)
        self.nodes = self.writer.nodes
        known = {self._known_sizes(node.input[0]) for node in found.scatters}
        types = {value.name: value.type.tensor_type.elem_type for value in graph.input}
        #: true if the engine computes in float32 without additional rounding
        self.is_exact = not is_rounded and all(types[node.input[0]] == FLOAT for node in found.scatters)
        #: heads and width of all caches
        self.sizes = known.pop() if len(known) == 1 else (0, 0)
        #: values of shape [1] with the sizes of the positions
        self.rows: list[str] = []
        #: products with rows that several heads share -> number of these heads
        self.copies: dict[str, int] = {}
        #: value -> its replacement
        self.renamed: dict[str, str] = {}
        #: result of a node of the user -> its name in the model
        self.original: dict[str, str] = {}
        #: first results of added nodes
        self.transparent: set[str] = set()
        #: results of nodes that move rows and are replaced or repeated
        self.replaced: set[str] = set()

    def run(self) -> None:
        graph, found = self.graph, self.found
        before = {name for node in graph.node for name in node.output}
        length = self._attended_length()
        start, axis = self.writer.constant([0]), self.writer.constant([SLOTS])
        end = self.writer.add("Unsqueeze", length, start)
        self.renamed |= {name: end if is_list else length for name, is_list in found.lengths.items()}
        caches = {node.output[0]: node for node in found.scatters}
        self.replaced |= caches.keys()
        gathers = {node.output[0] for node in found.gathers}
        is_known = self.version >= _PART_OF_SHAPE and 0 not in self.sizes
        shared = shared_heads(graph, found) if is_known else {}
        self.copies = {name: each.copies for name, each in shared.items()}
        if self.sizes[0] == 1:
            # If all heads share one matrix, the engine uses the kernel for many rows.
            shared = {name: each for name, each in shared.items() if self._is_joined(each)}
        if is_known:
            # The mask, queries and shares have a row for each position.
            self.rows = [self.writer.add("Shape", found.positions, start=at, end=at + 1) for at in (0, 1)]
        scaled = {each.product.output[0] for each in shared.values() if each.scaling is not None}
        shape_of_cache = self.writer.add("Shape", found.scatters[0].input[0])
        is_fixed = 0 not in self.sizes and self.has_one_batch
        for node in graph.node:
            result = node.output[0]
            if result in found.lengths or result in scaled:
                continue
            if result in caches:
                self._write_rows(node, (start, end, axis))
                continue
            if standard(node, "Shape") and node.input[0] in caches:
                # All sizes that are read here are sizes of the whole cache.
                edit.replace_input_with(node, 0, caches[node.input[0]].input[0])
            edit.set_inputs(node, [self.renamed.get(name, name) for name in node.input])
            if is_fixed and {*found.other_sizes.get(result, (0,))} <= {1, RANK - 1}:
                # The engine infers these sizes for the whole cache, but not for its attended part. It then
                # fuses values that it can compute in advance, such as the scale of scores, into its kernels.
                # If the batch of the rows differs between sets of shapes, it infers neither.
                edit.replace_input_with(node, 0, shape_of_cache)
            if result in gathers and len(node.input) == GATHERS["CtxGather"]:
                # The gather reads all rows in order; rows of unused slots are hidden or blanked.
                self.renamed[result] = node.input[0]
                self.replaced.add(result)
            elif result in shared:
                self._write_product(shared[result])
            elif is_known and result in found.mixtures:
                self._write_mixture(node)
            else:
                self.nodes.append(node)
        edit.set_nodes(graph, self.nodes)
        edit.clear_descriptions(graph)
        edit.drop_unneeded_nodes(graph)
        made, moved = {node.output[0] for node in graph.node}, {*self.original.values()}
        self.transparent = (made - before - self.original.keys()) | (made & moved)

    def _known_sizes(self, cache: str) -> tuple[int, int]:
        dims = next(v for v in self.graph.input if v.name == cache).type.tensor_type.shape.dim
        return int(dims[1].dim_value), int(dims[RANK - 1].dim_value)

    def _attended_length(self) -> str:
        """Add nodes for the attended length: a multiple of `GRANULE`, at most the number of slots."""
        add, reduced = self.writer.add, self.writer.reduced
        positions = add("Cast", self.found.positions, to=INT64)
        shape = add("Shape", self.found.scatters[0].input[0])
        whole = add("Gather", shape, SLOTS, axis=0)
        granule, zero = self.writer.constant(GRANULE), self.writer.constant(0)
        largest, smallest = (reduced(kind, positions, 1, keepdims=0) for kind in ("ReduceMax", "ReduceMin"))
        # A position after the last slot attends to all slots.
        last = add("Min", add("ReduceMax", largest, keepdims=0), whole)
        granules = add("Div", add("Add", last, granule), granule)
        length = add("Min", add("Max", add("Mul", granules, granule), granule), whole)
        # If a sample contains positions and padding, the padding attends to no slot, so the softmax returns
        # equal values for all slots. If all positions are padding, the scatter rewrites the last slot.
        is_mixed = add("And", add("Less", smallest, zero), add("Not", add("Less", largest, zero)))
        is_any_mixed = add("Cast", add("ReduceMax", add("Cast", is_mixed, to=INT64), keepdims=0), to=BOOL)
        return add("Where", add("Or", is_any_mixed, add("Less", last, zero)), whole, length)

    def _write_rows(self, node: onnx.NodeProto, places: tuple[str, str, str]) -> None:
        """Write rows to the cache, which is the state, and to the copy of its attended part."""
        cache, attended = node.output[0], self.fresh.make(node.output[0], "attended")
        operands = [self.renamed.get(name, name) for name in node.input]
        function = self._with_attended(node)
        results = [cache, attended]
        self.nodes.append(
            helper.make_node(
                function, [*operands, *places], results, name=node.name or None, domain=node.domain
            )
        )
        self.renamed[cache] = attended

    def _with_attended(self, node: onnx.NodeProto) -> str:
        """Add the function that writes a cache and its attended part at the same indices; returns its name.

        All indices are inside the attended part, because the function replaces rows outside the cache by a
        row inside.
        """
        name = f"{node.op_type}Attended"
        if (node.domain, name) in self.bodies:
            return name
        function = self.bodies[node.domain, node.op_type]
        scatter = next(n for n in reversed(function.node) if n.output[0] == function.output[0])
        taken = {value for n in function.node for value in (*n.input, *n.output)} | {*function.input}
        names = [_unused(base, taken) for base in ("start", "end", "axis", "part", "attended")]
        places, (part, attended) = names[:3], names[3:]
        variant = helper.make_function(
            node.domain,
            name,
            [*function.input, *places],
            [*function.output, attended],
            [
                *function.node,
                helper.make_node("Slice", [scatter.input[0], *places], [part]),
                helper.make_node("ScatterND", [part, *scatter.input[1:]], [attended]),
            ],
            function.opset_import,
        )
        self.bodies[node.domain, name] = edit.add_function(self.model, variant)
        return name

    def _write_mixture(self, node: onnx.NodeProto) -> None:
        """Add a Reshape that states the shape of a product, which does not depend on the length."""
        result = node.output[0]
        edit.rename_output(node, 0, self.fresh.make(result, "attended"))
        self.original[node.output[0]] = result
        self.nodes.append(node)
        (batch, count), (groups, width) = self.rows, self.sizes
        heads = groups * self.copies.get(result, 1)
        # If a Where computes the rows, they are all rows of a cache.
        maker = self.makers.get(node.input[1])
        if result not in self.copies and (maker is None or not standard(maker, "Where")):
            # The number of copies of the rows is not known, so Reshape derives the number of heads.
            heads = -1
        writer = replace(self.writer, base=result)
        shape = writer.add("Concat", batch, [heads], count, [width], axis=0)
        writer.add("Reshape", node.output[0], shape, output=result)

    def _is_joined(self, shared: SharedHeads) -> bool:
        """Return True if the rows of all heads of a group may form one matrix."""
        return self.is_exact and shared.is_transposed and shared.scale not in {None, 1.0}

    def _write_product(self, shared: SharedHeads) -> None:
        """Multiply each group of heads with its rows: [b, g, n, q, k] x [b, g, 1, k, m].

        If the engine scales within the product, it uses one kernel for any number of rows. The rows of all
        heads of a group then form one matrix: [b, g, n * q, k] x [b, g, k, m] reads each cache once. Without
        scaling, the engine uses another kernel for one row, which adds in another order.
        """
        product, scaling = shared.product, shared.scaling
        result = (product if scaling is None else scaling).output[0]
        copies = [self.makers[product.input[1]]]
        while copies[-1].op_type != "Unsqueeze":
            copies.append(self.makers[copies[-1].input[0]])
        self.replaced |= {node.output[0] for node in copies}
        operand = self.renamed.get(product.input[0], product.input[0])
        rows = self.renamed.get(shared.rows, shared.rows)
        # Constants for sizes that do not depend on the length make the shape of the result known.
        groups, width = self.sizes
        batch, count = self.rows
        heads = groups * shared.copies
        is_joined = self._is_joined(shared)
        writer = replace(self.writer, base=result)
        add, last = writer.add, -1 if shared.is_transposed else width
        if is_joined:
            left = writer.constant([0, groups, -1, width])
        elif shared.is_transposed:
            left = writer.constant([0, groups, shared.copies, -1, width])
        else:
            left = add("Concat", batch, [groups, shared.copies], count, [-1], axis=0)
        flat = add("Concat", batch, [heads], count, [last], axis=0)
        left = add("Reshape", operand, left)
        right = rows if is_joined else add("Unsqueeze", rows, [2])
        if shared.is_transposed:
            right = add("Transpose", right, perm=[0, 1, 3, 2] if is_joined else [0, 1, 2, 4, 3])
        products = add("MatMul", left, right)
        self.original[products] = product.output[0]
        if scaling is not None:
            products = add(scaling.op_type, products, scaling.input[1])
            self.original[products] = result
        add("Reshape", products, flat, output=result)


def _unused(base: str, taken: set[str]) -> str:
    name = base
    while name in taken:
        name += "_"
    return name
