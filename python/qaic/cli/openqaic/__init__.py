"""``openqaic``: one command with subcommands; ``python -m qaic`` is equivalent.

This module is the entry point. It imports only the module of the called subcommand.
"""

import argparse
import sys
from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Protocol, cast

from qaic.cli import console
from qaic.cli.console import Parser
from qaic.errors import CompileError
from qaic.support.status_line import lines_in_pipes
from qaic.support.text import nearest_name

_EXAMPLES: Final = """\
examples:
  openqaic compile model.onnx -o program      model to container
  openqaic bench model.onnx                   latency and throughput
  openqaic profile model.onnx -o page.html    which operators take the time
  openqaic COMMAND --help                     arguments and examples
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return console.run(tool, argv)


class _Once(argparse.Action):
    """Stores a value, and refuses a second value, which would silently replace the first."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        given: dict[str, Any] = vars(namespace).setdefault("given_once", {})
        if option_string is not None and given.setdefault(self.dest, values) != values:
            raise argparse.ArgumentError(self, "it has two values: give it once")
        setattr(namespace, self.dest, values)


class _HelpFormatter(RawDescriptionHelpFormatter, console.HelpFormatter):
    """Writes help that keeps the lines of examples."""


class _Parser(console.Parser):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register("action", None, _Once)


def parser(names: frozenset[str]) -> console.Parser:
    """Build the parser.

    The arguments of the subcommands in `names` are declared; the others are only listed.
    """
    made = _Parser(
        prog="openqaic",
        description="Compile, run and measure models for Qualcomm Cloud AI 100.",
        epilog=_EXAMPLES,
        formatter_class=_HelpFormatter,
    )
    made.add_version()
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    for subcommand in SUBCOMMANDS:
        added = commands.add_parser(
            subcommand.name,
            help=subcommand.summary,
            description=f"{subcommand.summary[0].upper()}{subcommand.summary[1:]}.",
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
        )
        added.add_version()
        if subcommand.name in names:
            subcommand.load().add_arguments(added)
    return made


def tool(argv: Sequence[str]) -> int:
    """Run a command line; errors are exceptions."""
    if not argv:
        parser(frozenset()).print_help(sys.stderr)
        return console.USAGE
    arguments = _parsed(argv)
    subcommand = next(one for one in SUBCOMMANDS if one.name == arguments.command)
    console.take_options_as_flags("--", argv)
    try:
        with lines_in_pipes():
            return subcommand.load().run(arguments)
    except CompileError as error:
        shapes = error.context.get("shapes")
        if isinstance(shapes, dict):
            sized = [{"input_name": name, "input_shape": shape} for name, shape in shapes.items()]
            error.hints = (f"give all sizes, e.g. model_inputs={sized}", *error.hints[1:])
        raise


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
    name = argv[0]
    known = [subcommand.name for subcommand in SUBCOMMANDS]
    made = parser(frozenset({name}) & frozenset(known))
    if not name.startswith("-") and name not in known:
        made.error(f"there is no command {name!r}{_nearest(name, known)}")
    parsed: argparse.Namespace = made.parse_args(made.with_two_dashes(argv))
    return parsed


def _nearest(name: str, known: Sequence[str]) -> str:
    near = nearest_name(name, known)
    if near:
        return f"; did you mean {near}?"
    if name in {"nodes", "tensors", "graph", "fit"}:
        return f"; did you mean openqaic inspect MODEL {name}?"
    return f"; did you mean openqaic run {name}?" if name.lower().endswith((".onnx", ".bin")) else ""


class SubcommandModule(Protocol):
    """Attributes of a subcommand's module."""

    def add_arguments(self, parser: Parser) -> None:
        """Declare the arguments, with examples as the parser's epilog."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the subcommand; returns the exit code."""


@dataclass(frozen=True, slots=True)
class Subcommand:
    """A subcommand."""

    #: Name on the command line.
    name: str
    #: One line of help.
    summary: str
    #: Package of its `SubcommandModule`, which has the name of the subcommand.
    package: str = "qaic.cli.openqaic.commands"

    def load(self) -> SubcommandModule:
        """Import the module."""
        return cast("SubcommandModule", import_module(f"{self.package}.{self.name}"))


#: in the order of the help
SUBCOMMANDS = (
    Subcommand("check", "forecast whether a model runs on a card, whether it fits, and its speed"),
    Subcommand("compile", "compile an ONNX model to a program container"),
    Subcommand("run", "run one inference and show or write its outputs"),
    Subcommand("bench", "measure latency and throughput"),
    Subcommand("profile", "measure every operator; write a page or print reports"),
    Subcommand("accuracy", "compare a model in reduced precision with float32"),
    Subcommand("inspect", "show a program, its nodes, tensors or graph"),
    Subcommand("diff", "list the differences between two programs"),
    Subcommand("serve", "answer requests for models over HTTP and gRPC"),
    Subcommand("devices", "list or watch devices"),
    Subcommand("cache", "list or remove compiled programs in the cache"),
    Subcommand("plot", "draw latencies, a trace or a stats buffer", "qaic.cli"),
    Subcommand("demo", "compile a real model and classify files with it", "qaic.cli"),
    Subcommand("info", "show versions, the engine, devices and free cores", "qaic.cli"),
    Subcommand("explain", "explain an error code"),
    Subcommand("shims", "install or remove the tools at the vendor's paths", "qaic.cli"),
    Subcommand("completion", "print the completion script for a shell"),
)
