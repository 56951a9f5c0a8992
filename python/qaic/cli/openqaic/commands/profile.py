"""``openqaic profile MODEL -o page.html``: measures the operators of a model."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from qaic import page
from qaic.cli import console
from qaic.cli.console import SUCCESS, Parser, print_line, print_message, print_reports, print_text, text_width
from qaic.cli.graph_model import read_graph
from qaic.cli.openqaic.arguments import (
    add_device,
    add_inputs,
    add_json,
    add_model,
    add_warm_up,
    count,
    device_options,
    pixels_of,
    set_examples,
)
from qaic.cli.openqaic.commands.compile import Program
from qaic.cli.openqaic.compile_options import add_compile_options, for_model, next_command
from qaic.cli.openqaic.drawn_program import node_times, program_graphs
from qaic.cli.openqaic.node_errors import NodeErrors, read_errors
from qaic.cli.openqaic.program import (
    GRAPH,
    STATS_LEVEL,
    check_page,
    files_of,
    measured,
    open_program,
    wrote,
)
from qaic.cli.openqaic.program_graph import with_shapes
from qaic.cli.stored_weights import bandwidth_limit, stored_weights
from qaic.compiler.diagnostics.messages import listing
from qaic.errors import OptionError
from qaic.page.graph import DrawnGraph
from qaic.qpc import Qpc
from qaic.report import Table, columns_of
from qaic.report.files import rendered
from qaic.stats.reports import REPORTS, Report, diff
from qaic.stats.reports.capture import Capture
from qaic.support.program_names import QPC_FILE_NAME
from qaic.support.text import bytes_text, counted, duration

_SHOWN: Final = ("overview", "ops", "nodes")


def add_arguments(parser: Parser) -> None:
    add_model(parser)
    parser.add_argument(
        "-o", "--output", metavar="PAGE.html", type=Path, help="page to write (default: text on the terminal)"
    )
    add_inputs(parser)
    parser.add_argument(
        "-n", "--num-iter", type=count, default=20, metavar="N", help="inferences (default: %(default)s)"
    )
    add_warm_up(parser, 3)
    parser.add_argument(
        "--against",
        metavar="MODEL",
        type=Path,
        help="baseline: another model, or a container with statistics",
    )
    parser.add_argument(
        "--errors",
        metavar="FILE",
        type=Path,
        help="result of `openqaic accuracy --json FILE`: the page also colors the graph by error",
    )
    add_device(parser)
    add_json(parser)
    add_compile_options(parser)
    set_examples(
        parser,
        "openqaic profile model.onnx -o page.html",
        "openqaic profile model.onnx --convert-to-fp16",
        "openqaic profile model.onnx --json > reports.json",
        "openqaic profile new.onnx --against old.onnx -o page.html",
        "openqaic profile model.onnx --convert-to-fp16 --errors fp16.json -o page.html",
    )


def run(arguments: argparse.Namespace) -> int:
    """Compile with measurements of operators, run, and report."""
    given = [arguments.model] if arguments.errors is None else [arguments.model, arguments.errors]
    check_page(arguments.output, read=[*given, *files_of(arguments.inputs)])
    # The next command is created before this command adds its default level of statistics.
    more = [] if arguments.against is None else ["--against", str(arguments.against)]
    more += [] if arguments.errors is None else ["--errors", str(arguments.errors)]
    next_step = next_command("profile", arguments, *more, "-o", "page.html")
    errors = _errors(arguments, next_step)
    baseline = None if arguments.against is None else for_model(arguments, arguments.against)
    output = [] if arguments.output is None else ["-o", str(arguments.output)]
    of_graph = argparse.Namespace(**{**vars(arguments), "model": Path(GRAPH)})
    of_baseline = (
        f"openqaic compile {GRAPH} -o baseline --stats-level {STATS_LEVEL}",
        next_command("profile", arguments, "--against", f"baseline/{QPC_FILE_NAME}", *output),
    )
    program, capture = _measured(arguments, (next_command("profile", of_graph, *more, *output),))
    reports = [make(capture) for make in REPORTS.values()]
    reports = [
        _with_limit(report, program, capture) if report.name == "overview" else report for report in reports
    ]
    if baseline is not None:
        compared, other = _measured(baseline, of_baseline)
        if compared.path == program.path:
            print_message(
                "warning",
                f"--against {arguments.against} is the measured program: options apply to both models",
                "give --against a container, which has its own options",
            )
        other.name = other.name or str(arguments.against)
        reports.append(diff(other, capture))
    _put_out(program, capture, reports, arguments, next_step=next_step, errors=errors)
    return SUCCESS


def _errors(arguments: argparse.Namespace, next_step: str) -> list[NodeErrors]:
    """Read the report of ``--errors``, if given."""
    if arguments.errors is None:
        return []
    if arguments.output is None:
        raise OptionError(
            "--errors needs -o: only the page shows the errors of nodes",
            code="option.errors_output",
            hints=(f"`{next_step}` writes the page",),
        )
    return read_errors(arguments.errors, _report_hints(arguments))


def _report_hints(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return the command that writes the report of a model; a container has none."""
    from qaic.accuracy.prepared import PRECISIONS

    if arguments.model.suffix.lower() != ".onnx":
        return ()
    own = {name for options in PRECISIONS.values() for name in options}
    without = {"inputs", "mean", "scale", "device_id"}
    kept = {name: value for name, value in vars(arguments).items() if name not in without}
    words = ("--to", "fp16", "--json", "accuracy.json")
    command = next_command(
        "accuracy", argparse.Namespace(**kept), *words, without={"target", "stats_level", *own}
    )
    return (f"`{command}` writes the report",)


