"""Options that name values of the model, translated to names of the expanded graph."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import onnx

from qaic.compiler.diagnostics.messages import listing, refuse, warn
from qaic.compiler.ir.graph_edits import rename_declared, rename_values
from qaic.compiler.ir.graph_walk import value_names
from qaic.compiler.ir.inlined_names import InlinedNames
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.compiler.ir.precision import has_node_options
from qaic.errors import CompileError
from qaic.options.files.node_precision import NodePrecision
from qaic.options.table import CompileOptions
from qaic.support.text import nearest_name


def name_values(options: CompileOptions) -> bool:
    """Return True if an option may name a value inside a function."""
    return bool(
        options.node_precision_info_file is not None
        or options.exclude_mxfp6_matmul
        or options.output_node_names
        or options.extra_output_tensors
    )


def in_expanded_graph(
    options: CompileOptions, names: InlinedNames | None, exact: Sequence[str] = ()
) -> CompileOptions:
    """Replace the names of nodes in options by the names of the values that these compute.

    `names` is None if no option needs them; `exact` values always stay in float32. Raises CompileError if the
    model has none of the names of a precision file.
    """
    if names is None:
        return options
    lists = options.node_precision_info_file
    if lists is not None:
        found = {name: names.find(name) for name in (*lists.fp16, *lists.fp32)}
        _tell_missing([name for name, values in found.items() if not values], len(found), names)
        resolved = NodePrecision(_values(found, lists.fp16), _values(found, lists.fp32))
        options = replace(options, node_precision_info_file=resolved)
    if options.exclude_mxfp6_matmul:
        # Names of nodes stay, because options also accept them.
        excluded = {name: names.find(name) or [name] for name in options.exclude_mxfp6_matmul}
        options = replace(options, exclude_mxfp6_matmul=_values(excluded, excluded))
    if exact and has_node_options(options):
        lists = options.node_precision_info_file or NodePrecision()
        kept = _values({name: names.find(name) or [name] for name in exact}, exact)
        half = tuple(name for name in lists.fp16 if name not in set(kept))
        options = replace(options, node_precision_info_file=NodePrecision(half, (*lists.fp32, *kept)))
    return options


def inside_functions(graph: onnx.GraphProto, items: Sequence[str]) -> bool:
    """Return True if the main graph itself does not compute every listed output.

    An item may contain several names, as `extra_outputs.add_named` describes.
    """
    computed = {name for node in graph.node for name in node.output}
    return any(
        name.strip() and name.strip() not in computed and name.partition(":")[2].strip() not in computed
        for item in items
        if item not in computed
        for name in re.split("[;,]", item)
    )


def as_outputs(graph: onnx.GraphProto, name: str, names: InlinedNames) -> list[str]:
    """Find the values with a name, and give each a name that is valid for an output.

    Values inside functions are renamed to ``call/value`` in the graph. The name has any of the forms of
    `inlined_names`. Returns the values in the order of the graph; empty if there are none.
    """
    titles = names.titles(name)
    values = [value for node in graph.node for value in node.output if value in titles]
    wanted = {value: titles[value] for value in values if titles[value] != value}
    taken = value_names(graph) if wanted else set()
    given = {value: title for value, title in wanted.items() if title not in taken}
    if given:
        rename_values(graph.node, given)
        rename_declared(graph, given)
        names.rename(given)
    return [given.get(value, value) for value in values]


def _values(found: dict[str, list[str]], named: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value for name in named for value in found[name]))


def _tell_missing(missing: list[str], count: int, names: InlinedNames) -> None:
    """Warn about names without a value, or refuse a list that has only such names."""
    if missing and len(missing) == count:
        known = list(names.known())
        near = nearest_name(missing[0], known)
        raise refuse(
            "the names of node_precision_info_file",
            code="unknown_nodes",
            found=f"no node of the model among {listing(missing)}",
            expected=f"names of the outputs of nodes, such as {repr(near) if near else listing(known, 3)}",
            fix="names of nodes are not accepted; `openqaic inspect MODEL nodes` lists the outputs of nodes",
            context={"names": missing[:100]},
        )
    if missing:
        warn(
            "options.unknown_nodes",
            f"node_precision_info_file: {len(missing)} of {count} names are not the output of a node: "
            f"{listing(missing)}",
        )


@compiler_pass()
def translate_names_pass(_: Model, context: Context) -> None:
    """Translate names in options to values of the expanded graph."""
    context.options = in_expanded_graph(context.options, context.names, context.exact)


def unknown_result(
    option: str, graph: onnx.GraphProto, name: str, known: list[str], fix: str = ""
) -> CompileError:
    """Return the error that no node of the main graph computes a tensor with this name.

    `known` are candidates for a suggestion, and `fix` is the hint if the name is neither an input nor a node.
    """
    named = next((node for node in graph.node if node.name == name), None)
    if any(value.name == name for value in graph.input):
        fix = "the name is an input of the model"
    elif named is not None:
        fix = f"the name is that of a node; its results are {listing(list(named.output))}"
    elif not fix:
        close = nearest_name(name, known)
        fix = f"did you mean {close!r}?" if close else f"results of the model: {listing(known, 20)}"
    return refuse(
        f"{option}: {name!r}",
        code="unknown_output",
        found="no result of a node of the main graph with that name",
        expected="the name of a tensor that the model computes",
        fix=fix,
        context={"tensor": name},
    )
