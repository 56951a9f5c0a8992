"""The drawn graph of a program, and the page of ``openqaic inspect MODEL graph``."""

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from qaic import __version__
from qaic.cli.graph_model import read_graph
from qaic.cli.openqaic import program_graph
from qaic.cli.openqaic.drawn_card import drawn_card
from qaic.cli.openqaic.node_errors import NodeErrors
from qaic.cli.openqaic.program import GRAPH, measured
from qaic.cli.openqaic.program_graph import is_constant, operations, value_types, with_shapes
from qaic.cli.openqaic.program_graph import nodes as listed
from qaic.compiler.frontend.files import opened
from qaic.compiler.frontend.files.onnx_file import OnnxFile
from qaic.compiler.ir.elem_types import type_name
from qaic.compiler.ir.graph_edits import register_initializer
from qaic.compiler.ir.graph_walk import read_values, subgraphs
from qaic.compiler.ir.precision import UNROUNDED, cast_target
from qaic.errors import OptionError, StateError
from qaic.model_path import open_model
from qaic.page.document import write_bytes
from qaic.page.graph import Coloring, DrawnGraph, DrawnNode, graph_page
from qaic.qpc import Qpc
from qaic.report import Cell, Column, Table
from qaic.report.html import table_html
from qaic.stats.reports.capture import Capture
from qaic.stats.reports.capture.groups import Sums
from qaic.stats.reports.capture.op_info import Coded, OpInfo
from qaic.support.text import counted, shape_text

#: most inputs, outputs and values of a small constant of a node on a page
_MOST_VALUES: Final = 16
#: most bytes of an attribute on a page
_LONGEST_ATTRIBUTE: Final = 200


@dataclass(frozen=True)
class NodeTimes:
    """Measured times of a program's nodes."""

    #: Name of a node -> microseconds of the operations that are named after it.
    own_us: Mapping[str, float]
    #: Name of a node -> the node that its operation is named after.
    within: Mapping[str, str]


def drawn_program(
    model: onnx.ModelProto,
    measured: NodeTimes | None = None,
    *,
    errors: Sequence[NodeErrors] = (),
    label: str = "",
) -> DrawnGraph:
    """Draw the graph of a program or of a user's model, which states the types of its values.

    `measured` has the times of the nodes, if they were measured, and `errors` their errors in some
    precisions; `label` is the name of the graph on a page with several. The casts with which the CPU device
    rounds the result of a node are drawn as a part of the node.
    """
    graph = model.graph
    rows = listed(model)
    types = value_types(model)
    listed_nodes = operations(graph)
    owners = _owners(listed_nodes)
    weights = _constants(graph)
    drawn = [
        DrawnNode(value.name, "input", [("type", " ".join(types.get(value.name, ("not known",))))])
        for value in graph.input
        if value.name not in weights
    ]
    precisions = [types.get(node.name, ("", ""))[0] for node in drawn]
    outputs: list[list[str]] = [[] for _ in drawn]
    made = {node.name: place for place, node in enumerate(drawn)}
    places: dict[int, int] = {}
    times: list[float | None] = [None] * len(drawn)
    edges: list[tuple[int, int, str]] = []
    for place, (node, row) in enumerate(zip(listed_nodes, rows, strict=True)):
        at = places.get(owners.get(place, -1), len(drawn))
        places[place] = at
        if at == len(drawn):
            drawn.append(DrawnNode(_name(node), row["operator"], _facts(node, row, weights)))
            outputs.append([name.partition(UNROUNDED)[0] for name in row["outputs"]])
            drawn[at].facts += [fact for one in errors for fact in one.facts(outputs[at])]
            precisions.append(row["precision"] or "")
            times.append(_time(drawn[at], measured))
            edges += _arrows(_read(node), made, at)
        elif cast_target(node):
            drawn[at].facts.append(("rounded to", row["precision"] or ""))
        made.update((name, at) for name in node.output if name)
    for value in graph.output:
        drawn.append(DrawnNode(value.name, "output", [("type", " ".join(types.get(value.name, ("",))))]))
        precisions.append(types.get(value.name, ("", ""))[0])
        outputs.append([])
        times.append(None)
        edges += _arrows([value.name], made, len(drawn) - 1)
    colorings = [Coloring("precision", precisions), Coloring("operator", [node.kind for node in drawn])]
    colorings += [coloring for one in errors for coloring in one.colorings(outputs)]
    notes = ["Constants are not drawn; the details of a node list those that it reads."] if weights else []
    if measured is not None:
        colorings.append(Coloring("time", amounts=times))
        notes.append(
            "Times are of the inference nearest to the medians. A node without a time runs as part of "
            "another, or is computed once: the engine fuses nodes and folds constants."
        )
    return DrawnGraph(drawn, edges, colorings, notes, label)