def _measured(arguments: argparse.Namespace, again: Sequence[str]) -> tuple[Program, Capture]:
    """Run a model or container; returns the container and the measurements of its device.

    `again` are the commands for a container without statistics, as for `measured`.
    """
    program = open_program(arguments, stats_level=STATS_LEVEL)
    capture = measured(
        program.path,
        arguments.inputs,
        pixels=pixels_of(arguments),
        warm_up=arguments.warm_up,
        inferences=arguments.num_iter,
        again=again,
        **device_options(arguments),
    )
    capture.name = "" if program.model is None else program.model.stem
    return program, capture


def _with_limit(overview: Report, program: Program, capture: Capture) -> Report:
    """Add the share of the read bandwidth that an inference reached, if the host reads stored weights."""
    qpc = Qpc(program.path)
    span_us = capture.median(lambda sample: sample.span_us)
    weights = stored_weights(qpc) if capture.is_cpu and qpc.is_program else None
    if not weights or not weights["read_bytes"] or not span_us:
        return overview
    read = weights["read_bytes"]
    limit = bandwidth_limit(qpc, read)
    least_us, speed = limit["seconds"] * 1e6, limit["bytes_per_second"] / 1e9
    share = 100 * least_us / span_us
    verdict = (
        f"reading {bytes_text(read)} of weights takes {duration(least_us)} at the read bandwidth:"
        f" an inference reached {share:.1f} % of this limit"
    )
    rows = [
        ("bytes per weight", weights["bytes_per_weight"], "bytes"),
        ("weights read by an inference", read / 1e6, "MB"),
        ("weights read", read / span_us / 1e3, "GB/s"),
        ("read bandwidth", speed, "GB/s"),
        ("share of the bandwidth", share, "%"),
    ]
    note = (
        "computed from the container: bytes; measured: the time of an inference, and the read bandwidth, with"
        f" {counted(limit['threads'], 'thread')} that read the mapped container"
    )
    columns = columns_of("figure | value:float | unit")
    table = Table("weights", "Weights and the bandwidth limit", columns, rows, note)
    return replace(overview, verdict=[*overview.verdict, verdict], tables=[*overview.tables, table])


def _graphs(
    program: Program, capture: Capture, errors: Sequence[NodeErrors], arguments: argparse.Namespace
) -> list[DrawnGraph]:
    qpc = Qpc(program.path)
    if qpc.graph is None or not qpc.is_program:
        if errors:
            print_message("warning", f"--errors has no effect: {program.path} has no graph that shows errors")
        return []
    model = read_graph(qpc)
    known = {name: None for item in errors for name in item.nodes}
    drawn = [name for node in model.graph.node for name in node.output]
    if known and known.keys().isdisjoint(drawn):
        print_message(
            "warning",
            f"--errors {arguments.errors} has no effect: found errors of the nodes {listing([*known])}, "
            f"expected nodes of the program, such as {listing(drawn)}",
            *_report_hints(arguments),
        )
    return program_graphs(with_shapes(model), program.model, *node_times(capture), errors)


def _put_out(
    program: Program,
    capture: Capture,
    reports: list[Report],
    arguments: argparse.Namespace,
    *,
    next_step: str,
    errors: Sequence[NodeErrors],
) -> None:
    named = {report.name: report for report in reports}
    if arguments.json:
        print_text(rendered(reports, "json", width=text_width()))
    if arguments.output is not None:
        graphs = _graphs(program, capture, errors, arguments)
        written = page.write(capture, console.in_flags(reports), arguments.output, graphs=graphs)
        if not arguments.json:
            for sentence in named.get("diff", named["overview"]).verdict:
                print_line(sentence)
            inferences = counted(arguments.num_iter, "inference")
            print_line(wrote(written, f", of {inferences}; a browser opens it"))
    elif not arguments.json:
        shown = [named["diff"]] if "diff" in named else [named[name] for name in _SHOWN]
        print_reports(shown, whole="--json")
        print_line(f"next: {next_step}")
