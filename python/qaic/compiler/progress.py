"""Progress on a terminal for compilations that take longer than a second; silence otherwise."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final, Protocol, Self

if TYPE_CHECKING:
    from types import TracebackType

#: seconds before anything is shown, and between two updates
_PATIENCE: Final = 1.0
_INTERVAL: Final = 0.1


class _Line(Protocol):
    """One line on the terminal that is overwritten."""

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


def _open_line() -> _Line:
    try:
        return _RichLine()
    except ImportError:
        return _PlainLine()


class Progress:
    """Stages of one compilation: read, check, convert, write. Used as a context manager.

    Parameters
    ----------
    title : str
        What is being compiled.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._stage = ""
        self._started = time.monotonic()
        self._shown_at = 0.0
        self._line: _Line | None = None
        self._enabled = sys.stderr is not None and sys.stderr.isatty()

    def stage(self, name: str) -> None:
        """Enter a stage."""
        self._stage = name
        self._show(name)

    def advance(self, done: int, total: int) -> None:
        """Tell how many of the bytes of the stage are done."""
        if self._enabled and total:
            self._show(f"{self._stage} {100 * done // total} %")

    def _show(self, text: str) -> None:
        if not self._enabled:
            return
        now = time.monotonic()
        if now - self._started < _PATIENCE or now - self._shown_at < _INTERVAL:
            return
        self._shown_at = now
        if self._line is None:
            self._line = _open_line()
        self._line.show(f"{self._title}: {text} ({now - self._started:.0f} s)")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._line is not None:
            self._line.close()
