"""Live reports of ``qaic-runner``: the rate (``-l``) and the latencies (``-s``)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from qaic.cli.console import print_line
from qaic.cli.runner.latencies import round_trips
from qaic.support.status_line import repeated

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from qaic.cli.runner.latencies import Latencies

_STATS_PERIOD_SECONDS = 1.0


class RunProgress:
    """State of a run. One thread counts; a reader sees a number a moment old at worst."""

    def __init__(self) -> None:
        self.completed = 0
        #: what went wrong beside the run and has to end it
        self.fault: BaseException | None = None


def rate_reporter(progress: RunProgress, batch: int, period_ms: int) -> AbstractContextManager[None]:
    """Report how many inferences are done, and the rate of the last period, batch included."""
    last_count, last_time = 0, time.perf_counter()

    def report() -> None:
        nonlocal last_count, last_time
        count, now = progress.completed, time.perf_counter()
        rate = (count - last_count) / (now - last_time) * batch
        print_line(f"Live: InferenceCnt {count} Period {count - last_count} Inf/Sec {rate:.3f}")
        last_count, last_time = count, now

    return repeated(report, period_ms / 1e3)


def latency_reporter(latencies: Latencies) -> AbstractContextManager[None]:
    """Report each second the time inferences took from submit to completion."""
    return repeated(lambda: print_line(f"Live: {round_trips(latencies.take())}"), _STATS_PERIOD_SECONDS)
