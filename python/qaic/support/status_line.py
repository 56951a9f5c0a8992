"""One line about what takes long: written over and over on a terminal, a line now and then in a pipe."""

from __future__ import annotations

import sys
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

#: seconds between two updates on a terminal
_PERIOD_S: Final = 0.1
#: seconds between two lines in a pipe or file
_PIPE_PERIOD_S: Final = 10.0

_goes_to_pipes: ContextVar[bool] = ContextVar("goes_to_pipes", default=False)


@contextmanager
def lines_in_pipes() -> Iterator[None]:
    """Write a line every ten seconds where standard error is no terminal, until the block ends.

    Commands do; a library that is used inside a service stays silent.
    """
    token = _goes_to_pipes.set(True)
    try:
        yield
    finally:
        _goes_to_pipes.reset(token)


class StatusLine:
    """A line on standard error.

    Parameters
    ----------
    now_s : float
        Time by the monotonic clock.
    patience_s : float
        Seconds before it first appears on a terminal.
    """

    def __init__(self, now_s: float, patience_s: float = _PERIOD_S) -> None:
        stream = sys.stderr
        self._is_terminal = stream is not None and stream.isatty()
        #: whether anything is ever shown
        self.is_seen = self._is_terminal or (stream is not None and _goes_to_pipes.get())
        self._period_s = _PERIOD_S if self._is_terminal else _PIPE_PERIOD_S
        self._due_s = now_s + (patience_s if self._is_terminal else _PIPE_PERIOD_S)
        self._is_shown = False

    def is_due(self, now_s: float) -> bool:
        """Return whether it is time to show another text; the text need not be made before."""
        if not self.is_seen or now_s < self._due_s:
            return False
        self._due_s = now_s + self._period_s
        return True

    def show(self, text: str) -> None:
        """Replace the text. A pipe that nothing reads any more is no reason to end the work."""
        from qaic.support.text import escape_unprintable

        self._is_shown = True
        with suppress(BrokenPipeError):
            begin, end = ("\r\x1b[K", "") if self._is_terminal else ("note: ", "\n")
            sys.stderr.write(f"{begin}{escape_unprintable(text)}{end}")
            sys.stderr.flush()

    def close(self) -> None:
        """Remove the line from a terminal."""
        if self._is_shown and self._is_terminal:
            self.show("")
