"""The log of one compilation in a file, for `enable_debug`."""

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

_LOGGER = logging.getLogger("qaic")
#: parent of the loggers of requested reports, which are shown at every level
_REPORTS = "qaic.compiler.report"


class _LowerCase(logging.Formatter):
    """Formats lines of the file: level in lower case, logger, message."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{record.levelname.lower()} {record.name}: {record.getMessage()}"


class _Console:
    """Shows warnings and reports on stderr, as Python does in a process without logging handlers.

    A handler for a file would end that. Compilations that overlap share one console.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._handler: logging.Handler | None = None

    def open(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1 and not _LOGGER.hasHandlers():
                self._handler = logging.StreamHandler()
                self._handler.addFilter(
                    lambda record: record.levelno >= logging.WARNING or record.name == _REPORTS
                )
                _LOGGER.addHandler(self._handler)

    def close(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._handler is not None:
                _LOGGER.removeHandler(self._handler)
                self._handler = None


_console = _Console()


@contextlib.contextmanager
def debug_log(path: Path) -> Iterator[None]:
    """Write everything that is logged meanwhile to a file as well, debug messages included.

    The file is replaced if it exists.
    """
    level = _LOGGER.level
    handler = logging.FileHandler(path, "w", encoding="utf-8")
    handler.setFormatter(_LowerCase())
    _console.open()
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        _LOGGER.setLevel(level)
        _LOGGER.removeHandler(handler)
        with contextlib.suppress(OSError):
            # Errors of writing were reported when they occurred.
            handler.close()
        _console.close()