def _constants(graph: onnx.GraphProto) -> dict[str, str]:
    """Return the constants of a graph: name -> name, type, shape, and values if there are only a few."""
    values: dict[str, TensorProto | None] = {tensor.name: tensor for tensor in graph.initializer}
    for node in filter(is_constant, graph.node):
        tensor = next((item.t for item in node.attribute if item.name == "value"), None)
        values.update((name, tensor) for name in node.output)
    return {
        name: name if tensor is None else f"{name}, {_tensor_text(tensor)}" for name, tensor in values.items()
    }


def _tensor_text(tensor: TensorProto) -> str:
    text = f"{type_name(tensor.data_type)} {shape_text(tensor.dims)}"
    if math.prod(tensor.dims) > _MOST_VALUES or tensor.data_location == TensorProto.EXTERNAL:
        return text
    try:
        return f"{text}: {np.array2string(numpy_helper.to_array(tensor), separator=', ')}"
    except (ValueError, TypeError):
        return text


def _owners(nodes: Sequence[onnx.NodeProto]) -> dict[int, int]:
    """Return the casts that round the result of a node: index of the cast -> index of the node."""
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
    # The result before rounding has the name of the value with a suffix.
    return node.name or next((name.partition(UNROUNDED)[0] for name in node.output if name), "")


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """Return the names that a node reads, including those that its bodies capture."""
    yield from node.input
    for body in subgraphs(node):
        yield from sorted(read_values(body))


def _arrows(names: Iterable[str], made: Mapping[str, int], reader: int) -> list[tuple[int, int, str]]:
    known = dict.fromkeys(name for name in names if name in made)
    return [(made[name], reader, name) for name in known]


def _facts(node: onnx.NodeProto, row: Mapping[str, Any], weights: Mapping[str, str]) -> list[tuple[str, str]]:
    facts = [("precision", row["precision"] or "not known"), ("shape", row["shape"] or "not known")]
    if row["macs"]:
        facts.append(("MACs", f"{row['macs']:,}"))
    read = list(row["inputs"])
    facts += [
        ("constant", weights[name]) if name in weights else ("input", name) for name in read[:_MOST_VALUES]
    ]
    facts += [("output", name) for name in row["outputs"][:_MOST_VALUES]]
    facts += [(attribute.name, _attribute_text(attribute)) for attribute in node.attribute]
    return facts


def _attribute_text(attribute: onnx.AttributeProto) -> str:
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


def _time(node: DrawnNode, measured: NodeTimes | None) -> float | None:
    if measured is None:
        return None
    if node.name in measured.own_us:
        return measured.own_us[node.name]
    if (within := measured.within.get(node.name)) is not None:
        node.facts.append(("runs as part of", within))
    return None


def check_output(output: Path | None, command: str) -> Path:
    """Return the file to write. Raises OptionError if none is given."""
    if output is None:
        raise OptionError(
            "-o is missing: the graph needs an HTML page",
            code="inspect.output",
            hints=(f"`{command} -o graph.html` draws it",),
        )
    return output


def write_graph(qpc: Qpc, output: Path, *, title: str, timed: bool, model: Path | None = None) -> DrawnGraph:
    """Write the page atomically. Blocking: ``timed`` runs inferences.

    With `model`, the model that the program was compiled from, the page opens with the graph of the model,
    and a switch shows the program. Raises StateError if times are requested of a program without
    measurements, or the container contains containers, and OSError if the file cannot be written.
    """
    program_graph.check_program(qpc)
    if qpc.graph is None:
        graph, tables = _of_card(qpc, timed=timed)
        graphs = [graph]
    else:
        command = f"openqaic inspect {GRAPH} graph -o {shlex.quote(str(output))} --color time"
        graphs, tables = _of_program(qpc, model, command if timed else None)
    title_of_tables = "Parts of the container" if qpc.graph is None else "Nodes"
    parts = [("tables", title_of_tables, "\n".join(map(table_html, tables)))]
    written = graph_page(*graphs, title=title, subtitle=_subtitle(qpc), parts=parts)
    write_bytes(output, written.encode())
    return graphs[0]


