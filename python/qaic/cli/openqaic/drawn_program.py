"""The graph of a program as it is drawn: inputs, nodes with what they compute in and take, outputs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import onnx

from qaic.cli.openqaic.program_graph import is_constant, operations, value_types
from qaic.cli.openqaic.program_graph import nodes as listed
from qaic.compiler.backend.op_profiling.node_precisions import UNROUNDED
from qaic.compiler.ir.graph_walk import read_values, subgraphs
from qaic.compiler.ir.precision_ops import cast_target
from qaic.page.graph import Coloring, DrawnGraph, DrawnNode
from qaic.support.text import counted

#: inputs and outputs of a node that a page names
_MOST_VALUES: Final = 16
#: bytes of an attribute that a page shows
_LONGEST_ATTRIBUTE: Final = 200


@dataclass(frozen=True)
class NodeTimes:
    """Measured times of a program's nodes.

    Parameters
    ----------
    own_us
        Microseconds by the name of a node: of the operations that are named after it.
    within
        Name of a node -> the node that the operation is named after which does its work.
    """

    own_us: Mapping[str, float]
    within: Mapping[str, str]


def drawn_program(
    model: onnx.ModelProto, measured: NodeTimes | None = None, *, label: str = ""
) -> DrawnGraph:
    """Draw a graph.

    Parameters
    ----------
    model
        Graph of a program or of a user's model, with the types of its values.
    measured
        Times of the nodes; None where nothing was measured.
    label
        Name of the graph on a page with several.

    Notes
    -----
    The casts with which the cpu device rounds the result of a node are drawn as a part of the node.
    """
    graph = model.graph
    rows = listed(model)
    types = value_types(model)
    listed_nodes = operations(graph)
    owners = _owners(listed_nodes)
    weights = {tensor.name for tensor in graph.initializer}
    weights.update(name for node in graph.node if is_constant(node) for name in node.output)
    drawn = [
        DrawnNode(value.name, "input", [("type", " ".join(types.get(value.name, ("not known",))))])
        for value in graph.input
        if value.name not in weights
    ]
    precisions = [types.get(node.name, ("", ""))[0] for node in drawn]
    made = {node.name: place for place, node in enumerate(drawn)}
    places: dict[int, int] = {}
    times: list[float | None] = [None] * len(drawn)
    edges: list[tuple[int, int, str]] = []
    for place, (node, row) in enumerate(zip(listed_nodes, rows, strict=True)):
        at = places.get(owners.get(place, -1), len(drawn))
        places[place] = at
        if at == len(drawn):
            drawn.append(DrawnNode(_name(node), row["operator"], _facts(node, row, weights)))
            precisions.append(row["precision"] or "")
            times.append(_time(drawn[at], measured))
            edges += _arrows(_read(node), made, at)
        else:
            _fold(drawn[at], node, row)
        made.update((name, at) for name in node.output if name)
    for value in graph.output:
        drawn.append(DrawnNode(value.name, "output", [("type", " ".join(types.get(value.name, ("",))))]))
        precisions.append(types.get(value.name, ("", ""))[0])
        times.append(None)
        edges += _arrows([value.name], made, len(drawn) - 1)
    colorings = [
        Coloring("precision", precisions),
        Coloring("operator", [node.kind for node in drawn]),
    ]
    notes = ["Constants are not drawn; the facts of a node name those that it reads."] if weights else []
    if measured is not None:
        colorings.append(Coloring("time", amounts=times))
        notes.append(
            "Times are medians. A node without a time runs as a part of another, or is computed once: the "
            "engine fuses nodes and folds constants."
        )
    return DrawnGraph(drawn, edges, colorings, notes, label)


def _owners(nodes: Sequence[onnx.NodeProto]) -> dict[int, int]:
    """Return which casts round the result of a node: place of the cast -> place of the node."""
    producer = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    owners: dict[int, int] = {}
    for place, node in enumerate(nodes):
        if node.op_type != "Cast" or not node.output:
            continue
        narrow = producer.get(node.input[0])
        if narrow is None or not cast_target(nodes[narrow]):
            continue
        source = nodes[narrow].input[0]
        owner = producer.get(source)
        if owner is not None and source.startswith(f"{node.output[0]}{UNROUNDED}"):
            owners[narrow] = owners[place] = owner
    return owners


def _name(node: onnx.NodeProto) -> str:
    # The result of a node that is rounded has the name of the value with a suffix.
    return node.name or next((name.partition(UNROUNDED)[0] for name in node.output if name), "")


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """Names that a node reads, those that its bodies capture included."""
    yield from node.input
    for body in subgraphs(node):
        yield from sorted(read_values(body))


def _arrows(names: Iterable[str], made: Mapping[str, int], reader: int) -> list[tuple[int, int, str]]:
    known = dict.fromkeys(name for name in names if name in made)
    return [(made[name], reader, name) for name in known]


def _facts(node: onnx.NodeProto, row: Mapping[str, Any], weights: set[str]) -> list[tuple[str, str]]:
    facts = [("precision", row["precision"] or "not known"), ("shape", row["shape"] or "not known")]
    if row["macs"]:
        facts.append(("MACs", f"{row['macs']:,}"))
    read = list(row["inputs"])
    facts += [("constant" if name in weights else "input", name) for name in read[:_MOST_VALUES]]
    facts += [("output", name) for name in row["outputs"][:_MOST_VALUES]]
    facts += [(attribute.name, _attribute_text(attribute)) for attribute in node.attribute]
    return facts


def _attribute_text(attribute: onnx.AttributeProto) -> str:
    from onnx import AttributeProto, helper

    if attribute.type in {AttributeProto.GRAPH, AttributeProto.GRAPHS}:
        bodies = [attribute.g, *attribute.graphs][: 1 if attribute.type == AttributeProto.GRAPH else None]
        return ", ".join(f"a body of {counted(len(body.node), 'node')}" for body in bodies)
    if attribute.ByteSize() > _LONGEST_ATTRIBUTE:
        return f"{attribute.ByteSize()} bytes"
    try:
        value = helper.get_attribute_value(attribute)
    except ValueError:
        return "not known"
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, int | float):
        return str(value)
    if attribute.type in {AttributeProto.INTS, AttributeProto.FLOATS, AttributeProto.STRINGS}:
        return str(list(value))
    return AttributeProto.AttributeType.Name(attribute.type).lower().replace("_", " ")


def _fold(owner: DrawnNode, node: onnx.NodeProto, row: Mapping[str, Any]) -> None:
    if cast_target(node):
        owner.facts.append(("rounded to", row["precision"] or ""))


def _time(node: DrawnNode, measured: NodeTimes | None) -> float | None:
    if measured is None:
        return None
    if node.name in measured.own_us:
        return measured.own_us[node.name]
    if (within := measured.within.get(node.name)) is not None:
        node.facts.append(("runs as a part of", within))
    return None
