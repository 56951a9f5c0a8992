"""``openqaic accuracy``: finds nodes that lose precision, the reasons, and the nodes to keep in float32."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qaic.cli.console import (
    SUCCESS,
    Parser,
    in_flags,
    print_json,
    print_line,
    print_message,
    print_reports,
    print_text,
)
from qaic.cli.log import logged
from qaic.cli.openqaic.arguments import add_model, count, set_examples
from qaic.cli.openqaic.compile_options import add_compile_options, keyword_options, next_command
from qaic.cli.openqaic.program import check_output_file, check_page, wrote
from qaic.errors import OptionError
from qaic.model_path import open_model
from qaic.options import resolve
from qaic.options.argv import to_argv

if TYPE_CHECKING:
    from qaic.accuracy.reports.precision_accuracy import PrecisionAccuracy

_EXAMPLES: Final = (
    "openqaic accuracy model.onnx --to fp16 --samples inputs.txt -o page.html",
    "openqaic accuracy model.onnx --to fp16,int8 --json accuracy.json",
    'openqaic accuracy model.onnx --to fp16 --target "same>=99%" --find lists.yaml',
    "openqaic accuracy model.onnx --to fp16 --samples in.txt --against outputs",
    "openqaic accuracy m.onnx --to fp16 --samples p.npz --tokens 9 --retained-state",
)
#: options that are not declared: `--target` is the target of a search, and compared programs run on the host
_WITHOUT: Final = frozenset({"target"})


def add_arguments(parser: Parser) -> None:
    add_model(parser, may_be_container=False)
    parser.add_argument(
        "--to",
        metavar="PRECISION,...",
        required=True,
        help="target precisions: fp16, int8, int16, mxfp6; mxfp6+fp16 combines two",
    )
    parser.add_argument(
        "--samples",
        metavar="PATH",
        default="random",
        help="an input list, a folder of .npz files, one .npz file, or random (default: random)",
    )
    parser.add_argument("-o", "--output", metavar="PAGE.html", help="write an HTML page")
    parser.add_argument("--json", metavar="FILE", help="write the results as JSON; - for standard output")
    parser.add_argument("--overlay", metavar="FILE", help="write node data for Model Explorer")
    parser.add_argument(
        "--tokens", type=count, metavar="N", help="for decoders: generate N tokens per prompt (input_ids)"
    )
    parser.add_argument(
        "--against",
        metavar="PATH",
        help="outputs of a card: a folder of qaic-runner --write-output-dir, or .npz files",
    )
    parser.add_argument(
        "--decide",
        metavar="MODULE:FUNCTION",
        help="function of an output's name and array that returns its decision (default: the largest value)",
    )
    parser.add_argument(
        "--target",
        metavar="GOAL",
        help="goal of the search: sqnr>=40, cosine>=0.999, same>=99.5%%, tokens>=64, or module:function>=1",
    )
    parser.add_argument(
        "--find", metavar="FILE", help="find the nodes that must stay in float32, and write the list"
    )
    parser.add_argument("--keep", choices=("fp32", "fp16"), help="precision of these nodes (default: fp32)")
    add_compile_options(parser, without=_WITHOUT)
    set_examples(parser, *_EXAMPLES)


def run(arguments: argparse.Namespace) -> int:
    """Run the subcommand."""
    options = keyword_options(arguments)
    if (arguments.find is None) != (arguments.target is None):
        raise OptionError(
            "--find and --target need each other: --target is the goal, and --find is the file for the nodes",
            code="option.accuracy_search",
        )
    _check_search(arguments)
    read = [arguments.model, arguments.samples]
    check_page(arguments.output, read=read)
    check_output_file("--json", None if arguments.json == "-" else arguments.json, read=read)
    check_output_file("--overlay", arguments.overlay, read=read)
    check_output_file("--find", arguments.find, read=read)
    if arguments.decide is not None or ":" in (arguments.target or ""):
        # Functions of the user may also be in modules of the current directory.
        sys.path.append(str(Path.cwd()))
    with logged() as set_verbosity:
        set_verbosity(int(str(options.get("verbose", 0))))
        return (_compare if arguments.find is None else _search)(arguments, options)


def _check_search(arguments: argparse.Namespace) -> None:
    """Refuse options that would have no effect: some belong to a comparison, and others to a search."""
    if arguments.find is None:
        if arguments.keep is not None:
            raise OptionError("--keep needs --find and --target", code="option.accuracy_search")
        return
    for option, value in (
        ("--against", arguments.against),
        ("-o", arguments.output),
        ("--overlay", arguments.overlay),
    ):
        if value is not None:
            raise OptionError(
                f"{option} and --find exclude each other: a search writes no results of a comparison",
                code="option.accuracy_search",
            )


def _compare(arguments: argparse.Namespace, options: dict[str, object]) -> int:
    from qaic.accuracy import compare
    from qaic.accuracy.reports.page import accuracy_page
    from qaic.accuracy.reports.tables import as_reports
    from qaic.page.document import write_bytes

    report = compare(
        open_model(arguments.model),
        to=arguments.to,
        samples=arguments.samples,
        tokens=arguments.tokens,
        against=arguments.against,
        decide=arguments.decide,
        **options,
    )
    reports = as_reports(report.title, report.precisions)
    # Files come first, because the reader of the output may end.
    written = []
    if arguments.output is not None:
        page = accuracy_page(in_flags(reports), report.precisions)
        written.append(write_bytes(arguments.output, page.encode()))
    if arguments.json not in {None, "-"}:
        written.append(report.write_json(arguments.json))
    if arguments.overlay is not None:
        written.append(report.write_overlay(arguments.overlay))
    if arguments.json == "-":
        print_json(report.to_json())
    else:
        print_reports(reports)
    for path in written:
        print_line(wrote(path), to=sys.stderr)
    for item in () if arguments.json == "-" else report.precisions:
        purpose = f", for {item.to}" if len(report.precisions) > 1 else ""
        if (command := _next_command(arguments, options, item)) is not None:
            print_line(f"next{purpose}: {command}")
    return SUCCESS


def _search(arguments: argparse.Namespace, options: dict[str, object]) -> int:
    from qaic.accuracy import search

    plan = search(
        open_model(arguments.model),
        to=arguments.to,
        samples=arguments.samples,
        target=arguments.target,
        keep=arguments.keep or "fp32",
        tokens=arguments.tokens,
        decide=arguments.decide,
        **options,
    )
    written = [plan.write(arguments.find)]
    if arguments.json not in {None, "-"}:
        written.append(plan.write_json(arguments.json))
    if arguments.json == "-":
        print_json(plan.to_json())
    else:
        print_text(str(plan))
    for path in written:
        print_line(wrote(path), to=sys.stderr)
    if arguments.samples == "random":
        print_message(
            "hint", "the inputs were random numbers, which do not show accuracy; --samples takes files"
        )
    if arguments.json != "-":
        print_line(_next_step(arguments, options, keeps_all=plan.keeps_all))
    return SUCCESS


def _next_command(
    arguments: argparse.Namespace, options: dict[str, object], item: "PrecisionAccuracy"
) -> str | None:
    """Return the next command: it measures speed, finds the smallest fix, or shows nodes."""
    from qaic.accuracy.prepared import named, options_among

    meant = options_among(named(arguments.to), item.to, options)
    without = options.keys() - meant.keys()
    again = _again(arguments, item.to)
    if not item.card:
        if item.is_good and (command := _command("bench", arguments, item.to, meant)) is not None:
            return command
        if not item.is_good and (target := item.missed_target) is not None:
            lists = "lists.yaml" if len(named(arguments.to)) == 1 else f"lists-{item.to}.yaml"
            again += ["--target", target, "--find", lists]
            return next_command("accuracy", arguments, *again, without=without)
    again += ["-o", "page.html"]
    return None if arguments.output else next_command("accuracy", arguments, *again, without=without)


def _again(arguments: argparse.Namespace, to: str) -> list[str]:
    """Return the words that repeat a comparison for a precision."""
    words = ["--to", to]
    for name in ("samples", "tokens", "against", "decide"):
        if getattr(arguments, name) not in {None, "random"}:
            words += [f"--{name}", str(getattr(arguments, name))]
    return words


def _next_step(arguments: argparse.Namespace, options: dict[str, object], *, keeps_all: bool) -> str:
    """Return a line with the command that compiles with the result, or that tries float16 or float32.

    `keeps_all` is true if the result keeps all operations in higher precision.
    """
    from qaic.accuracy.prepared import PRECISIONS, named, options_among, options_of

    (to,) = named(arguments.to)
    if keeps_all and "int" in to:
        meant = options_among((to, "fp16"), "fp16", options)
        without = (options.keys() - meant.keys()) | options_of(to, {}).keys()
        again = [*_again(arguments, "fp16"), "--target", arguments.target, "--find", arguments.find]
        return f"next: {next_command('accuracy', arguments, *again, without=without)}"
    if keeps_all:
        without = {name for precision in PRECISIONS.values() for name in precision}
        return f"next: {next_command('bench', arguments, without=without)}"
    meant = {**options, "node_precision_info_file": arguments.find}
    command = _command("compile", arguments, to, meant, "-o", "program")
    if command is None:
        keywords = ", ".join(f"{key}={value!r}" for key, value in options_of(to, meant).items())
        call = f"qaic.compile({str(arguments.model)!r}, {keywords}, calibration_data=samples)"
        return f"to use it, in Python: {call}"
    return f"next: {command}"


def _command(
    name: str, arguments: argparse.Namespace, to: str, options: dict[str, object], *words: str
) -> str | None:
    """Return a command that compiles like the comparison; None if no option has the samples."""
    from qaic.accuracy.comparison import calibrated_options, needs_samples
    from qaic.accuracy.prepared import options_of
    from qaic.accuracy.samples import Samples

    samples = Samples(arguments.samples)
    if needs_samples(options_of(to, options)) and (arguments.tokens is not None or samples.is_folder):
        return None
    wanted = calibrated_options(arguments.model, to, samples, arguments.tokens, options)
    resolved = resolve(wanted, options_path=None, model_is_container=False)
    return shlex.join(["openqaic", name, str(arguments.model), *words, *to_argv(resolved, dashes="--")])
