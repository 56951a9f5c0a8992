"""The reference page of the errors.

Codes, exceptions and statuses of the compiled module come from the module itself, those of Python code from
the sources of the package. The page is checked in as ``docs/reference/errors.md``; a test compares the two.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from qaic import errors
from qaic._core import error_catalogue

if TYPE_CHECKING:
    from collections.abc import Iterator

_INTRODUCTION = """\
# Errors

<!-- Written by `make docs`. Edit the sources, not this page. -->

`qaic` raises exceptions of one tree. Each has a `code` that never changes, a `context` with the figures, and
`hints`. Python's own `OSError` and `KeyboardInterrupt` pass as they are.

`qaicrt` answers most calls with a `QStatus` and writes the message to the log of the context. Constructors
raise `ExceptionInit`, or `ExceptionNullPtr` where memory or a needed object is missing; the few other calls
that answer with no status raise `ExceptionRuntime`. All three are a `RuntimeError` and a `QaicError` with the
same codes as below; the exception of the table is their `__cause__` where there is one.

## Exceptions

| exception | is also a | meaning |
|---|---|---|
"""

_RUNTIME = """
## While running

The message is an example.

| code | exception | status | message |
|---|---|---|---|
"""

_AFTER_RUNTIME = """
Statuses that depend on the call:

* `inference.in_flight` is `QS_BUSY` from `Queue.enqueue` and from calls that would change the buffers of a
  running inference, and `QS_INVAL` from `InferenceSet.submit`.
* `program.live_exec_objs` is `QS_ERROR` from `Program.unload`.
* A buffer behind a descriptor is `QS_UNSUPPORTED` on devices that are no cards, and so is a buffer whose type
  is not that of its memory.

The error handler of the context also gets what failed on the device. A mistake of the caller
(`QS_INVAL`, `QS_BUSY`, `QS_UNSUPPORTED`) is only in the log.
"""

_CONTAINERS = """
## Containers

What is wrong with a file that should be a program container. `qaicrt.Qpc` raises `ExceptionInit` for all.

| code | exception | message |
|---|---|---|
"""

_STATISTICS = """
## Statistics

What is wrong with a stats buffer or with the description of its operations.

| code | exception | message |
|---|---|---|
"""

_OTHERS = """
## Arguments, options, compiler and tools

Raised by `qaic` and its tools only. The messages name the argument, what was found and what was expected.

| exception | codes |
|---|---|
"""


def render() -> str:
    """Return the page as Markdown."""
    rows = error_catalogue()
    runtime = [row for row in rows if row[2] and not row[0].startswith("qpc.")]
    containers = [row for row in rows if row[2] and row[0].startswith("qpc.")]
    statistics = [row for row in rows if row[3] and not row[2]]
    others: defaultdict[str, set[str]] = defaultdict(set)
    for code, exception, _, message in rows:
        if not message:
            others[exception].add(code)
    for code, exception in _raised_by_python():
        others[exception].add(code)
    return "".join(
        [
            _INTRODUCTION,
            *(_row(f"`{name}`", _bases(name), _meaning(name)) for name in errors.__all__),
            _RUNTIME,
            *(
                _row(f"`{code}`", f"`{exception}`", f"`{status}`", message)
                for code, exception, status, message in runtime
            ),
            _AFTER_RUNTIME,
            _CONTAINERS,
            *(_row(f"`{code}`", f"`{exception}`", message) for code, exception, _, message in containers),
            _STATISTICS,
            *(_row(f"`{code}`", f"`{exception}`", message) for code, exception, _, message in statistics),
            _OTHERS,
            *(
                _row(f"`{name}`", ", ".join(f"`{code}`" for code in sorted(codes)))
                for name, codes in sorted(others.items())
            ),
        ]
    )


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"


def _bases(name: str) -> str:
    return ", ".join(f"`{base.__name__}`" for base in getattr(errors, name).__bases__)


def _meaning(name: str) -> str:
    return str(getattr(errors, name).__doc__).split("\n", maxsplit=1)[0]


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


if __name__ == "__main__":
    sys.stdout.write(render())
