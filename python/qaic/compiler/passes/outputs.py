"""Adds results of inner operators as outputs (``set_output_tensors`` and others), or removes outputs.

Added outputs follow the outputs of the model, which keep their names and order. Applications for the original
program therefore also run with the new one. `output_node_names` reduces a model to the requested outputs.
"""

import logging
from collections.abc import Callable, Collection, Sequence

import onnx

from qaic.compiler.diagnostics.messages import listing, note, refuse, warn
from qaic.compiler.frontend.specialization import read_spec
from qaic.compiler.frontend.value_options import as_outputs, inside_functions, unknown_result
from qaic.compiler.ir.elem_types import BOOL
from qaic.compiler.ir.graph_edits import (
    add_output,
    clear_shape,
    drop_unneeded_nodes,
    remove_inputs,
    set_outputs,
)
from qaic.compiler.ir.graph_walk import values_read_by
from qaic.compiler.ir.inlined_names import InlinedNames
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.compiler.passes.inlining import expand
from qaic.errors import CompileError

_log = logging.getLogger("qaic.compiler")


def add_named(
    model: onnx.ModelProto,
    items: Sequence[str],
    graph_names: Collection[str],
    names: InlinedNames | None = None,
    *,
    was_cut: bool = False,
) -> None:
    """Add tensors as outputs of a model whose shapes are not inferred yet; changes `model` in place.

    Each of `items` is a tensor of the main graph, several tensors, ``a,b``, tensors of one of `graph_names`,
    ``graph:a,b``, or several such groups, joined by ``;``. A name with these characters must be an item of
    its own. All sets of shapes share the graph, so the tensors are outputs in every set. Values of expanded
    functions are named ``call/value``. `was_cut` selects the message. Raises CompileError if no node of the
    main graph computes a tensor, or if a graph does not exist.
    """
    graph = model.graph
    computed = {name for node in graph.node for name in node.output if name}

    def is_value(name: str) -> bool:
        return name in computed or (names is not None and bool(names.find(name)))

    wanted: dict[str, None] = {}
    for item in items:
        if is_value(item):
            wanted[item] = None
            continue
        for group in item.split(";"):
            if group.strip():
                wanted |= dict.fromkeys(_names_in(group.strip(), is_value, graph_names))
    for name in [name for name in wanted if name not in computed]:
        inner = [] if names is None else as_outputs(graph, name, names)
        if not inner:
            fix = "output_node_names removes this tensor; list it there" if was_cut else ""
            raise unknown_result("extra_output_tensors", graph, name, sorted(computed), fix)
        wanted |= dict.fromkeys(inner)
    _append(graph, [name for node in graph.node for name in node.output if name in wanted])


def add_every(model: onnx.ModelProto, specialized: Sequence[onnx.ModelProto]) -> None:
    """Add every float and integer tensor with fixed shapes as an output; changes `model` in place."""
    ranks = [_ranks(specialized_model) for specialized_model in specialized]
    names = [name for node in model.graph.node for name in node.output if name]
    fixed = [name for name in names if len({known.get(name) for known in ranks} - {None}) == 1]
    kept = [name for name in fixed if all(name in known for known in ranks)]
    if len(kept) < len(names):
        _log.info(
            "all_intermediate_outputs: %d of %d tensors cannot be outputs: they have no fixed shape, or "
            "a type other than float or integer",
            len(names) - len(kept),
            len(names),
        )
    _append(model.graph, kept)


def _append(graph: onnx.GraphProto, names: Sequence[str]) -> None:
    present = {value.name for value in graph.output}
    described = {value.name: value for value in graph.value_info}
    for name in names:
        if name not in present:
            # Onnx infers no type for an output that is also described as an inner value.
            value = add_output(graph, described.get(name, name), name)
            clear_shape(value)


