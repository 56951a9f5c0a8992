"""One line on a terminal that is written over and over: progress of what takes long."""

from __future__ import annotations

import sys
from typing import Protocol


class TerminalLine(Protocol):
    """A line that is overwritten."""

    def show(self, text: str) -> None:
        """Replace the text."""

    def close(self) -> None:
        """Remove the line."""


class _PlainLine:
    """The line by terminal codes alone."""

    def show(self, text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()

    def close(self) -> None:
        self.show("")


class _RichLine:
    """The line with a spinner, where rich is installed."""

    def __init__(self) -> None:
        from rich.console import Console

        self._status = Console(stderr=True).status("")
        self._status.start()

    def show(self, text: str) -> None:
        from rich.markup import escape

        self._status.update(escape(text))

    def close(self) -> None:
        self._status.stop()


def open_line() -> TerminalLine:
    """Open a line on standard error."""
    try:
        return _RichLine()
    except ImportError:
        return _PlainLine()


def has_terminal() -> bool:
    """Whether the line could be seen."""
    return sys.stderr is not None and sys.stderr.isatty()
