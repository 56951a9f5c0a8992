"""Messages of the compiler: errors of one form (what failed, found, expected, fix), warnings and notes.

Users of ``Session`` see only the text of an exception, users of the command line also the hints, and programs
the code and the context. This module creates all of them, so that they agree.

Warnings and notes of a compilation are objects with a code, a message, and the nodes or values concerned.
Recording also shows them, through the logger ``qaic.compiler``. They are added to the record of the
compilation that runs in this thread, as `warnings.catch_warnings` does.
"""

import contextlib
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Final

from qaic import _core
from qaic.errors import CompileError, QpcError
from qaic.support.program_names import DIAGNOSTICS_SECTION
from qaic.support.text import escape_lines


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

    `code` has no ``compile.`` prefix. `fix` is empty if there is no advice; `context` contains the data of
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


def changed(what: str, found: str, expected: str) -> CompileError:
    """Build the exception for a file or weight that was modified during the compilation."""
    fix = "do not write to the model while it is compiled"
    return refuse(what, code="model_changed", found=found, expected=expected, fix=fix)


def not_inside(what: str, found: str, expected: str = "all data inside the model") -> CompileError:
    """Build the exception for data outside a model that is not a file."""
    fix = "pass the path of the model instead of its content"
    return refuse(what, code="external_data", found=found, expected=expected, fix=fix)


def listing(names: list[str], limit: int = 5) -> str:
    """Write a list of names, limited to its first `limit` entries and the number of the others."""
    shown = ", ".join(repr(name) for name in names[:limit])
    rest = len(names) - limit
    return f"{shown} and {rest} more" if rest > 0 else shown


#: text before a reason: kind of the error, place in a source, signature and types of a function
_BEFORE: Final = (
    r"(?s)^.*(?:Status Message: |InferenceError\] |Exception during initialization: )",
    r"^\[ONNXRuntimeError\] : \d+ : \w+ : ",
    r"(?s)^.*\.(?:cc|h|cpp):\d+ ",
    r"(?s)^.*\[with .*?\] (?=\S)",
    r"^[\w:<>, ]+::\w+\(.*?\)(?:::<lambda\(.*?\)>)? (?:const )?(?=\S)",
    r"^(?:operator\(\)|Compute) (?=\S)",
    r"(?s)^.* was false\. (?=\S)",
)


def engine_reason(error: Exception | str) -> str:
    """Return the last part of a message, which contains the engine's reason."""
    text = str(error)
    for pattern in _BEFORE:
        text = re.sub(pattern, "", text)
    lines = text.strip().splitlines()
    return " ".join(lines[0].split()).rstrip(". ") if lines else "no reason is given"


_log = logging.getLogger("qaic.compiler")

#: levels of logging by severity
_LEVELS: Final = {"warning": logging.WARNING, "note": logging.INFO}


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A message of a compilation."""

    #: ``warning`` or ``note``
    severity: str
    #: stable name of the message, with the part of the compiler that it comes from
    code: str
    #: text for users
    message: str
    #: nodes, values or names in options that it concerns; the text may name only the first
    nodes: tuple[str, ...] = ()
    #: true if it concerns the program, not a file next to the program
    is_of_program: bool = True

    def show(self) -> None:
        """Log this message."""
        _log.log(_LEVELS[self.severity], "%s", escape_lines(self.message))


@dataclass(slots=True)
class Diagnostics:
    """The diagnostics of one compilation, in the order in which they were found."""

    items: list[Diagnostic] = field(default_factory=list)
    #: true if the program came from the cache
    from_cache: bool = False

    def add(self, item: Diagnostic) -> None:
        """Keep a diagnostic and show it."""
        self.items.append(item)
        item.show()


_current: ContextVar[Diagnostics | None] = ContextVar("diagnostics", default=None)


@contextlib.contextmanager
def recorded() -> Iterator[Diagnostics]:
    """Record messages of this thread; an enclosing record receives them too."""
    outer, inner = _current.get(), Diagnostics()
    token = _current.set(inner)
    try:
        yield inner
    finally:
        _current.reset(token)
        if outer is not None:
            outer.items += inner.items
            outer.from_cache |= inner.from_cache


@contextlib.contextmanager
def about_files() -> Iterator[None]:
    """Record messages of this thread as messages about files that are written next to the program."""
    with recorded() as found:
        yield
    outer = _current.get()
    if outer is not None and found.items:
        outer.items[-len(found.items) :] = [replace(item, is_of_program=False) for item in found.items]


def note_cached() -> None:
    """Record that the program of this compilation was in the cache."""
    if (current := _current.get()) is not None:
        current.from_cache = True


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Neither show nor keep messages of this thread, for one of many attempts."""
    token = _current.set(_Silence())
    try:
        yield
    finally:
        _current.reset(token)


