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
from qaic.options.conflicts import RULES
from qaic.options.rules import Severity
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
    """Show the matching codes."""
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


#: tokens that determine the end of a call: texts, comments and brackets
_TOKEN: Final = re.compile(
    r'''"""(?:.|\n)*?"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\#[^\n]*|[()\[\]{}]'''
)
#: word that is specific to a message
_TELLING: Final = re.compile(r"\b(?!found|expected)[a-z]{2}")
#: values without text between them
_ADJACENT: Final = re.compile(r"(?:\.\.\. ?){2,}(?<! )")


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """A code of `QaicError`."""

    code: str
    #: Name of the exception.
    exception: str
    #: Status that a call of ``qaicrt`` returns; empty if there is none.
    status: str
    #: An example, in which ``...`` represents a value; empty if the message has another source.
    message: str


def error_codes() -> list[ErrorCode]:
    """List all codes: those of the compiled module first, each once for an exception."""
    examples: dict[tuple[str, str], str] = {}
    for code, exception, message in _raised_by_python():
        examples[code, exception] = examples.get((code, exception)) or message
    for one in RULES:
        if one.severity is Severity.ERROR:
            examples.setdefault((f"option.{one.name}", "OptionConflictError"), one.summary.replace("`", ""))
    found = [
        ErrorCode(code, exception, status, message or examples.get((code, exception), ""))
        for code, exception, status, message in error_catalogue()
    ]
    known = {(one.code, one.exception) for one in found}
    found += [ErrorCode(*key, "", message) for key, message in examples.items() if key not in known]
    return found


def meaning(exception: str) -> str:
    """Return the first line of the documentation of an exception."""
    return str(getattr(errors, exception).__doc__).split("\n", maxsplit=1)[0]


def _raised_by_python() -> Iterator[tuple[str, str, str]]:
    """Yield (code, exception, message) of every call that creates an exception with a literal code."""
    call = re.compile(rf"(?<![\w.])({'|'.join(errors.__all__)}|refuse)\(")
    for path in sorted(Path(errors.__file__).parent.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        # Parsing all files takes seconds.
        for found in call.finditer(text) if "code=" in text else ():
            source = _arguments(text, found.end())
            made = ast.parse(f"made({source})", mode="eval").body if "code=" in source else None
            if not isinstance(made, ast.Call) or not made.args:
                continue
            given = {keyword.arg: keyword.value for keyword in made.keywords}
            message = _shown(made.args[0])
            # The compiler raises its errors in one function, which sets the first half of the code.
            name, prefix = found[1], ""
            if name == "refuse":
                name, prefix = "CompileError", "compile."
                message += f": found {_shown(given['found'])}, expected {_shown(given['expected'])}"
            message = _ADJACENT.sub("...", message if _TELLING.search(message) else "")
            yield from ((prefix + code, name, message) for code in _literals(given.get("code")))


def _arguments(text: str, begin: int) -> str:
    """Return the arguments of a call that begin at a position of a source."""
    depth = 1
    for token in _TOKEN.finditer(text, begin):
        depth += (token[0] in "([{") - (token[0] in ")]}")
        if depth == 0:
            return text[begin : token.start()]
    return ""


def _shown(value: ast.expr) -> str:
    """Return a text of a source with ``...`` instead of values."""
    if isinstance(value, ast.JoinedStr):
        return "".join(map(_shown, value.values))
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return _shown(value.left) + _shown(value.right)
    if isinstance(value, ast.IfExp):
        return _shown(value.body)
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else "..."


def _literals(value: ast.expr | None) -> Iterator[str]:
    if isinstance(value, ast.IfExp):
        yield from _literals(value.body)
        yield from _literals(value.orelse)
    elif isinstance(value, ast.Constant):
        yield str(value.value)
