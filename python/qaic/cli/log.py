"""Log messages of the compiler as lines of output of a tool.

Reports and the output of the vendor's compiler go to stdout, everything else to stderr.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

from qaic.cli.console import print_message, print_text
from qaic.compiler.backend.card_process import OUTPUT_LOGGER

_REPORTS: Final = "qaic.compiler.report"
#: level for each number of `v`
_LEVELS: Final = (logging.WARNING, logging.INFO, logging.DEBUG)
_KINDS: Final = {logging.INFO: "note", logging.DEBUG: "debug"}


class _Lines(logging.Handler):
    #: level of the lines; the level of the logger may be lower, for the file that `enable_debug` writes
    least = logging.WARNING

    def __init__(self, output: TextIO) -> None:
        super().__init__()
        self._output = output
        self._printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.name == OUTPUT_LOGGER and record.levelno > logging.INFO:
            print_text(text, to=sys.stderr)
        elif record.name in {_REPORTS, OUTPUT_LOGGER}:
            print_text(text, to=self._output)
            self._output.flush()
        elif record.levelno >= self.least and text not in self._printed:
            # A command that compiles a model several times prints each message once.
            self._printed.add(text)
            print_message(_KINDS.get(record.levelno, record.levelname.lower()), text)


@contextmanager
def logged(*, prints_json: bool = False) -> Iterator[Callable[[int], None]]:
    """Show log messages while the tool works; yields a function that sets their amount, from 0 to 3.

    Reports are written to stderr if the tool prints JSON.
    """
    logger, words = logging.getLogger("qaic"), logging.getLogger(OUTPUT_LOGGER)
    before = logger.level, words.level, logger.propagate
    handler = _Lines(sys.stderr if prints_json else sys.stdout)
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    words.setLevel(logging.INFO)
    # Otherwise a program that calls the tool as a function would get all messages twice.
    logger.propagate = False

    def set_verbosity(count: int) -> None:
        handler.least = _LEVELS[min(count, len(_LEVELS) - 1)]
        logger.setLevel(handler.least)

    try:
        yield set_verbosity
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        words.setLevel(before[1])
        logger.propagate = before[2]
