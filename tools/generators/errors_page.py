"""The reference page of the errors.

The compiled module lists its own codes, exceptions and statuses; those of Python code are read from the
sources. The page is committed as ``docs/reference/errors.md``; a test compares the two.
"""

from __future__ import annotations

import sys

from qaic import errors
from qaic.cli.openqaic.commands.explain import error_codes, meaning

_INTRODUCTION = """\
# Errors

<!-- Written by `make docs`. Edit the sources, not this page. -->

The exceptions of `qaic` form one class tree. Each has a stable `code`, a `context` with the values, and
`hints`. `qaic` does not convert Python's `OSError` and `KeyboardInterrupt`. `openqaic explain CODE` describes
a code.

Most calls of `qaicrt` return a `QStatus` and write the message to the log of the context. Constructors
raise `ExceptionInit`, or `ExceptionNullPtr` if memory or a required object is missing. The few other calls
without a status raise `ExceptionRuntime`. All three are subclasses of `RuntimeError` and
`QaicError`, and have the codes below. If an exception of the table caused the error, it is the `__cause__`.

## Exceptions

| exception | is also a | meaning |
|---|---|---|
"""

_RUNTIME = """
## Runtime

The messages are examples.

| code | exception | status | message |
|---|---|---|---|
"""

_AFTER_RUNTIME = """
Statuses that depend on the call:

* `inference.in_flight` is `QS_BUSY` from `Queue.enqueue` and from calls that would change the buffers of a
  running inference, and `QS_INVAL` from `InferenceSet.submit`.
* `program.live_exec_objs` is `QS_ERROR` from `Program.unload`.
* A buffer from a descriptor, and a buffer whose type differs from the type of its memory, are
  `QS_UNSUPPORTED` on virtual cards.

The error handler of the context also receives failures of the device. Only the log contains errors
of the caller (`QS_INVAL`, `QS_BUSY`, `QS_UNSUPPORTED`).
"""

_CONTAINERS = """
## Containers

These errors report defects of a program container. `qaicrt.Qpc` raises `ExceptionInit` for all of them.

| code | exception | message |
|---|---|---|
"""

_STATISTICS = """
## Statistics

These errors report defects of a stats buffer, or of the description of its operations.

| code | exception | message |
|---|---|---|
"""

_OTHERS = """
## Arguments, options, compiler and tools

Only `qaic` and its tools raise these errors. In the messages, `...` stands for the argument, the found value
and the expected value. The message of a code without one depends on the case.

| code | exception | message |
|---|---|---|
"""


def render() -> str:
    """Return the page as Markdown."""
    rows = error_codes()
    runtime = [row for row in rows if row.status and not row.code.startswith("qpc.")]
    containers = [row for row in rows if row.status and row.code.startswith("qpc.")]
    statistics = [row for row in rows if row.code.startswith("stats.")]
    others = [row for row in rows if not row.status and row not in statistics]
    return "".join(
        [
            _INTRODUCTION,
            *(_row(f"`{name}`", _bases(name), meaning(name)) for name in errors.__all__),
            _RUNTIME,
            *(_row(f"`{row.code}`", f"`{row.exception}`", f"`{row.status}`", row.message) for row in runtime),
            _AFTER_RUNTIME,
            _CONTAINERS,
            *(_row(f"`{row.code}`", f"`{row.exception}`", row.message) for row in containers),
            _STATISTICS,
            *(_row(f"`{row.code}`", f"`{row.exception}`", row.message) for row in statistics),
            _OTHERS,
            *(
                _row(f"`{row.code}`", f"`{row.exception}`", _quoted(row.message))
                for row in sorted(others, key=lambda row: row.code)
            ),
        ]
    )


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"


def _quoted(message: str) -> str:
    return f"`{message.replace('`', '')}`" if message else ""


def _bases(name: str) -> str:
    return ", ".join(f"`{base.__name__}`" for base in getattr(errors, name).__bases__)


if __name__ == "__main__":
    sys.stdout.write(render())
