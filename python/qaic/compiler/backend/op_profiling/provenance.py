"""Finds the nodes that each operation of the engine computes after fusion and replacement of nodes.

The engine keeps the names of the values that remain. The nodes of an operation are therefore those between
its operands and its results in the original graph. The engine's names of nodes have many forms; they only
identify a value that has a new name.
"""

from collections.abc import Collection, Iterable
from typing import Final

import onnx

from qaic.compiler.ir.graph_edits import clone
from qaic.compiler.ir.graph_walk import (
    all_graphs,
    all_nodes,
    attribute_of,
    constant_names,
    consumers,
    node_label,
    producers,
    values_read_by,
)
from qaic.compiler.ir.model import Context, Model, compiler_pass

#: prefix of the name of a node that was fused late
_FUSED: Final = "fused "
#: part of the name of a node that computes `x * sigmoid(x)`; the rest is the name of the product
_SWISH: Final = "/QuickGeluFusion/"
#: suffix of the name of a value whose node got another layout
_LAID_OUT: Final = "_nchwc"
#: prefixes of operators that compute on integers and round the result themselves
_INTEGER: Final = "QLinear"
_ACTIVATIONS: Final = frozenset({"Clip", "Relu"})
#: index of the input of a convolution that is added to its result
_ADDED: Final = 3


class Origins:
    """Finds the original nodes of the engine's nodes.

    Each node of the original graph has a unique name. `optimized` is the engine's graph.
    """

    def __init__(self, graph: onnx.GraphProto, optimized: onnx.GraphProto) -> None:
        nodes = list(all_nodes(graph.node))
        self._order = {node.name: number for number, node in enumerate(nodes)}
        self._by_name = {node.name: node for node in nodes}
        self._lengths = sorted({len(name) for name in self._order}, reverse=True)
        self._makers = producers(nodes)
        #: the values that nodes of the given graph compute
        self.values = self._makers.keys()
        self._readers = consumers(nodes)
        #: the engine's nodes in the order of the graph; nodes of a nested graph follow the node that contains
        #: it
        self.engine_nodes = list(all_nodes(optimized.node))
        self._given = {name for node in self.engine_nodes for name in node.output}
        for inner in all_graphs(optimized):
            self._given.update(value.name for value in inner.input)
            self._given |= constant_names(inner)
        #: new name of a value that the engine renamed -> its name before
        self.renamed: dict[str, str] = {}
        #: for each engine node, the names of the nodes that it computes, in their order
        self.computed: list[list[str]] = self._trace()

    def main_origin(self, place: int) -> str | None:
        """Return the node that an engine's node is named after; None if there is none."""
        return self._named(self.engine_nodes[place], self.computed[place])

    def _trace(self) -> list[list[str]]:
        nodes = self.engine_nodes
        renamed = self.renamed
        for node in nodes:
            base = node.name.removesuffix(_LAID_OUT)
            if base != node.name and base in self._makers and node.output[0] not in self._makers:
                renamed[node.output[0]] = self._with_sum(node, base)
            elif node.output[0] not in self._makers:
                value = self._named_result(node)
                if value is not None:
                    renamed[node.output[0]] = value
        self._given.update(renamed.values())
        readers: dict[str, list[int]] = {}
        for place, node in enumerate(nodes):
            for name in values_read_by(node):
                readers.setdefault(name, []).append(place)
        found: list[list[str]] = [[] for _ in nodes]
        # Readers of a result are visited before its producer.
        for place in reversed(range(len(nodes))):
            node = nodes[place]
            values = [name for name in node.output if name]
            made = [renamed.get(name, name) for name in values]
            names = self._without_inputs(self._between([name for name in made if name in self._makers]))
            if not names:
                # A node that only changes the layout counts for the first reader of its result.
                beside = (found[reader] for value in values for reader in readers.get(value, ()))
                names = next((others for others in beside if others), [])
            main_origin = self._named(node, names)
            if not names and main_origin is not None:
                names = [main_origin]
            found[place] = sorted(set(names), key=self._order.__getitem__)
        return found

    def _with_sum(self, node: onnx.NodeProto, value: str) -> str:
        """Return the result of a convolution that also adds a value and applies an activation.

        The engine still names the operation after the product.
        """
        if len(node.input) <= _ADDED or not node.input[_ADDED]:
            return value
        added = self.renamed.get(node.input[_ADDED], node.input[_ADDED])
        sums = [reader for reader in self._readers.get(value, ()) if added in reader.input]
        if len(sums) != 1:
            return value
        value = sums[0].output[0]
        kind = attribute_of(node, "activation", b"").decode()
        activations = [reader for reader in self._readers.get(value, ()) if reader.op_type == kind]
        return activations[0].output[0] if activations else value

    def _named_result(self, node: onnx.NodeProto) -> str | None:
        """Return the result of the node that an engine's node is named after; None if there is none.

        The engine renames the results of nodes whose layout it changes. For an integer node, the result is
        the rounded one.
        """
        source = self._by_name.get(self._named(node, ()) or "")
        if source is None:
            return None
        value = source.output[0]
        if not node.op_type.startswith(_INTEGER):
            return value if node.name == source.name or _SWISH in node.name else None
        for _ in range(2):
            readers = self._readers.get(value, ())
            if len(readers) != 1:
                return None
            value = readers[0].output[0]
            if readers[0].op_type == "QuantizeLinear":
                return value
            if readers[0].op_type not in _ACTIVATIONS:
                return None
        return None

    def _without_inputs(self, names: list[str]) -> list[str]:
        """Omit nodes that dequantize integers which another operation has computed."""
        kept = [
            name
            for name in names
            if self._by_name[name].op_type != "DequantizeLinear"
            or self._by_name[name].input[0] not in self._given
        ]
        return kept or names

    def _between(self, values: Iterable[str]) -> list[str]:
        """List the nodes that compute some values from values that the engine has."""
        names: list[str] = []
        pending = list(values)
        seen: set[str] = set()
        while pending:
            maker = self._makers.get(pending.pop())
            if maker is None or maker.name in seen:
                continue
            seen.add(maker.name)
            names.append(maker.name)
            pending.extend(name for name in values_read_by(maker) if name not in self._given)
        return names

    def _named(self, node: onnx.NodeProto, among: Collection[str]) -> str | None:
        """Find the longest prefix of a name of a node, among some names, or all if there are none."""
        name = node.name.removeprefix(_FUSED)
        wanted: Collection[str] = set(among) or self._order
        for end in self._lengths:
            if end > len(name) or name[:end] not in wanted:
                continue
            # `conv1` is not a prefix of the name `conv10`.
            if end == len(name) or not (name[end].isalnum() and name[end - 1].isalnum()):
                return name[:end]
        return None


