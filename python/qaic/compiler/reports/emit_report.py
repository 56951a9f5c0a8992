"""Prints the reports of a compilation that options request, and writes its log.

Text goes to the logger ``qaic.compiler.report``. It shows reports at any level of the root logger, because
they were requested. A process without logging handlers gets them on stderr.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qaic.compiler.diagnostics.progress import PassLog
from qaic.compiler.output_folder import debug_folder, record
from qaic.options.table import CompileOptions
from qaic.support.text import escape_lines

if TYPE_CHECKING:
    from qaic.compiler.ir.model import Context, Model
    from qaic.compiler.ir.quantization import QuantizationPlan

_log = logging.getLogger("qaic.compiler")
_report = logging.getLogger("qaic.compiler.report")
_report.setLevel(logging.INFO)

DEBUG_LOG: Final = "compile.log"

#: options that require the passes to run, so that a container from the cache is not sufficient
_OPTIONS: Final = ("aic_perf_metrics", "aic_perf_warnings", "enable_debug", "time_passes")


def wanted(options: CompileOptions) -> list[str]:
    """Return the options that request a report, which only a compilation can write."""
    return [name for name in _OPTIONS if getattr(options, name)]


def publish(title: str, text: str) -> None:
    """Log a report for the user."""
    message = f"{title}\n{text}"
    if _report.hasHandlers():
        _report.info("%s", message)
    else:
        sys.stderr.write(f"{escape_lines(message)}\n")


def publish_costs(model: Model, context: Context) -> None:
    """Publish patterns that are slow on a card, and costs, if options request them.

    The hints refer to the user's model with inferred shapes.
    """
    options = context.options
    if options.aic_perf_warnings:
        from qaic.compiler.reports import perf_metrics

        found = perf_metrics.hints(model.specialized[0], context.given_weights, context.plan.classes)
        publish("performance warnings", "\n".join(found) or "none")
    if options.aic_perf_metrics:
        from qaic.compiler.reports import perf_metrics

        names = [one.name for one in model.specializations] or [""] * len(model.specialized)
        works = list(map(perf_metrics.work_of, model.specialized, names))
        counts = perf_metrics.parameters_of(model.proto, model.weights)
        publish("performance metrics", perf_metrics.table(works, counts))


def save_plan(folder: Path | None, plan: QuantizationPlan | None) -> None:
    """Save the quantization plan in the folder of `enable_debug`: text, JSON, and files for a compilation."""
    if folder is not None and plan is not None:
        from qaic.compiler.quantization.plan_files import files_of

        files = files_of(plan)
        record(folder, files)
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")


@contextlib.contextmanager
def watched(options: CompileOptions, output_dir: Path | None) -> Iterator[PassLog | None]:
    """Record the passes of one compilation, and publish their times when it succeeds.

    Graphs and the log of the compiler are saved in ``compiler-debug`` in `output_dir`. Yields the record of
    the passes; None if it is not requested.
    """
    if not (options.time_passes or options.enable_debug):
        yield None
        return
    with contextlib.ExitStack() as until_the_end:
        folder = None
        if options.enable_debug:
            folder = _debug_folder(output_dir)
            if folder is not None:
                until_the_end.enter_context(debug_log(folder / DEBUG_LOG))
        passes = PassLog(folder)
        yield passes
        passes.enter("")
    if options.time_passes:
        publish("passes of the compiler", passes.table())


def _debug_folder(output_dir: Path | None) -> Path | None:
    if output_dir is None:
        _log.warning("enable_debug writes its files to the output directory, so it needs output_dir")
        return None
    folder = debug_folder(output_dir)
    record(folder, [DEBUG_LOG])
    return folder


_LOGGER = logging.getLogger("qaic")
#: parent of the loggers of requested reports, which are shown at every level
_REPORTS = "qaic.compiler.report"


class _LowerCase(logging.Formatter):
    """Formats lines of the file: level in lower case, logger, message."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{record.levelname.lower()} {record.name}: {record.getMessage()}"


class _Console:
    """Shows warnings and reports on stderr, as Python does in a process without logging handlers.

    A handler for a file would disable that default. Concurrent compilations share one console.
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
    """Write all messages that are logged in a block to a file too, including debug messages.

    An existing file is replaced.
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
