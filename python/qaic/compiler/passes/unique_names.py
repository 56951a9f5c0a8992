"""One name, one value: renaming what two nested graphs call the same.

Branches that are never alive together may use a name twice for different values. Passes that keep facts by
name need every name of a model to mean one value.
"""

from collections.abc import Iterable, Mapping

import onnx

from qaic.compiler.ir.context import Context
from qaic.compiler.ir.graph_edits import rename_declared, rename_operands
from qaic.compiler.ir.graph_walk import FreshNames, subgraphs
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.pass_contract import compiler_pass


def make_names_unique(graph: onnx.GraphProto, constants: Iterable[str]) -> None:
    """Rename values of nested graphs whose name is used for another value already; changes `graph`.

    Names of the main graph stay; `constants` are those that are not in it, the weights.
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
    rename_declared(graph, renamed)
    for node in graph.node:
        rename_operands(node, renamed)
        for inner in subgraphs(node):
            _separate(inner, renamed, taken, fresh)


def _defined(graph: onnx.GraphProto) -> list[str]:
    """List the names a graph gives to values, each once, in order."""
    names = dict.fromkeys(value.name for value in graph.input)
    names |= dict.fromkeys(tensor.name for tensor in graph.initializer)
    names |= dict.fromkeys(tensor.values.name for tensor in graph.sparse_initializer)
    names |= dict.fromkeys(name for node in graph.node for name in node.output if name)
    return list(names)


@compiler_pass()
def unique_names_pass(model: Model, _: Context) -> bool:
    """Give every value of every graph a name of its own."""
    make_names_unique(model.proto.graph, model.weights)
    return True
