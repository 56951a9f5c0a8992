"""``openqaic explain CODE``: explains an error code or an exception."""

import argparse
import ast
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from qaic import errors
from qaic._core import error_catalogue
from qaic.cli.console import SUCCESS, Parser, print_json, print_line, print_text
from qaic.cli.openqaic.arguments import add_json, set_examples
from qaic.errors import OptionError
from qaic.report.text import rows_text
from qaic.support.text import format_value, nearest_name


def add_arguments(parser: Parser) -> None:
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
    known = error_codes()
    wanted = arguments.code
    if wanted is None and not arguments.json:
        print_text(rows_text("code | exception", [(one.code, one.exception) for one in known]))
        return SUCCESS
    found = [
        one
        for one in known
        if wanted in {None, one.code, one.exception} or one.code.startswith(f"{wanted.rstrip('.')}.")
    ]
    if not found:
        names = sorted({one.code for one in known} | set(errors.__all__))
        near = nearest_name(wanted, names)
        raise OptionError(
            f"there is no error code {format_value(wanted)}" + (f"; did you mean {near}?" if near else ""),
            code="explain.unknown",
            hints=("`openqaic explain` lists all codes",),
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


#: tokens that decide where an argument ends: texts, comments and brackets
_TOKEN: Final = re.compile(
    r'''"""(?:.|\n)*?"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\#[^\n]*|[()\[\]{},]|\bcode='''
)


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """A code of `QaicError`."""

    code: str
    #: Name of the exception.
    exception: str
    #: Status that a call of ``qaicrt`` returns; empty if none.
    status: str
    #: An example; empty if the message is written in Python.
    message: str


def error_codes() -> list[ErrorCode]:
    """List all codes: those of the compiled module first, each once for an exception."""
    found = [ErrorCode(*row) for row in error_catalogue()]
    known = {(one.code, one.exception) for one in found}
    for code, exception in _raised_by_python():
        if (code, exception) not in known:
            known.add((code, exception))
            found.append(ErrorCode(code, exception, "", ""))
    return found


def meaning(exception: str) -> str:
    """First line of what an exception is documented as."""
    return str(getattr(errors, exception).__doc__).split("\n", maxsplit=1)[0]


def _raised_by_python() -> Iterator[tuple[str, str]]:
    """Yield (code, exception) of every call in the package that makes an exception with a literal code."""
    call = re.compile(rf"(?<![\w.])({'|'.join(errors.__all__)}|refuse)\(")
    for path in sorted(Path(errors.__file__).parent.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        # Parsing all files takes seconds.
        for found in call.finditer(text) if "code=" in text else ():
            value = _code_argument(text, found.end())
            # The compiler raises its errors in one function, which sets the first half of the code.
            refused = found[1] == "refuse"
            name, prefix = ("CompileError", "compile.") if refused else (found[1], "")
            yield from ((prefix + code, name) for code in _literals(value))


def _code_argument(text: str, begin: int) -> ast.expr | None:
    """Return the argument `code` of a call whose arguments begin at a place; None without one."""
    depth, start = 1, None
    for token in _TOKEN.finditer(text, begin):
        if token[0] in "([{":
            depth += 1
        elif token[0] in ")]}":
            depth -= 1
        elif depth == 1 and token[0] == "code=":
            start = token.end()
        if depth == 0 or (depth == 1 and start is not None and token[0] == ","):
            return None if start is None else ast.parse(f"({text[start : token.start()]})", mode="eval").body
    return None


def _literals(value: ast.expr | None) -> Iterator[str]:
    if isinstance(value, ast.IfExp):
        yield from _literals(value.body)
        yield from _literals(value.orelse)
    elif isinstance(value, ast.Constant):
        yield str(value.value)
