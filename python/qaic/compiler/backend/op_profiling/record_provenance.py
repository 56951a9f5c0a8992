"""Names of the nodes of an instrumented program, and which nodes of the user's model they go back to.

The engine reports times by the names of nodes, and writes these names unescaped: so
each needs one, no two may be the same, and a quotation mark or backslash would break the report. Passes of
the compiler replace nodes and add others; what these compute for the user's is found as it is found for the
engine's nodes.
"""

from __future__ import annotations

import onnx

from qaic.compiler.backend.op_profiling.provenance import Origins
from qaic.compiler.ir.constants.propagation import node_key
from qaic.compiler.ir.context import Context
from qaic.compiler.ir.graph_walk import all_nodes
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.pass_contract import WhenMeasuringOperations


class NodeProvenance:
    """The nodes of a model before the passes of the compiler.

    Parameters
    ----------
    model : onnx.ModelProto
        Model without functions, in which every name means one value. Its nodes get their names.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        #: name in the graph -> name for the user: that of the model, or of the first result
        self._called: dict[str, str] = {}
        names = _Names()
        for node in all_nodes(model.graph.node):
            called = _called(node)
            node.name = names.make(called)
            self._called[node.name] = called
        self._graph = type(model.graph)()
        self._graph.CopyFrom(model.graph)

    def owners(self, model: onnx.ModelProto) -> dict[str, tuple[str, ...]]:
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
        names = _Names()
        for node in all_nodes(model.graph.node):
            node.name = names.make(_called(node))
        found = Origins(self._graph, model.graph)
        return {
            node.name: tuple(dict.fromkeys(self._called[name] for name in computed))
            for node, computed in zip(found.engine_nodes, found.computed, strict=True)
        }


def _called(node: onnx.NodeProto) -> str:
    return node.name or node_key(node) or node.op_type


class _Names:
    """Makes names that the engine's report can hold, each once."""

    def __init__(self) -> None:
        #: name -> how often it was asked for
        self._taken: dict[str, int] = {}

    def make(self, called: str) -> str:
        base = "".join(char if char.isprintable() and char not in '"\\' else "_" for char in called)
        name = base
        while name in self._taken:
            self._taken[base] += 1
            name = f"{base}_{self._taken[base]}"
        self._taken[name] = 1
        return name


class RecordProvenance(WhenMeasuringOperations):
    """Remember the nodes of the user's model, where operations are measured."""

    name = "record-provenance"

    def run(self, model: Model, context: Context) -> bool:
        """Name the nodes."""
        del context
        model.provenance = NodeProvenance(model.proto)
        return True
