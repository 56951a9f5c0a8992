"""``openqaic profile MODEL -o page.html``: from a model to what its operators take, in one command."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qaic.cli.console import SUCCESS, print_line, print_text
from qaic.cli.openqaic.arguments import (
    add_device,
    add_json,
    add_model,
    count,
    count_or_zero,
    device_options,
    set_examples,
)
from qaic.cli.openqaic.compile_options import add_compile_options, for_model
from qaic.cli.openqaic.next_command import next_command
from qaic.cli.openqaic.output_file import check_output_file, files_of
from qaic.cli.openqaic.program import open_program
from qaic.cli.qpc.info_text import human_bytes
from qaic.errors import OptionError, StateError
from qaic.support.text import counted

if TYPE_CHECKING:
    import argparse

    from qaic.cli.console import Parser
    from qaic.stats.reports import Report
    from qaic.stats.reports.capture import Capture

#: from this level on a program measures its operators
_STATS_LEVEL: Final = 70
_SHOWN: Final = ("overview", "ops", "nodes")
_PIPE_WIDTH: Final = 120


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    add_model(parser)
    parser.add_argument(
        "-o", "--output", metavar="PAGE.html", type=Path, help="page to write (default: text on the terminal)"
    )
    parser.add_argument(
        "-i", "--input", dest="inputs", metavar="[NAME=]FILE", action="append", default=[],
        help=".npy, .npz or raw data; repeatable (default: random inputs)",
    )  # fmt: skip
    parser.add_argument(
        "-n", "--num-iter", type=count, default=20, metavar="N", help="inferences (default %(default)s)"
    )
    parser.add_argument(
        "--warm-up",
        type=count_or_zero,
        default=3,
        metavar="N",
        help="inferences before (default %(default)s)",
    )
    parser.add_argument(
        "--against",
        metavar="MODEL",
        type=Path,
        help="baseline: another model, or a container with statistics",
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
    )


def run(arguments: argparse.Namespace) -> int:
    """Compile so that operators are measured, run, and report."""
    from qaic.stats.reports import REPORTS, diff

    if arguments.output is not None and arguments.output.suffix.lower() not in {".html", ".htm"}:
        raise OptionError(
            f"-o {arguments.output}: pages are HTML; a name that ends in .html is expected",
            code="profile.output",
        )
    check_output_file("-o", arguments.output, read=[arguments.model, *files_of(arguments.inputs)])
    # Before the level of statistics is added, which this command has by default.
    more = [] if arguments.against is None else ["--against", str(arguments.against)]
    next_step = next_command("profile", arguments, *more, "-o", "page.html")
    baseline = None if arguments.against is None else for_model(arguments, arguments.against)
    capture = _measured(arguments)
    reports = [make(capture) for make in REPORTS.values()]
    if baseline is not None:
        other = _measured(baseline)
        other.name = other.name or str(arguments.against)
        reports.append(diff(other, capture))
    _put_out(capture, reports, arguments, next_step=next_step)
    return SUCCESS


def _measured(arguments: argparse.Namespace) -> Capture:
    """Run a model or container; returns the measurements of its device."""
    from qaic import Session
    from qaic.cli.openqaic.tensor_files import read_inputs
    from qaic.runtime.benchmark import random_inputs

    program = open_program(arguments, stats_level=_STATS_LEVEL)
    with Session(program.path, **device_options(arguments)) as session:
        inputs = session.model_input_shape_dict
        shapes = [shape for shape, _ in inputs.values()]
        feeds = read_inputs(arguments.inputs, inputs) if arguments.inputs else random_inputs(inputs, shapes)
        for _ in range(arguments.warm_up):
            session.run(feeds)
        session.setup()
        with session.profile() as profile:
            for _ in range(arguments.num_iter):
                session.run(feeds)
    if not profile.device:
        raise StateError(
            f"{program.path} measures nothing: it was compiled without statistics",
            code="profile.not_compiled_in",
            hints=(
                "give the .onnx file, which is compiled with statistics; or compile with --stats-level 70",
            ),
        )
    capture = profile.capture()
    capture.name = "" if program.model is None else program.model.stem
    return capture


def _put_out(
    capture: Capture, reports: list[Report], arguments: argparse.Namespace, *, next_step: str
) -> None:
    from qaic.stats.reports.render.files import rendered

    named = {report.name: report for report in reports}
    if arguments.json:
        print_text(rendered(reports, "json", width=_PIPE_WIDTH))
    if arguments.output is not None:
        from qaic import page

        written = page.write(capture, reports, arguments.output)
        if not arguments.json:
            for sentence in named.get("diff", named["overview"]).verdict:
                print_line(sentence)
            size = human_bytes(written.stat().st_size)
            inferences = counted(arguments.num_iter, "inference")
            print_line(f"wrote {shlex.quote(str(written))}, {size}, of {inferences}; a browser opens it")
    elif not arguments.json:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_WIDTH
        shown = [named["diff"]] if "diff" in named else [named[name] for name in _SHOWN]
        print_text(rendered(shown, "text", width=width))
        print_line(f"next: {next_step}")
