"""Expands the functions of a model; node names contain the names of the calls.

Passes that record facts by name require that each name of a model means one value. Branches that never run
together may use the same name, so values of nested graphs are renamed.

Each expanded call repeats the same computations of positions and shapes. The engine does not detect these
duplicates, because their constants are copies too, so a pass merges equal nodes.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper

from qaic.compiler.diagnostics.messages import refuse
from qaic.compiler.frontend import symbols, validation
from qaic.compiler.frontend.function_calls import FunctionKey, function_key
from qaic.compiler.frontend.value_options import inside_functions
from qaic.compiler.ir import graph_edits as edit
from qaic.compiler.ir.constants.weights import with_weights_as_inputs
from qaic.compiler.ir.graph_walk import (
    RANDOM,
    FreshNames,
    all_nodes,
    find_nodes,
    node_key,
    node_lists,
    operator_of,
    standard,
    subgraphs,
)
from qaic.compiler.ir.inlined_names import Call, InlinedNames, calls_in
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.compiler.ir.precision import needs_inner_nodes
from qaic.compiler.ir.value_info import collect_types
from qaic.compiler.passes.emulation.upcast_float16 import mentions_half
from qaic.compiler.passes.legalize.empty_operands import COMBINING, reads_nothing
from qaic.compiler.passes.legalize.legalize_division import DIVISIONS, traps
from qaic.compiler.passes.legalize.legalize_exports import (
    ENGINE_ATTENTION,
    resizes_from_the_end,
    selects_without_kernel,
)
from qaic.compiler.passes.legalize.legalize_narrow_casts import is_unsaturated
from qaic.compiler.passes.legalize.legalize_padding import (
    counts_padding,
    joins_in_functions,
    pads_itself,
    rounds_up,
)
from qaic.compiler.passes.legalize.legalize_qualcomm_functions import is_unit
from qaic.compiler.passes.legalize.legalize_quantized_chains import ROUNDING
from qaic.compiler.passes.legalize.legalize_recurrent import may_be_batch_first
from qaic.compiler.passes.legalize.legalize_statistics import returns_statistics
from qaic.compiler.passes.legalize.legalize_unchecked import is_unchecked

_log = logging.getLogger("qaic.compiler")

#: least number of nodes of a function that the card's compiler does not expand
_SMALL: Final = 100

#: functions that the card implements
_KEPT_WHOLE: Final = frozenset({"CastToUInt4", "CustomRMSNorm"})


def inline_functions(
    model: onnx.ModelProto,
    keep: Callable[[onnx.FunctionProto], bool] = lambda _: False,
    names: InlinedNames | None = None,
) -> onnx.ModelProto:
    """Expand every call of a model-local function.

    A node of a body gets the name ``call/inner``, with one prefix for each function around it. The name of a
    call or node without a name is its first result. `keep` returns True for a function whose calls stay.
    `names` receives the new names of the values of bodies. Returns `model` itself if nothing is expanded.
    Raises CompileError if a body does not fit its calls.
    """
    bodies = {function_key(f.domain, f.name, f.overload): f for f in model.functions if not keep(f)}
    if not bodies:
        return model
    chosen = [(body.domain, body.name) for body in bodies.values()]
    try:
        inlined: onnx.ModelProto = inliner.inline_selected_functions(model, chosen)
    except (RuntimeError, ValueError) as error:
        raise refuse(
            "functions of the model",
            code="invalid_model",
            found=f"bodies that cannot be inlined ({str(error).strip()})",
            expected="functions without recursion, with all their operator sets",
            fix="export the model without functions",
        ) from error
    origins = list(_expected(model.graph.node, bodies, Call(nodes=model.graph.node)))
    found = [
        (origin.op_type, node.op_type)
        for (origin, _, _), node in zip(origins, inlined.graph.node, strict=False)
    ]
    if len(origins) != len(inlined.graph.node) or any(before != after for before, after in found):
        _log.debug("the inliner has changed the nodes of functions; they keep its names")
        return inlined
    for (_, name, _), node in zip(origins, inlined.graph.node, strict=True):
        node.name = name
    if names is not None:
        names.learn(calls_in(inlined.graph, [(origin, call) for origin, _, call in origins]))
    return inlined


def inline_small_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Expand the functions that the card's compiler expands.

    These functions have fewer than 100 nodes, and the card has no implementation of them.
    """
    return inline_functions(model, lambda f: len(f.node) >= _SMALL or f.name in _KEPT_WHOLE)


