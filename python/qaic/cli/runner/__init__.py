"""``qaic-runner``: runs a program container with random or given inputs, measures it, and compares outputs.

This module is the entry point. It imports other modules only when they are needed.
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
