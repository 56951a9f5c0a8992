"""``openqaic inspect MODEL graph -o graph.html``: a page with the drawn graph and tables of what it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from qaic import __version__
from qaic.errors import OptionError, StateError
from qaic.page.document import write_bytes
from qaic.page.graph.section import graph_page
from qaic.page.report_tables import table_html
from qaic.stats.reports.render.table import Column, Table
from qaic.support.text import counted

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from qaic.cli.openqaic.drawn_program import NodeTimes
    from qaic.page.graph import DrawnGraph
    from qaic.qpc import Qpc
    from qaic.stats.reports.render.table import Cell

#: inferences whose times are taken, after some that are not
_MEASURED: Final = 20
_WARM_UP: Final = 3
#: from this level on a program measures its operations
STATS_LEVEL: Final = 70


def check_output(output: Path | None, command: str) -> Path:
    """Return the file to write.

    Raises
    ------
    OptionError
        There is none, or its name is not that of a page.
    """
    if output is None:
        raise OptionError(
            "-o is missing: the graph is written to a page",
            code="inspect.output",
            hints=(f"`{command} -o graph.html` draws it",),
        )
    if output.suffix.lower() not in {".html", ".htm"}:
        raise OptionError(
            f"-o {output}: pages are HTML; a name that ends in .html is expected", code="inspect.output"
        )
    return output


def write_graph(qpc: Qpc, output: Path, *, title: str, timed: bool) -> DrawnGraph:
    """Write the page; it appears complete or not at all. Blocking: ``timed`` runs inferences.

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
    else:
        graph, tables = _of_program(qpc, timed=timed)
    title_of_tables = "Parts of the container" if qpc.graph is None else "Nodes"
    parts = [("tables", title_of_tables, "\n".join(map(table_html, tables)))]
    written = graph_page(graph, title=title, subtitle=_subtitle(qpc), parts=parts)
    write_bytes(output, written.encode())
    return graph


def _of_card(qpc: Qpc, *, timed: bool) -> tuple[DrawnGraph, list[Table]]:
    from qaic.cli.openqaic.drawn_card import drawn_card

    if timed:
        raise StateError(
            f"{qpc.path} is of a card: its container holds no graph whose nodes could have times",
            code="inspect.no_graph",
            hints=("leave --color time out; openqaic profile reports what a card measured",),
        )
    return drawn_card(qpc)


def _of_program(qpc: Qpc, *, timed: bool) -> tuple[DrawnGraph, list[Table]]:
    from qaic.cli.openqaic import program_graph
    from qaic.cli.openqaic.drawn_program import drawn_program

    model = program_graph.with_shapes(program_graph.read(qpc))
    times = measured_times(qpc) if timed else None
    graph = drawn_program(model, times)
    if timed:
        # What was asked for is seen first.
        graph.colorings.sort(key=lambda coloring: coloring.name != "time")
    return graph, [_nodes_table(program_graph.nodes(model), None if times is None else times.own_us)]


def measured_times(qpc: Qpc) -> NodeTimes:
    """Run inferences with random inputs. Blocking.

    Returns
    -------
    NodeTimes
        Medians of the inferences.

    Raises
    ------
    StateError
        The program does not measure its operations.
    """
    from qaic import Session
    from qaic.cli.openqaic.drawn_program import NodeTimes
    from qaic.runtime.benchmark import random_inputs
    from qaic.stats.reports.capture.groups import grouped, own_time_us
    from qaic.stats.reports.capture.op_info import Coded

    with Session(qpc) as session:
        inputs = session.model_input_shape_dict
        feeds = random_inputs(inputs, [shape for shape, _ in inputs.values()])
        for _ in range(_WARM_UP):
            session.run(feeds)
        session.setup()
        with session.profile() as profile:
            for _ in range(_MEASURED):
                session.run(feeds)
    capture = profile.capture()
    groups = (
        grouped(capture, lambda facts: Coded.of(facts.paths), {"time": own_time_us}) if profile.device else []
    )
    own_us = {group.key: group["time"] for group in groups if group.key}
    if not own_us:
        raise StateError(
            f"{qpc.path} does not measure its operations: it was compiled without statistics",
            code="inspect.not_measured",
            hints=(
                "give the .onnx file, which is compiled with statistics; or compile with --stats-level 70",
            ),
        )
    within: dict[str, str] = {}
    for facts in {id(reading.facts): reading.facts for reading in capture.each()}.values():
        for path, nodes in zip(facts.paths, facts.node_sets, strict=True):
            for node in nodes:
                within.setdefault(node, path)
    return NodeTimes(own_us, within)


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