def _names_in(group: str, is_value: Callable[[str], bool], graph_names: Collection[str]) -> list[str]:
    if is_value(group):
        return [group]
    prefix, colon, names = group.partition(":")
    is_tensor = is_value(group.partition(",")[0].strip())
    # A tensor may have a name such as `x:0`, so the prefix is a graph only if no such tensor exists.
    if colon and prefix not in graph_names and not is_tensor:
        raise refuse(
            f"extra_output_tensors: {group!r}",
            code="unknown_output",
            found=f"no tensor {group!r} and no graph {prefix!r}",
            expected="the name of a tensor that the model computes, or GRAPH:TENSOR",
            fix=f"graphs of the program: {listing(sorted(graph_names))}",
            context={"tensor": group, "graph": prefix},
        )
    if not colon or is_tensor:
        names = group
    return [name.strip() for name in names.split(",") if name.strip()]


def _ranks(specialized_model: onnx.ModelProto) -> dict[str, int]:
    """Map every value that fits a float or integer buffer to its rank."""
    ranks: dict[str, int] = {}
    for value in (*specialized_model.graph.value_info, *specialized_model.graph.output):
        try:
            spec = read_spec(value, "output")
        except CompileError:
            continue
        if spec.elem_type != BOOL:
            ranks[value.name] = len(spec.dims)
    return ranks


@compiler_pass(lambda context: context.options.extra_output_tensors)
def add_named_outputs_pass(model: Model, context: Context) -> None:
    """Turn requested results of inner operators into outputs."""
    options = context.options
    graph_names = {model.proto.graph.name, *(entry.name for entry in model.requested), *options.graph_names}
    was_cut = bool(options.output_node_names)
    add_named(model.proto, options.extra_output_tensors, graph_names, context.names, was_cut=was_cut)
    model.specialized = []


@compiler_pass(lambda context: context.options.all_intermediate_outputs)
def add_every_output_pass(model: Model, _: Context) -> None:
    """Turn the results of all operators into outputs."""
    add_every(model.proto, model.specialized)
    model.specialized = []


def prune_outputs(model: onnx.ModelProto, names: Sequence[str]) -> None:
    """Replace the outputs of a model by the named tensors; changes `model` in place.

    Outputs of the model keep their order and precede results of inner nodes in the order of the nodes. Unused
    nodes are removed, and inputs that only such nodes read. `validation.drop_unused` removes initializers.
    Without names, nothing changes. Raises CompileError if no node of the main graph computes a named tensor.
    """
    if not names:
        return
    graph = model.graph
    outputs = {value.name: value for value in graph.output}
    inner = {name: None for node in graph.node for name in node.output if name and name not in outputs}
    wanted = set(names)
    for name in names:
        if name not in outputs and name not in inner:
            raise unknown_result("output_node_names", graph, name, [*outputs, *inner])
    ordered = [name for name in (*outputs, *inner) if name in wanted]
    if ordered != list(dict.fromkeys(names)):
        warn(
            "outputs.order", f"output_node_names: outputs keep the order of the model: {listing(ordered, 20)}"
        )
    set_outputs(graph, ordered)
    _prune(graph)


def _prune(graph: onnx.GraphProto) -> None:
    """Remove the nodes that no output needs, and the inputs that only such nodes read."""
    read_before = set().union(*map(values_read_by, graph.node))
    needed = drop_unneeded_nodes(graph)
    unread = [value.name for value in graph.input if value.name in read_before - needed]
    for name in reversed(unread):
        note(
            "outputs.unused_input",
            f"output_node_names: input {name!r} is not needed for the outputs and was removed",
        )
    remove_inputs(graph, unread)


@compiler_pass()
def prune_outputs_pass(model: Model, context: Context) -> None:
    """Remove nodes that the requested outputs do not need, also inside functions."""
    # `_wanted` may replace the graph.
    wanted = _wanted(model, context)
    prune_outputs(model.proto, wanted)


def _wanted(model: Model, context: Context) -> Sequence[str]:
    """Find the requested outputs; functions are expanded if outputs are inside them."""
    names, wanted = context.names, context.options.output_node_names
    if names is None or not inside_functions(model.proto.graph, wanted):
        return wanted
    expand(model, names=names)
    graph = model.proto.graph
    computed = {name for node in graph.node for name in node.output}
    return [
        output
        for name in wanted
        for output in ([name] if name in computed else as_outputs(graph, name, names) or [name])
    ]
