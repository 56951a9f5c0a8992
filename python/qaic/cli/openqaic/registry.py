"""The subcommands of ``openqaic``: one line each. Their modules are imported when they are called."""

import argparse
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast

from qaic.cli.console import Parser


class SubcommandModule(Protocol):
    """Attributes of a subcommand's module."""

    def add_arguments(self, parser: Parser) -> None:
        """Declare the arguments, with examples as the parser's epilog."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do what was asked for; returns the exit code."""


@dataclass(frozen=True, slots=True)
class Subcommand:
    """A subcommand.

    Parameters
    ----------
    name
        What is typed.
    summary
        One line of help.
    module
        Import path of its `SubcommandModule`.
    """

    name: str
    summary: str
    module: str

    def load(self) -> SubcommandModule:
        """Import the module."""
        return cast("SubcommandModule", import_module(self.module))


#: in the order of the help
SUBCOMMANDS = (
    Subcommand(
        "check",
        "forecast whether a model runs on a card, fits, and how fast",
        "qaic.cli.openqaic.commands.check",
    ),
    Subcommand(
        "compile", "compile an ONNX model to a program container", "qaic.cli.openqaic.commands.compile"
    ),
    Subcommand("run", "run one inference and show or write its outputs", "qaic.cli.openqaic.commands.run"),
    Subcommand("bench", "measure latency and throughput", "qaic.cli.openqaic.commands.bench"),
    Subcommand(
        "profile",
        "measure every operator; write a page or print reports",
        "qaic.cli.openqaic.commands.profile",
    ),
    Subcommand(
        "accuracy",
        "compare a model in reduced precision with float32",
        "qaic.cli.openqaic.commands.accuracy",
    ),
    Subcommand(
        "inspect", "show a program, its nodes, tensors or graph", "qaic.cli.openqaic.commands.inspect"
    ),
    Subcommand("diff", "list the differences of two programs", "qaic.cli.openqaic.commands.diff"),
    Subcommand("serve", "answer requests for models over HTTP and gRPC", "qaic.cli.openqaic.commands.serve"),
    Subcommand("devices", "list or watch devices", "qaic.cli.openqaic.commands.devices"),
    Subcommand("cache", "list or remove compiled programs in the cache", "qaic.cli.openqaic.commands.cache"),
    Subcommand("plot", "draw a latency report, a trace, a stats buffer or metrics", "qaic.cli.plot"),
    Subcommand("demo", "compile a real model and classify files with it", "qaic.cli.demo"),
    Subcommand("info", "show versions, the engine, devices and free cores", "qaic.cli.info"),
    Subcommand("explain", "explain an error code", "qaic.cli.openqaic.commands.explain"),
    Subcommand("shims", "install or remove the tools at the vendor's paths", "qaic.cli.shims"),
    Subcommand(
        "completion", "print the completion script for a shell", "qaic.cli.openqaic.commands.completion"
    ),
)
