"""One line on a terminal that is written over and over: progress of what takes long."""

from __future__ import annotations

import sys


class StatusLine:
    """A line on standard error that is overwritten."""

    def show(self, text: str) -> None:
        """Replace the text."""
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()

    def close(self) -> None:
        """Remove the line."""
        self.show("")


def has_terminal() -> bool:
    """Whether the line could be seen."""
    return sys.stderr is not None and sys.stderr.isatty()
