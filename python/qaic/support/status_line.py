"""Shows the progress of long work: one line on a terminal, periodic lines in a pipe."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Final

#: seconds between two updates on a terminal, and before the first
_PERIOD_S: Final = 0.1
#: seconds between two lines in a pipe or file
_PIPE_PERIOD_S: Final = 10.0
#: seconds to wait for the timer at the end; a stopped terminal or the exit of Python can block the timer
_LONGEST_END_S: Final = 1.0
_ERASE: Final = "\r\x1b[K"

_goes_to_pipes: ContextVar[bool] = ContextVar("goes_to_pipes", default=False)
#: true while a terminal shows a line
_is_shown = False
_writing: Final = threading.RLock()


@contextmanager
def lines_in_pipes() -> Iterator[None]:
    """Write a line every ten seconds if standard error is not a terminal, until the block ends.

    Commands use it; a library in a service stays silent.
    """
    token = _goes_to_pipes.set(True)
    try:
        yield
    finally:
        _goes_to_pipes.reset(token)


@contextmanager
def exclusive() -> Iterator[None]:
    """Keep other threads from writing to the terminal; waits at most a second for a stopped terminal."""
    has_lock = _writing.acquire(timeout=_LONGEST_END_S)
    try:
        yield
    finally:
        if has_lock:
            _writing.release()


@contextmanager
def repeated(work: Callable[[], None], period_s: float) -> Iterator[None]:
    """Call a function each period, from a thread, until the block ends or no one reads its output."""
    ended = threading.Event()

    def run() -> None:
        with suppress(BrokenPipeError):
            while not ended.wait(period_s):
                work()

    thread = threading.Thread(target=run, name="qaic-timer", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_LONGEST_END_S)


@contextmanager
def status_line(text: Callable[[], str], patience_s: float = _PERIOD_S) -> Iterator[None]:
    """Show a text and the elapsed seconds on standard error until the block ends.

    `text` returns the text and is called from another thread; `patience_s` is the number of seconds before
    the line first appears on a terminal.
    """
    stream = sys.stderr
    is_terminal = stream is not None and stream.isatty()
    if not is_terminal and (stream is None or not _goes_to_pipes.get()):
        yield
        return
    from qaic.support.text import escape_unprintable

    begin, end = (_ERASE, "") if is_terminal else ("note: ", "\n")
    began = time.monotonic()

    def show() -> None:
        global _is_shown  # noqa: PLW0603 (a process has one terminal)
        elapsed_s = time.monotonic() - began
        if not is_terminal or elapsed_s >= patience_s:
            line = f"{begin}{escape_unprintable(text())} ({elapsed_s:.0f} s){end}"
            with exclusive():
                _is_shown = is_terminal
                stream.write(line)
                stream.flush()

    try:
        with repeated(show, _PERIOD_S if is_terminal else _PIPE_PERIOD_S):
            yield
    finally:
        erase()


def erase() -> None:
    """Remove the line from the terminal, so that other output has a line of its own."""
    global _is_shown  # noqa: PLW0603 (as above)
    with exclusive():
        if _is_shown:
            _is_shown = False
            with suppress(OSError, ValueError):
                sys.stderr.write(_ERASE)
                sys.stderr.flush()
