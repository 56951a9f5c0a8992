"""The form of all messages of the compiler: what failed, found, expected, fix.

A user of ``Session`` sees only the text of the exception, a user of the command line also the hints, and a
program the code and the context; one place creates all of them, so that they agree.
"""

import re
from collections.abc import Mapping
from typing import Final

from qaic.errors import CompileError


def refuse(
    what: str,
    *,
    code: str,
    found: str,
    expected: str,
    fix: str = "",
    context: Mapping[str, object] | None = None,
) -> CompileError:
    """Build the exception for a model that cannot be compiled.

    `code` has no ``compile.`` prefix. `fix` is empty where nothing can be advised; `context` is data behind
    the message.
    """
    return CompileError(
        f"{what}: found {found}, expected {expected}",
        code=f"compile.{code}",
        context=dict(context or {}),
        hints=(fix,) if fix else (),
    )


def damaged(what: str, found: str, expected: str) -> CompileError:
    """Build the exception for a part of a model file that contradicts the rest of it."""
    fix = "export the model again; the file is damaged"
    return refuse(what, code="invalid_model", found=found, expected=expected, fix=fix)


def engine_refused(name: str, operator: str, reason: str) -> CompileError:
    """Build the exception for a node that the engine refuses for a reason of its own."""
    return refuse(
        f"node {name!r} ({operator})",
        code="engine_refused",
        found=f"an operator that the engine of the CPU device cannot run ({reason})",
        expected="attributes, constants, sizes and types for which the engine has a kernel",
        fix="export the model with another operator set, or replace this node",
        context={"node": name, "operator": operator},
    )


def listing(names: list[str], limit: int = 5) -> str:
    """Write a list of names, cut to its first `limit` entries with the number of the rest."""
    shown = ", ".join(repr(name) for name in names[:limit])
    rest = len(names) - limit
    return f"{shown} and {rest} more" if rest > 0 else shown


#: text before a reason: kind of the error, place in a source, signature and types of a function
_BEFORE: Final = (
    re.compile(r"^.*(?:Status Message: |InferenceError\] |Exception during initialization: )", re.DOTALL),
    re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : "),
    re.compile(r"^.*\.(?:cc|h|cpp):\d+ ", re.DOTALL),
    re.compile(r"^.*\[with .*?\] (?=\S)", re.DOTALL),
    re.compile(r"^[\w:<>, ]+::\w+\(.*?\)(?:::<lambda\(.*?\)>)? (?:const )?(?=\S)"),
    re.compile(r"^(?:operator\(\)|Compute) (?=\S)"),
    re.compile(r"^.* was false\. (?=\S)", re.DOTALL),
)


def engine_reason(error: Exception) -> str:
    """Return the last part of a message, which contains the engine's reason."""
    text = str(error)
    for pattern in _BEFORE:
        text = pattern.sub("", text)
    lines = text.strip().splitlines()
    return " ".join(lines[0].split()).rstrip(". ") if lines else "no reason is given"
