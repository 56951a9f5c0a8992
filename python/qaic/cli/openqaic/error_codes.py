"""All codes of errors: those of the compiled module from its catalog, those of Python from the sources."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qaic import errors
from qaic._core import error_catalogue

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """A code of `QaicError`.

    Parameters
    ----------
    code
        The code.
    exception
        Name of the exception that has it.
    status
        Status that a call of ``qaicrt`` answers with; empty where there is none.
    message
        An example; empty where the message is written in Python.
    """

    code: str
    exception: str
    status: str
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
    for path in sorted(Path(errors.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            # What the compiler refuses goes through one function, which sets the first half of the code.
            refused = node.func.id == "refuse"
            name, prefix = ("CompileError", "compile.") if refused else (node.func.id, "")
            if name not in errors.__all__:
                continue
            for keyword in node.keywords:
                if keyword.arg == "code":
                    yield from ((prefix + code, name) for code in _literals(keyword.value))


def _literals(value: ast.expr) -> Iterator[str]:
    if isinstance(value, ast.IfExp):
        yield from _literals(value.body)
        yield from _literals(value.orelse)
    elif isinstance(value, ast.Constant):
        yield str(value.value)
