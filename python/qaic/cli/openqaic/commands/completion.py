"""``openqaic completion bash``: what makes a shell complete commands and options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qaic.cli.console import SUCCESS, print_line
from qaic.cli.openqaic.arguments import set_examples
from qaic.errors import StateError

if TYPE_CHECKING:
    import argparse

    from qaic.cli.console import Parser


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    set_examples(
        parser,
        'eval "$(openqaic completion bash)"     (in ~/.bashrc)',
        "openqaic completion zsh > ~/.zfunc/_openqaic",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    from qaic.cli.openqaic import parser
    from qaic.cli.openqaic.registry import SUBCOMMANDS

    try:
        import shtab
    except ImportError as error:
        raise StateError(
            "completion needs the package shtab, which is not installed",
            code="completion.shtab",
            hints=("pip install 'openqaic[completion]'",),
        ) from error
    names = frozenset(subcommand.name for subcommand in SUBCOMMANDS)
    print_line(shtab.complete(parser(names), shell=arguments.shell))
    return SUCCESS
