"""Cuts a model to the requested outputs (`output_node_names`)."""

from collections.abc import Sequence

import onnx

from qaic.compiler.diagnostics.compile_error import listing
from qaic.compiler.diagnostics.record import note, warn
from qaic.compiler.frontend.value_options import as_outputs, inside_functions, unknown_result
from qaic.compiler.ir.context import Context, compiler_pass
from qaic.compiler.ir.graph_edits import drop_unneeded_nodes, remove_inputs, set_outputs
from qaic.compiler.ir.graph_walk import values_read_by
from qaic.compiler.ir.model import Model
from qaic.compiler.passes.inlining import expand


def prune_outputs(model: onnx.ModelProto, names: Sequence[str]) -> None:
    """Make the named tensors the outputs of a model; changes `model` in place.

    Outputs of the model come first and in its order, then results of inner nodes in the order of the nodes.
    Unused nodes are removed, with the inputs that only they read. Initializers stay; see
    `validation.drop_unused`. Without names the model stays as it is. Raises CompileError if a name is no
    result of a node of the main graph.
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
            "outputs.order",
            "output_node_names: outputs keep the order of the model: %s",
            listing(ordered, 20),
        )
    set_outputs(graph, ordered)
    _prune(graph)


def _prune(graph: onnx.GraphProto) -> None:
    """Drop the nodes that no output needs, and the inputs that only such nodes read."""
    read_before = set().union(*map(values_read_by, graph.node))
    needed = drop_unneeded_nodes(graph)
    unread = [value.name for value in graph.input if value.name in read_before - needed]
    for name in reversed(unread):
        note(
            "outputs.unused_input",
            "output_node_names: input %r is not needed for the outputs and was removed",
            name,
        )
    remove_inputs(graph, unread)


@compiler_pass()
def prune_outputs_pass(model: Model, context: Context) -> bool:
    """Remove nodes that the requested outputs do not need, also inside functions."""
    # Finding them may replace the graph.
    wanted = _wanted(model, context)
    prune_outputs(model.proto, wanted)
    return True


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
