"""The codes of errors that Python code raises, read from the sources of the package.

`openqaic explain` and the reference page show them. The table is checked in as
``python/qaic/cli/openqaic/commands/error_codes.json``; a test compares the two.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qaic import errors
from qaic.options.conflicts import RULES
from qaic.options.rules import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

#: tokens that determine the end of a call: texts, comments and brackets
_TOKEN: Final = re.compile(
    r'''"""(?:.|\n)*?"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\#[^\n]*|[()\[\]{}]'''
)
#: word that is specific to a message
_TELLING: Final = re.compile(r"\b(?!found|expected)[a-z]{2}")
#: values without text between them
_ADJACENT: Final = re.compile(r"(?:\.\.\. ?){2,}(?<! )")


def render() -> str:
    """Return the table as JSON: a line with code, exception, an example and its fixes for each code."""
    examples: dict[tuple[str, str], str] = {}
    fixes: defaultdict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for code, exception, message, fix in _raised_by_python():
        examples[code, exception] = examples.get((code, exception)) or message
        fixes[code, exception] |= {fix: None} if fix else {}
    for one in RULES:
        if one.severity is Severity.ERROR:
            examples.setdefault((f"option.{one.name}", "OptionConflictError"), one.summary.replace("`", ""))
    rows = (
        json.dumps([*key, message, [*fixes[key]]], ensure_ascii=False)
        for key, message in sorted(examples.items())
    )
    return "[\n" + ",\n".join(rows) + "\n]\n"


def _raised_by_python() -> Iterator[tuple[str, str, str, str]]:
    """Yield (code, exception, message, fix) of every call that creates an exception with a literal code."""
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
            fixes = _fixes(given, text[: found.start()])
            yield from (
                (prefix + code, name, message, fix) for code in _literals(given.get("code")) for fix in fixes
            )


def _fixes(given: dict[str | None, ast.expr], before: str) -> list[str]:
    """Return the advice of a call that creates an exception; one empty text if it has none of its own.

    `before` is the source before the call. It has the texts of a variable `fix`.
    """
    hints, fix = given.get("hints"), given.get("fix")
    if isinstance(fix, ast.Name):
        function = before[before.rindex("\ndef ") :]
        values = re.findall(rf"^ +{fix.id} = (f?\".*\")$", function, re.MULTILINE)
        parts = [_shown(ast.parse(value, mode="eval").body) for value in values]
        return list(filter(_TELLING.search, parts)) or [""]
    elements = hints.elts if isinstance(hints, ast.Tuple) else [] if fix is None else [fix]
    return ["; ".join(filter(_TELLING.search, map(_shown, elements)))]


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


if __name__ == "__main__":
    sys.stdout.write(render())
