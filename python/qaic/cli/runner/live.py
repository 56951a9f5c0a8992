"""Live reports of ``qaic-runner``: the rate (``-l``) and the latencies (``-s``)."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from qaic.cli.console import print_line
from qaic.cli.runner.latencies import round_trips

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from qaic.cli.runner.latencies import Latencies

_STATS_PERIOD_SECONDS = 1.0


class RunProgress:
    """State of a run. One thread counts; a reader sees a number a moment old at worst."""

    def __init__(self) -> None:
        self.completed = 0
        #: what went wrong beside the run and has to end it
        self.fault: BaseException | None = None


class Reporter:
    """Thread that prints a line each period, from entering to leaving the ``with`` block."""

    def __init__(self, report: Callable[[], None], period_seconds: float) -> None:
        self._report = report
        self._period_seconds = period_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="qaic-runner-report", daemon=True)

    def _run(self) -> None:
        while not self._ended.wait(self._period_seconds):
            try:
                self._report()
            except BrokenPipeError:
                # The reader of the reports has gone; the run goes on, and its last lines find that out too.
                return

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()


def rate_reporter(progress: RunProgress, batch: int, period_ms: int) -> Reporter:
    """Report how many inferences are done, and the rate of the last period, batch included."""
    last_count, last_time = 0, time.perf_counter()

    def report() -> None:
        nonlocal last_count, last_time
        count, now = progress.completed, time.perf_counter()
        rate = (count - last_count) / (now - last_time) * batch
        print_line(f"Live: InferenceCnt {count} Period {count - last_count} Inf/Sec {rate:.3f}")
        last_count, last_time = count, now

    return Reporter(report, period_ms / 1e3)


def latency_reporter(latencies: Latencies) -> Reporter:
    """Report each second the time inferences took from submit to completion."""
    return Reporter(lambda: print_line(f"Live: {round_trips(latencies.take())}"), _STATS_PERIOD_SECONDS)
