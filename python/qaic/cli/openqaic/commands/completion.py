"""``openqaic completion SHELL``: prints the completion script of a shell."""

import argparse
from pathlib import Path
from typing import Any

from qaic.cli.console import SUCCESS, Parser, print_text
from qaic.cli.openqaic import SUBCOMMANDS, parser
from qaic.cli.openqaic.arguments import set_examples
from qaic.errors import StateError


def add_arguments(parser: Parser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    set_examples(
        parser,
        'eval "$(openqaic completion bash)"     (in ~/.bashrc)',
        "openqaic completion zsh > ~/.zfunc/_openqaic",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    try:
        import shtab
    except ImportError as error:
        raise StateError(
            "completion needs the package shtab, which is not installed",
            code="completion.shtab",
            hints=("pip install 'openqaic[completion]'",),
        ) from error
    names = frozenset(subcommand.name for subcommand in SUBCOMMANDS)
    completed = parser(names)
    _complete_files(completed, shtab.FILE, shtab.DIRECTORY)
    print_text(shtab.complete(completed, shell=arguments.shell))
    return SUCCESS


def _complete_files(of: argparse.ArgumentParser, file: object, folder: object) -> None:
    """Complete files for free values, as shells do without a rule."""
    for action in of._actions:  # noqa: SLF001 (argparse offers no other way)
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for command in action.choices.values():
                _complete_files(command, file, folder)
        elif action.nargs != 0 and action.choices is None and action.type in {None, Path}:
            # shtab reads the attribute.
            free: Any = action
            free.complete = folder if action.metavar == "DIR" else file
