"""Names of the nodes of an instrumented program, and which nodes of the user's model they go back to.

The engine reports times by the names of nodes, and writes these names unescaped (stats-profiling §9.2): so
each needs one, no two may be the same, and a quotation mark or backslash would break the report. Passes of
the compiler replace nodes and add others. A node they add belongs to the node whose result it makes or, where
it is in between, to the one it works for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qaic.compiler.constness import node_key
from qaic.compiler.graph_walk import all_graphs, all_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import onnx


class NodeOrigins:
    """The nodes of a model before the passes of the compiler.

    Parameters
    ----------
    model : onnx.ModelProto
        Model without functions, in which every name means one value. Its nodes get their names.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        #: name in the graph -> name for the user: that of the model, or of the first result
        self._called: dict[str, str] = {}
        #: value -> name for the user of the node that computes it
        self._makers: dict[str, str] = {}
        taken: set[str] = set()
        for node in all_nodes(model.graph.node):
            called = node.name or node_key(node) or node.op_type
            node.name = _unique(called, taken)
            self._called[node.name] = called
            self._makers.update((name, called) for name in node.output if name)

    def settle(self, model: onnx.ModelProto) -> dict[str, tuple[str, ...]]:
        """Name the nodes of the model as the passes left it.

        Parameters
        ----------
        model : onnx.ModelProto
            The program's graph; nodes that passes have added or copied are renamed.

        Returns
        -------
        dict
            Name of a node -> the user's nodes that it does the work of, for every node; empty for one that
            works for none.
        """
        taken: set[str] = set()
        owners: dict[str, tuple[str, ...]] = {}
        for graph in all_graphs(model.graph):
            strangers = []
            for node in graph.node:
                called = self._called.get(node.name) if node.name else None
                made = [self._makers[name] for name in node.output if name in self._makers]
                if not made and called is None:
                    made = self._by_name(node)
                node.name = _unique(node.name or node_key(node) or node.op_type, taken)
                owners[node.name] = tuple(dict.fromkeys([*([called] if called else []), *made]))
                if not owners[node.name]:
                    strangers.append(node)
            if strangers:
                _adopt(graph, strangers, owners)
        return owners

    def _by_name(self, node: onnx.NodeProto) -> list[str]:
        """Find whose value an added value was named after: passes put ``/suffix`` behind it."""
        for name in node.output:
            base = name
            while "/" in base:
                base = base.rpartition("/")[0]
                if base in self._makers:
                    return [self._makers[base]]
        return []


def _adopt(
    graph: onnx.GraphProto, strangers: Iterable[onnx.NodeProto], owners: dict[str, tuple[str, ...]]
) -> None:
    """Give nodes without an owner that of a reader of their results, else that of a maker of their inputs."""
    readers: dict[str, list[str]] = {}
    makers: dict[str, str] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node.name)
        makers.update((name, node.name) for name in node.output if name)
    pending = list(strangers)
    for node in reversed(pending):
        beside = (reader for name in node.output for reader in readers.get(name, ()))
        owners[node.name] = _first(owners, beside)
    for node in pending:
        if not owners[node.name]:
            owners[node.name] = _first(owners, (makers[name] for name in node.input if name in makers))


def _first(owners: Mapping[str, tuple[str, ...]], names: Iterable[str]) -> tuple[str, ...]:
    return next((owners[name] for name in names if owners[name]), ())


def _unique(called: str, taken: set[str]) -> str:
    """Make a name that the engine's report can hold; registers it."""
    base = "".join(char if char.isprintable() and char not in '"\\' else "_" for char in called)
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}_{number}"
    taken.add(name)
    return name
