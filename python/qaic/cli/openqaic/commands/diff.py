"""``openqaic diff A B``: lists the differences of two containers."""

import argparse

from qaic.cli.console import FAILURE, Parser, print_line
from qaic.cli.openqaic.arguments import add_container, add_json, set_examples


def add_arguments(parser: Parser) -> None:
    add_container(parser, "a")
    add_container(parser, "b")
    add_json(parser)
    set_examples(
        parser,
        "openqaic diff before/programqpc.bin after/programqpc.bin",
        "(exit code 0: same, 1: different, 2: one cannot be read)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Show the differences from A to B, and the command that lists the nodes of B."""
    from qaic.cli.qpc import show_differences

    code = show_differences(arguments.a, arguments.b, as_json=arguments.json)
    if code == FAILURE and not arguments.json:
        from qaic.cli.openqaic.compile_options import next_view
        from qaic.qpc import Qpc

        print_line(f"next: {next_view(Qpc(arguments.b), str(arguments.b))}")
    return code
