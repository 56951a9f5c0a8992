"""Looking at what the compiler logs, for as long as one compilation takes.

A handler that is added to a logger changes what becomes of messages: where no other handler is, Python shows
warnings on stderr, and stops doing so. A tap does that itself, so that it is not noticed.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ROOT = "qaic"


class _Tap(logging.Handler):
    def __init__(self, take: Callable[[logging.LogRecord], None]) -> None:
        super().__init__()
        self._take = take

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._take(record)
        except (OSError, ValueError):
            self.handleError(record)
        last = logging.lastResort
        shows = last is not None and record.levelno >= last.level and not is_handled(record.name)
        # Of several taps one shows it.
        if last is not None and shows and _taps()[-1] is self:
            last.handle(record)


def _taps() -> list[_Tap]:
    return [handler for handler in logging.getLogger(_ROOT).handlers if isinstance(handler, _Tap)]


def is_handled(name: str) -> bool:
    """Whether other handlers take the messages of a logger."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(not isinstance(handler, _Tap) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


@contextlib.contextmanager
def tapped(take: Callable[[logging.LogRecord], None]) -> Iterator[None]:
    """Hand every message of this package that is logged meanwhile, by whatever thread, to `take`."""
    logger = logging.getLogger(_ROOT)
    tap = _Tap(take)
    logger.addHandler(tap)
    try:
        yield
    finally:
        logger.removeHandler(tap)