class NodeProvenance:
    """The nodes of a model before the passes of the compiler.

    The model has no functions, and every name in it means one value. Nodes without names get one.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        #: name in the graph -> name for the user: the node's name in the model, or its first result
        self._called: dict[str, str] = {}
        names = _Names()
        for node in all_nodes(model.graph.node):
            called = _called(node)
            node.name = names.make(called)
            self._called[node.name] = called
        self._graph = clone(model.graph)

    def owners(self, model: onnx.ModelProto) -> dict[str, tuple[str, ...]]:
        """Name the nodes of the model after the passes.

        Renames nodes that passes have added or copied. Returns a map from the name of a node to the user's
        nodes that it computes; empty if it computes none.
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
    return node_label(node) or node.op_type


class _Names:
    """Creates unique names that the engine's report can contain."""

    def __init__(self) -> None:
        #: name -> number of requests for it
        self._taken: dict[str, int] = {}

    def make(self, called: str) -> str:
        base = "".join(char if char.isprintable() and char not in '"\\' else "_" for char in called)
        name = base
        while name in self._taken:
            self._taken[base] += 1
            name = f"{base}_{self._taken[base]}"
        self._taken[name] = 1
        return name


@compiler_pass(lambda context: context.measures_operations)
def record_provenance_pass(model: Model, _: Context) -> None:
    """Record the nodes of the user's model if operations are measured."""
    model.provenance = NodeProvenance(model.proto).owners
