"""``openqaic explain CODE``: what an error code or the name of an exception means."""

import argparse
from typing import Final

from qaic.cli.console import SUCCESS, Parser, print_json, print_line, print_text, table
from qaic.cli.openqaic.arguments import add_json, set_examples
from qaic.errors import OptionError

_LONGEST_COMPARED: Final = 80


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "code",
        nargs="?",
        metavar="CODE",
        help="an error code, its first part, or an exception (default: all)",
    )
    add_json(parser)
    set_examples(
        parser, "openqaic explain device.busy", "openqaic explain option", "openqaic explain DeviceError"
    )


def run(arguments: argparse.Namespace) -> int:
    """Show the codes that match."""
    from dataclasses import asdict

    from qaic import errors
    from qaic.cli.openqaic.error_codes import error_codes, meaning

    known = error_codes()
    wanted = arguments.code
    if wanted is None and not arguments.json:
        print_text(table([(one.code, one.exception) for one in known], header=("code", "exception")))
        return SUCCESS
    found = [
        one
        for one in known
        if wanted in {None, one.code, one.exception} or one.code.startswith(f"{wanted.rstrip('.')}.")
    ]
    if not found:
        from difflib import get_close_matches

        names = sorted({one.code for one in known} | set(errors.__all__))
        near = get_close_matches(wanted[:_LONGEST_COMPARED], names, n=1)
        raise OptionError(
            f"there is no error code {wanted!r}" + (f"; did you mean {near[0]}?" if near else ""),
            code="explain.unknown",
            hints=("`openqaic explain` lists all",),
        )
    meanings = {
        name: meaning(name) if name in errors.__all__ else "" for name in {one.exception for one in found}
    }
    if arguments.json:
        print_json([asdict(one) | {"meaning": meanings[one.exception]} for one in found])
        return SUCCESS
    for one in found:
        print_line(f"{one.code}: {one.exception}" + (f", {one.status} in qaicrt" if one.status else ""))
        if meanings[one.exception]:
            print_line(f"  {meanings[one.exception]}")
        if one.message:
            print_line(f"  for example: {one.message}")
    if len(found) > 1:
        print_line(f"{len(found)} codes; next: openqaic explain {found[0].code}")
    else:
        print_line("next: openqaic explain")
    return SUCCESS
