"""``openqaic inspect MODEL graph -o graph.html``: a page with the drawn graph and tables of what it shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qaic import __version__
from qaic.errors import OptionError, StateError
from qaic.page.document import write_bytes
from qaic.page.graph import DrawnGraph, graph_page
from qaic.page.report_tables import table_html
from qaic.qpc import Qpc
from qaic.stats.reports.capture.op_info import OpInfo
from qaic.stats.reports.table import Cell, Column, Table
from qaic.support.text import counted

if TYPE_CHECKING:
    import onnx

    from qaic.cli.openqaic.drawn_program import NodeTimes
    from qaic.stats.reports.capture import Capture


def check_output(output: Path | None, command: str) -> Path:
    """Return the file to write.

    Raises
    ------
    OptionError
        There is none.
    """
    if output is None:
        raise OptionError(
            "-o is missing: the graph is written to a page",
            code="inspect.output",
            hints=(f"`{command} -o graph.html` draws it",),
        )
    return output


def write_graph(qpc: Qpc, output: Path, *, title: str, timed: bool, model: Path | None = None) -> DrawnGraph:
    """Write the page; it appears complete or not at all. Blocking: ``timed`` runs inferences.

    Parameters
    ----------
    model
        The model that the program was compiled from. The page then opens with its graph, and a switch shows
        the program.

    Raises
    ------
    StateError
        Times are wanted of a program that measures none, or the container is one of containers.
    OSError
        The file cannot be written.
    """
    if not qpc.is_program:
        raise StateError(
            f"{qpc.path} is a container of containers, one for each device",
            code="inspect.slices",
            hints=("extract them with qaic-qpc extract, and inspect each",),
        )
    if qpc.graph is None:
        graph, tables = _of_card(qpc, timed=timed)
        graphs = [graph]
    else:
        graphs, tables = _of_program(qpc, model, timed=timed)
    title_of_tables = "Parts of the container" if qpc.graph is None else "Nodes"
    parts = [("tables", title_of_tables, "\n".join(map(table_html, tables)))]
    written = graph_page(*graphs, title=title, subtitle=_subtitle(qpc), parts=parts)
    write_bytes(output, written.encode())
    return graphs[0]


def _of_card(qpc: Qpc, *, timed: bool) -> tuple[DrawnGraph, list[Table]]:
    from qaic.cli.openqaic.drawn_card import drawn_card

    if timed:
        raise StateError(
            f"{qpc.path} is of a card: its container holds no graph whose nodes could have times",
            code="inspect.no_graph",
            hints=("leave --color time out; openqaic profile reports what a card measured",),
        )
    return drawn_card(qpc)


def _of_program(qpc: Qpc, model: Path | None, *, timed: bool) -> tuple[list[DrawnGraph], list[Table]]:
    from qaic.cli.openqaic import program_graph
    from qaic.cli.openqaic.measurement import measured
    from qaic.cli.qpc.graph_model import read_graph

    times = node_times(measured(qpc)) if timed else (None, None)
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
    program: onnx.ModelProto, model: Path | None, of_nodes: NodeTimes | None, of_operations: NodeTimes | None
) -> list[DrawnGraph]:
    """Draw a user's model, if there is one, and the program that was compiled from it; times come first."""
    from qaic.cli.compile.model_input import open_model
    from qaic.cli.openqaic.drawn_program import drawn_program
    from qaic.cli.openqaic.program_graph import with_shapes
    from qaic.compiler.driver import opened

    graphs = [drawn_program(program, of_operations, label="program")]
    if model is not None:
        with opened(open_model(model)) as source:
            graphs.insert(0, drawn_program(with_shapes(source.parse()), of_nodes, label="model"))
    for graph in graphs:
        # The page opens with the first coloring.
        graph.colorings.sort(key=lambda coloring: of_nodes is not None and coloring.name != "time")
    return graphs


def node_times(capture: Capture) -> tuple[NodeTimes, NodeTimes]:
    """Return median times, by nodes of the user's model and by operations of the program."""
    from qaic.cli.openqaic.drawn_program import NodeTimes
    from qaic.stats.reports.capture.groups import grouped, own_time_us
    from qaic.stats.reports.capture.op_info import Coded

    def times(names: Callable[[OpInfo], list[str]]) -> NodeTimes:
        groups = grouped(capture, lambda facts: Coded.of(names(facts)), {"time": own_time_us})
        within: dict[str, str] = {}
        for facts in {id(reading.facts): reading.facts for reading in capture.each()}.values():
            for name, nodes in zip(names(facts), facts.node_sets, strict=True):
                for node in nodes:
                    within.setdefault(node, name)
        return NodeTimes({group.key: group["time"] for group in groups if group.key}, within)

    return times(_first_nodes), times(lambda facts: facts.paths)


def _first_nodes(facts: OpInfo) -> list[str]:
    """Return the node of each operation that has its time: the one that it is named after, or its first."""
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
    for row in rows:
        name = row["node"] or next(iter(row["outputs"]), None)
        time = None if times_us is None else times_us.get(name or "")
        cells: tuple[Cell, ...] = (name, row["operator"], row["precision"], row["shape"], row["macs"])
        found.append(cells if times_us is None else (*cells, time))
    return Table("nodes", "Nodes in order", tuple(columns), found)


def _subtitle(qpc: Qpc) -> str:
    info = qpc.program_info
    facts = [
        f"compiled for {'a card' if qpc.target == 'card' else 'the cpu device'}",
        counted(info.num_cores, "core"),
        f"batch {info.batch_size}",
        f"openqaic {__version__}",
    ]
    return " \u00b7 ".join(facts)