def _of_card(qpc: Qpc, *, timed: bool) -> tuple[DrawnGraph, list[Table]]:
    if timed:
        raise StateError(
            f"{qpc.path} is a program for a card: its container has no graph with nodes to time",
            code="inspect.no_graph",
            hints=("omit --color time; a profile of measured files reports the times of a card",),
        )
    return drawn_card(qpc)


def _of_program(qpc: Qpc, model: Path | None, timing: str | None) -> tuple[list[DrawnGraph], list[Table]]:
    """Draw a program and its model; `timing` is the command that colors the graph in `GRAPH` by times."""
    times = (None, None) if timing is None else node_times(measured(qpc, again=[timing]))
    if times[1] is not None and not times[1].own_us:
        raise StateError(
            f"{qpc.path} has no times of operations; onnxruntime 1.25 or newer measures them",
            code="inspect.not_measured",
        )
    program = program_graph.with_shapes(read_graph(qpc))
    graphs = program_graphs(program, model, *times)
    own_us = None if times[1] is None else times[1].own_us
    return graphs, [_nodes_table(program_graph.nodes(program), own_us)]


def program_graphs(
    program: onnx.ModelProto,
    model: Path | None,
    of_nodes: NodeTimes | None,
    of_operations: NodeTimes | None,
    errors: Sequence[NodeErrors] = (),
) -> list[DrawnGraph]:
    """Draw a user's model, if given, and the program compiled from it; times are the first coloring."""
    graphs = [drawn_program(program, of_operations, errors=errors, label="program")]
    if model is not None:
        with opened(open_model(model)) as source:
            given = with_shapes(_with_weights(source))
        graphs.insert(0, drawn_program(given, of_nodes, errors=errors, label="model"))
    for graph in graphs:
        # The page opens with the first coloring.
        graph.colorings.sort(key=lambda coloring: of_nodes is not None and coloring.name != "time")
    return graphs


def _with_weights(source: OnnxFile) -> onnx.ModelProto:
    """Return a user's model with the types and shapes of its weights, without their data."""
    model = source.parse()
    for weight in source.weights.values():
        tensor = TensorProto(data_type=weight.elem_type, dims=weight.dims, data_location=TensorProto.EXTERNAL)
        register_initializer(model.graph, tensor, weight.name)
    return model


def node_times(capture: Capture) -> tuple[NodeTimes, NodeTimes]:
    """Return the times of one inference, by nodes of the user's model and by operations of the program."""
    capture = capture.typical

    def times(names: Callable[[OpInfo], list[str]]) -> NodeTimes:
        own_us = Sums(capture, lambda facts: Coded.of(names(facts))).of()
        within: dict[str, str] = {}
        for facts in {id(reading.facts): reading.facts for reading in capture.each()}.values():
            for name, nodes in zip(names(facts), facts.node_sets, strict=True):
                for node in nodes:
                    within.setdefault(node, name)
        return NodeTimes({name: time for name, time in own_us.items() if name}, within)

    return times(_first_nodes), times(lambda facts: facts.paths)


def _first_nodes(facts: OpInfo) -> list[str]:
    """Return the node that gets the time of each operation: the node in its name, or its first node."""
    return [
        path if path in nodes else nodes[0] for path, nodes in zip(facts.paths, facts.node_sets, strict=True)
    ]


def _nodes_table(rows: list[dict[str, Any]], times_us: Mapping[str, float] | None) -> Table:
    columns = [
        Column("node"), Column("operator"), Column("precision"), Column("shape"), Column("MACs", kind="int"),
    ]  # fmt: skip
    if times_us is not None:
        columns.append(Column("time", "us", "float"))
    found: list[tuple[Cell, ...]] = []
    shown, remark = program_graph.without_conversions(rows)
    for row in shown:
        name = row["node"] or next(iter(row["outputs"]), None)
        time = None if times_us is None else times_us.get(name or "")
        cells: tuple[Cell, ...] = (name, row["operator"], row["precision"], row["shape"], row["macs"])
        found.append(cells if times_us is None else (*cells, time))
    return Table("nodes", "Nodes in order", tuple(columns), found, f"{remark}." if remark else None)


def _subtitle(qpc: Qpc) -> str:
    info = qpc.program_info
    facts = [
        f"compiled for {'a card' if qpc.target == 'card' else 'the CPU device'}",
        counted(info.num_cores, "core"),
        *([f"{info.batch_size} samples per inference"] if info.batch_size > 1 else ()),
        f"openqaic {__version__}",
    ]
    return " \u00b7 ".join(facts)