def _expected(
    nodes: Iterable[onnx.NodeProto], bodies: Mapping[FunctionKey, onnx.FunctionProto], call: Call
) -> Iterator[tuple[onnx.NodeProto, str, Call]]:
    """Yield the nodes in the order of the expanded model, each with its new name and its call."""
    for node in nodes:
        own = node.name or (node_key(node) if call.path else "")
        name = f"{call.path}/{own}" if call.path else own
        body = bodies.get(function_key(node.domain, node.op_type, node.overload))
        if body is None:
            yield node, name, call
            continue
        results = dict(zip(body.output, node.output, strict=False))
        inner = Call(name or node_key(node), body.name, nodes=body.node, parent=call, results=results)
        yield from _expected(body.node, bodies, inner)


def expand(
    model: Model, keep: Callable[[onnx.FunctionProto], bool] = is_unit, names: InlinedNames | None = None
) -> None:
    """Expand the functions of a model, and normalize it again.

    Bodies may contain documentation and unused constants. Calls of functions for which `keep` returns True
    stay. `names` receives the new names of the values of bodies.
    """
    flat = inline_functions(model.proto, keep, names)
    if flat is not model.proto:
        validation.normalize(flat, model.weights)
        model.proto = flat


def _is_rewritten(model: Model) -> bool:
    """Return True if functions have nodes that must be rewritten, depending on types and shapes.

    These are integer divisions and operands without elements, which may end the process, and Where nodes for
    which the engine has no kernel.
    """
    if not any(find_nodes(function.node, DIVISIONS | COMBINING) for function in model.proto.functions):
        return False
    # Types and shapes are only known in the expanded model.
    flat = symbols.infer(with_weights_as_inputs(inline_functions(model.proto), model.weights))
    types = collect_types(flat)
    return traps(flat, types) or reads_nothing(flat) or selects_without_kernel(flat, types)


def _may_train(node: onnx.NodeProto) -> bool:
    """Return True if the call of a function may decide whether a node of its body is in training mode."""
    modes = (attribute for attribute in node.attribute if attribute.name == "training_mode")
    if standard(node, "BatchNormalization"):
        return any(mode.ref_attr_name for mode in modes)
    return standard(node, "Dropout") and len(node.input) > 2


@compiler_pass()
def inline_functions_pass(model: Model, context: Context) -> None:
    """Expand functions if the model contains functions of the card, or if an option requests it."""
    is_wanted = model.has_fused_functions or context.options.always_expand_onnx_functions
    if is_wanted:
        expand(model, names=context.names)


@compiler_pass()
def inline_for_nodes_pass(model: Model, context: Context) -> None:
    """Expand functions if options refer to single nodes in them."""
    options = context.options
    proto = model.proto
    is_wanted = context.measures_operations or (
        proto.functions
        and (
            needs_inner_nodes(options)
            or mentions_half(proto, model.weights)
            or _is_rewritten(model)
            or joins_in_functions(proto)
            or any(
                resizes_from_the_end(function.node)
                or any(
                    node.op_type in ROUNDING
                    or is_unchecked(node)
                    or pads_itself(node)
                    or counts_padding(node)
                    or rounds_up(node)
                    or returns_statistics(node)
                    or _may_train(node)
                    or is_unsaturated(node)
                    or may_be_batch_first(node)
                    or operator_of(node) == ENGINE_ATTENTION
                    for node in all_nodes(function.node)
                )
                for function in proto.functions
            )
            or inside_functions(proto.graph, options.extra_output_tensors)
        )
    )
    if is_wanted:
        expand(model, names=context.names)


@compiler_pass()
def inline_fused_functions_pass(model: Model, _: Context) -> None:
    """Expand functions of the card that were kept because they round once."""
    if model.has_fused_functions:
        expand(model, lambda _: False)


def make_names_unique(graph: onnx.GraphProto, constants: Iterable[str]) -> None:
    """Rename values of nested graphs if another value already has their name; changes `graph`.

    Names of the main graph stay; `constants` are the names of weights outside the graph.
    """
    if not any(True for node in graph.node for _ in subgraphs(node)):
        return
    fresh = FreshNames(graph)
    taken = {*_defined(graph), *constants}
    for node in graph.node:
        for inner in subgraphs(node):
            _separate(inner, {}, taken, fresh)


