"""``openqaic compile MODEL -o DIR``: a model to a program container."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from qaic.cli.console import SUCCESS, print_json, print_line
from qaic.cli.openqaic.arguments import add_json, add_model, set_examples
from qaic.cli.openqaic.compile_options import add_compile_options
from qaic.cli.openqaic.program import compile_model

if TYPE_CHECKING:
    import argparse

    from qaic.cli.console import Parser


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    add_model(parser, may_be_container=False)
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=Path, help="folder for programqpc.bin; without it, the cache"
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
    """Compile, and say what came out."""
    program = compile_model(arguments, arguments.output)
    if arguments.json:
        print_json(program.facts())
        return SUCCESS
    print_line(program.line)
    print_line(f"next: {_next_step(arguments.model, program.path)}")
    return SUCCESS


def _next_step(model: Path, path: Path) -> str:
    """Return the next step: the cost of rounding, if the program rounds, else its speed."""
    from qaic.accuracy.precisions import name_of
    from qaic.qpc import Qpc

    options = Qpc(path).options
    precision = name_of(options)
    if precision is None:
        return f"openqaic bench {shlex.quote(str(path))}"
    command = ["openqaic", "accuracy", str(model), "--to", precision]
    if symbols := options.get("onnx_define_symbol"):
        command += [f"--onnx-define-symbol={name},{size}" for name, size in symbols.items()]
    return f"{shlex.join(command)}  (what rounding costs)"
