"""``qaic-runner``: run a program container with random or given inputs, measure, write and compare outputs.

This module is the way in; what is loaded before the command line is understood stays small.
"""

from collections.abc import Sequence

from qaic.cli import console


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns its exit code."""
    return console.run(_tool, argv)


def _tool(argv: Sequence[str]) -> int:
    from qaic.cli.runner.command_line import parse

    request = parse(argv)
    from qaic.cli.runner.flow import run

    return run(request)