class _Silence(Diagnostics):
    """Ignores diagnostics."""

    def add(self, item: Diagnostic) -> None:
        """Drop a diagnostic."""


def record(item: Diagnostic) -> None:
    """Record a diagnostic."""
    current = _current.get()
    if current is None:
        item.show()
    else:
        current.add(item)


def warn(code: str, text: str, nodes: Iterable[str] = ()) -> None:
    """Record a warning; the arguments are those of `Diagnostic`."""
    record(Diagnostic("warning", code, text, tuple(nodes)))


def note(code: str, text: str) -> None:
    """Record a note; see `warn`."""
    record(Diagnostic("note", code, text))


def repeat(items: Iterable[Diagnostic]) -> None:
    """Record the diagnostics of an earlier compilation of the same program again; shows warnings."""
    current = _current.get()
    for item in items:
        if current is not None:
            current.items.append(item)
        if item.severity == "warning":
            item.show()


#: most nodes of each diagnostic, so that the section stays small
_MOST_NODES: Final = 100
_SEVERITIES: Final = ("warning", "note")


def encode(items: Sequence[Diagnostic]) -> bytes:
    """Write the diagnostics of a program as the content of the section; invalid text becomes `?`."""
    entries = [
        {
            "severity": item.severity,
            "code": item.code,
            "message": item.message,
            "nodes": item.nodes[:_MOST_NODES],
        }
        for item in items
        if item.is_of_program
    ]
    text = json.dumps(entries, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "replace")


def read(program: _core.Qpc) -> tuple[Diagnostic, ...]:
    """Read the diagnostics of a container; invalid entries are skipped."""
    try:
        section = program.elf_section(DIAGNOSTICS_SECTION)
    except QpcError:
        # Slices have no program, and readers of the program report a damaged one.
        return ()
    return () if section is None else tuple(_decoded(bytes(section)))


def load(path: str | PathLike[str]) -> tuple[Diagnostic, ...]:
    """Read the diagnostics of a container file; see `read`."""
    return read(_core.Qpc(path))


def _decoded(content: bytes) -> Iterator[Diagnostic]:
    try:
        entries = json.loads(content)
    except (ValueError, RecursionError):
        return
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict) or entry.get("severity") not in _SEVERITIES:
            continue
        nodes = entry.get("nodes")
        yield Diagnostic(
            entry["severity"],
            str(entry.get("code", "")),
            str(entry.get("message", "")),
            tuple(map(str, nodes)) if isinstance(nodes, list) else (),
        )


@dataclass(slots=True)
class Survey:
    """Findings, each with its nodes or values."""

    #: finding that a card is unlikely to support -> its places
    findings: dict[str, list[str]] = field(default_factory=dict)
    #: finding that the card's compiler refuses -> its places
    refusals: dict[str, list[str]] = field(default_factory=dict)

    def note(self, what: str, where: str) -> None:
        """Add one finding."""
        self.findings.setdefault(what, []).append(where)

    def note_refusal(self, what: str, where: str) -> None:
        """Add something that the card's compiler refuses."""
        self.refusals.setdefault(what, []).append(where)
