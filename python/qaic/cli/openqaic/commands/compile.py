"""``openqaic compile MODEL -o DIR``: a model to a program container."""

import argparse
import shlex
from pathlib import Path

from qaic.cli.console import SUCCESS, Parser, print_json, print_line
from qaic.cli.openqaic.arguments import add_json, add_model, set_examples
from qaic.cli.openqaic.compile_options import add_compile_options, next_command, next_view
from qaic.cli.openqaic.program import compile_model


def add_arguments(parser: Parser) -> None:
    add_model(parser, may_be_container=False)
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=Path, help="folder for programqpc.bin (default: the cache)"
    )
    add_json(parser)
    add_compile_options(parser)
    set_examples(
        parser,
        "openqaic compile model.onnx -o program",
        "openqaic compile model.onnx -o program --convert-to-fp16 --aic-num-cores 4",
        "openqaic compile model.onnx -o program --onnx-define-symbol batch,8",
    )


def run(arguments: argparse.Namespace) -> int:
    """Compile, and state what came out."""
    program = compile_model(arguments, arguments.output)
    if arguments.json:
        print_json(program.facts())
        return SUCCESS
    print_line(program.line)
    print_line(f"next: {_next_step(arguments, program.path)}")
    return SUCCESS


def _next_step(arguments: argparse.Namespace, path: Path) -> str:
    """Return the next step: the cost of rounding, if the program rounds, else its speed."""
    from qaic.accuracy.prepared import PRECISIONS, name_of
    from qaic.qpc import Qpc

    qpc = Qpc(path)
    precision = name_of(qpc.options)
    if qpc.target != "cpu":
        return next_view(qpc, str(path))
    # Accuracy compares the inputs and outputs of the model, which this option changes.
    if precision is None or qpc.options.get("custom_io_list_file") is not None:
        return f"openqaic bench {shlex.quote(str(path))}"
    own = {name for options in PRECISIONS.values() for name in options}
    return next_command("accuracy", arguments, "--to", precision, without={"target", "stats_level", *own})
