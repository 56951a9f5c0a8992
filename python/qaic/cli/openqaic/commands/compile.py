"""``openqaic compile MODEL -o DIR``: compiles a model to a program container."""

import argparse
import shlex
import time
from dataclasses import dataclass
from pathlib import Path

from qaic.cli.console import SUCCESS, Parser, print_json, print_line
from qaic.cli.log import logged
from qaic.cli.openqaic.arguments import add_json, add_model, set_examples
from qaic.cli.openqaic.compile_options import (
    add_compile_options,
    keyword_options,
    next_command,
    next_view,
    resolve_options,
)
from qaic.compiler.cache import open_cache
from qaic.compiler.diagnostics.messages import recorded
from qaic.compiler.driver import compile_resolved
from qaic.compiler.output_folder import check_alone
from qaic.model_path import open_model
from qaic.qpc import Qpc
from qaic.support.text import bytes_text, duration


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
        "openqaic compile model.onnx -o program --shape 8x128",
    )


def run(arguments: argparse.Namespace) -> int:
    """Compile, and describe the container."""
    program = compile_model(arguments, arguments.output)
    if arguments.json:
        print_json(program.facts())
        return SUCCESS
    print_line(program.line)
    for purpose, command in _next_steps(arguments, program.path).items():
        print_line(f"next{purpose}: {command}")
    return SUCCESS


def _next_steps(arguments: argparse.Namespace, path: Path) -> dict[str, str]:
    """Return the next commands by purpose: the speed, and for a program that rounds, its accuracy."""
    from qaic.accuracy.prepared import PRECISIONS, name_of

    qpc = Qpc(path)
    if qpc.target != "cpu":
        return {"": next_view(qpc, str(path))}
    bench = shlex.join(["openqaic", "bench", str(path)])
    if path.is_relative_to(open_cache().folder):
        # A command for the model finds the program there, whose path is long.
        bench = next_command("bench", arguments)
    precision = name_of(qpc.options)
    # Accuracy compares the inputs and outputs of the model, which this option changes.
    if precision is None or qpc.options.get("custom_io_list_file") is not None:
        return {"": bench}
    without = {"target", "stats_level", *(name for options in PRECISIONS.values() for name in options)}
    words = ["--to", precision]
    if (samples := keyword_options(arguments).get("input_list_file")) is not None:
        # The samples of a comparison also calibrate.
        words += ["--samples", str(samples)]
        without.add("input_list_file")
    accuracy = next_command("accuracy", arguments, *words, without=without)
    return {", for accuracy": accuracy, ", for speed": bench}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program container."""

    #: The container.
    path: Path
    #: The model that was compiled; None if a container was given.
    model: Path | None
    #: Bytes of the container.
    nbytes: int
    #: Seconds to compile the container, or to find it in the cache.
    compile_s: float
    #: True if the container is from the cache.
    from_cache: bool

    @property
    def line(self) -> str:
        """The container's path, size, compile time and origin."""
        path = shlex.quote(str(self.path))
        if self.model is None:
            return f"program {path}, {bytes_text(self.nbytes)}"
        origin = "found in the cache" if self.from_cache else "compiled"
        return f"{origin} in {duration(1e6 * self.compile_s)}: {path}, {bytes_text(self.nbytes)}"

    def facts(self) -> dict[str, object]:
        """Return the program as JSON values."""
        return {
            "path": str(self.path),
            "model": None if self.model is None else str(self.model),
            "bytes": self.nbytes,
            "compile_s": self.compile_s,
            "from_cache": self.from_cache,
        }


def compile_model(arguments: argparse.Namespace, folder: Path | None) -> Program:
    """Compile the model of a command line into a folder, or the cache. Blocking.

    Raises the errors of `qaic.compile`; then no file is written.
    """
    resolved = resolve_options(arguments, output_folder=folder)
    model = open_model(arguments.model)
    if resolved.compile.output_dir is not None:
        check_alone(resolved.compile.output_dir, str(resolved.origins["output_dir"]), resolved.compile.target)
    started = time.perf_counter()
    with logged(prints_json=getattr(arguments, "json", False)) as set_verbosity:
        set_verbosity(resolved.compile.verbose)
        with recorded() as record:
            path = compile_resolved(model, resolved)
    return Program(
        path=path,
        model=arguments.model,
        nbytes=path.stat().st_size,
        compile_s=time.perf_counter() - started,
        from_cache=record.from_cache,
    )