def _separate(graph: onnx.GraphProto, outer: Mapping[str, str], taken: set[str], fresh: FreshNames) -> None:
    renamed = dict(outer)
    for name in _defined(graph):
        if name in taken:
            renamed[name] = fresh.make(name, "scope")
        else:
            renamed.pop(name, None)
            taken.add(name)
    edit.rename_declared(graph, renamed)
    for node in graph.node:
        edit.rename_operands(node, renamed)
        for inner in subgraphs(node):
            _separate(inner, renamed, taken, fresh)


def _defined(graph: onnx.GraphProto) -> list[str]:
    """List the names that a graph defines, in order and without duplicates."""
    names = dict.fromkeys(value.name for value in graph.input)
    names |= dict.fromkeys(tensor.name for tensor in graph.initializer)
    names |= dict.fromkeys(tensor.values.name for tensor in graph.sparse_initializer)
    names |= dict.fromkeys(name for node in graph.node for name in node.output if name)
    return list(names)


def _name_once(nodes: Iterable[onnx.NodeProto]) -> None:
    """Remove names that an earlier node of the graph has, because the engine refuses equal names."""
    taken = set[str]()
    for node in nodes:
        # An empty name does not change, because the file may contain it explicitly.
        if node.name and node.name in taken:
            edit.clear_name(node)
        taken.add(node.name)
        for inner in subgraphs(node):
            _name_once(inner.node)


@compiler_pass()
def unique_names_pass(model: Model, context: Context) -> None:
    """Give every value of a graph a unique name, and remove names of nodes that repeat in it."""
    make_names_unique(model.proto.graph, model.weights)
    # Reports of operations show repeated names; `record_provenance_pass` records them and renames the nodes.
    if not context.measures_operations:
        for nodes in node_lists(model.proto):
            _name_once(nodes)


_RANDOM: Final = RANDOM | {"Dropout"}

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


def eliminate_common_subexpressions(
    graph: onnx.GraphProto, shapes: Mapping[str, tuple[int, ...]], labels: Mapping[str, str] = _NOTHING
) -> None:
    """Remove nodes of the main graph that repeat an earlier node; changes `graph`.

    Two nodes are equal if they have the same standard operator, attributes and inputs, and the same `labels`
    of their results. A Shape node whose result is known counts as a constant. The graph has no functions, and
    each name means one value, also in nested graphs. A dim below 0 is not known.
    """
    outputs = {value.name for value in graph.output}
    renamed: dict[str, str] = {}
    known: dict[object, list[str]] = {}
    kept: list[onnx.NodeProto] = []
    for original in graph.node:
        node = _constant_shape(original, shapes)
        edit.replace_all_uses_with([node], renamed)
        key = _key(node)
        names = list(node.output)
        if key is not None and labels:
            key = key, tuple(labels.get(name) for name in names)
        earlier = known.setdefault(key, names) if key is not None else names
        if earlier is not names and outputs.isdisjoint(names):
            renamed.update(zip(names, earlier, strict=True))
            continue
        kept.append(node)
    edit.set_nodes(graph, kept)


def _constant_shape(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> onnx.NodeProto:
    """Return a constant in place of a Shape node whose result is known, else the node."""
    dims = shapes.get(node.input[0], (-1,)) if standard(node, "Shape") and not node.attribute else (-1,)
    if any(dim < 0 for dim in dims):
        return node
    value = numpy_helper.from_array(np.array(dims, np.int64))
    return helper.make_node("Constant", [], list(node.output), value=value)


def _key(node: onnx.NodeProto) -> object:
    """Return a key of a node's computation; None if equal nodes may have different results."""
    if not standard(node, node.op_type) or node.op_type in _RANDOM or any(True for _ in subgraphs(node)):
        return None
    attributes = sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute)
    return node.op_type, tuple(node.input), tuple(attributes), tuple(bool(name) for name in node.output)


@compiler_pass()
def merge_equal_nodes_pass(model: Model, context: Context) -> None:
    """Merge equal nodes of expanded functions of the card."""
    if model.has_fused_functions:
        eliminate_common_subexpressions(model.proto.graph, model.facts.shapes, _listed(context))


def _listed(context: Context) -> dict[str, str]:
    """Map the values that a precision file lists to the precision of their nodes."""
    lists = context.options.node_precision_info_file
    return {} if lists is None else dict.fromkeys(lists.fp16, "fp16") | dict.fromkeys(lists.fp32, "fp32")
