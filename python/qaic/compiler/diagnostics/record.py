"""Warnings and notes of one compilation as objects: code, message, and the nodes or values they are about.

Recording shows a diagnostic to the user at once, through the logger ``qaic.compiler``. The record that takes
it is that of the compilation which runs in this thread, as `warnings.catch_warnings` and `decimal` have it.
"""

from __future__ import annotations

import contextlib
import logging
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from qaic.support.text import escape_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_log = logging.getLogger("qaic.compiler")

#: levels of logging by severity
_LEVELS: Final = {"warning": logging.WARNING, "note": logging.INFO}


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A message of a compilation.

    Parameters
    ----------
    severity
        ``warning`` or ``note``.
    code
        Stable name of the message, with the part of the compiler that it comes from.
    message
        The text that users see.
    nodes
        Nodes, values or names in options that it is about; the text may name only the first of them.
    is_of_program
        Whether it is about the program, and not about a file that is written next to it.
    """

    severity: str
    code: str
    message: str
    nodes: tuple[str, ...] = ()
    is_of_program: bool = True

    def show(self) -> None:
        """Log it."""
        _log.log(_LEVELS[self.severity], "%s", escape_lines(self.message))


@dataclass(slots=True)
class Diagnostics:
    """The diagnostics of one compilation, in the order in which they were found."""

    items: list[Diagnostic] = field(default_factory=list)
    #: whether the program was compiled before, and lay in the cache
    from_cache: bool = False

    def add(self, item: Diagnostic) -> None:
        """Keep a diagnostic and show it."""
        self.items.append(item)
        item.show()


_current: ContextVar[Diagnostics | None] = ContextVar("diagnostics", default=None)


@contextlib.contextmanager
def recorded() -> Iterator[Diagnostics]:
    """Record messages of this thread; a record around it takes them, too."""
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
    """Neither show nor keep messages of this thread, as about one of many tries."""
    token = _current.set(_Silence())
    try:
        yield
    finally:
        _current.reset(token)


class _Silence(Diagnostics):
    """Takes diagnostics, and does nothing with them."""

    def add(self, item: Diagnostic) -> None:
        """Drop a diagnostic."""


def record(item: Diagnostic) -> None:
    """Record a diagnostic."""
    current = _current.get()
    if current is None:
        item.show()
    else:
        current.add(item)


def warn(code: str, text: str, *values: object, nodes: Iterable[str] = ()) -> None:
    """Record a warning.

    Parameters
    ----------
    code : str
        See `Diagnostic`.
    text : str
        Message, with places for `values` as `logging` has them.
    values : object
        What goes there.
    nodes : iterable of str
        What it is about.
    """
    record(Diagnostic("warning", code, text % values if values else text, tuple(nodes)))


def note(code: str, text: str, *values: object, nodes: Iterable[str] = ()) -> None:
    """Record a note; see `warn`."""
    record(Diagnostic("note", code, text % values if values else text, tuple(nodes)))


def repeat(items: Iterable[Diagnostic]) -> None:
    """Record diagnostics again that an earlier compilation of the same program has left; shows warnings."""
    current = _current.get()
    for item in items:
        if current is not None:
            current.items.append(item)
        if item.severity == "warning":
            item.show()
