"""Measurements of a session: latencies and call profiles of its ``run`` calls."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from qaic.attribute_dict import AttributeDict
from qaic.errors import StateError
from qaic.support.lazy_module import LazyModule

if TYPE_CHECKING:
    import cProfile
else:
    cProfile = LazyModule("cProfile")  # noqa: N816 (its name)

_Where = tuple[str, int, str]

P = ParamSpec("P")
R = TypeVar("R")

PERCENTILES = {"P25": 25.0, "P50": 50.0, "P75": 75.0, "P90": 90.0, "P99": 99.0, "P999": 99.9}


class Metrics(AttributeDict[float]):
    """Statistics of latencies, in seconds."""

    num_of_inferences: int
    min_latency: float
    max_latency: float
    P25: float
    P50: float
    P75: float
    P90: float
    P99: float
    P999: float
    total_inference_time: float
    avg_latency: float


class LatencyRecord:
    """Wall times of ``run`` calls, in seconds.

    The first run after each load is a warm-up, which counts only if no other run is recorded.
    """

    def __init__(self) -> None:
        self._warm_up: list[float] = []
        self._latencies_s: list[float] = []

    def add(self, latency_s: float, *, warm_up: bool) -> None:
        """Record one run. Appending to a list is atomic, so threads need no lock."""
        (self._warm_up if warm_up else self._latencies_s).append(latency_s)

    def summary(self) -> Metrics:
        """Return count, extremes, mean, sum and percentiles (linear interpolation), in seconds."""
        return summarize(self.seconds())

    def seconds(self) -> NDArray[np.float64]:
        """Return the latencies without warm-ups, in the order in which the runs ended."""
        latencies = self._latencies_s or self._warm_up
        if not latencies:
            raise StateError("no run was recorded yet", code="metrics.empty", hints=("call run() first",))
        return np.array(latencies)


def summarize(latencies_s: NDArray[np.float64]) -> Metrics:
    """Return count, extremes, mean, sum and percentiles (linear interpolation) of latencies, in seconds."""
    return Metrics(
        num_of_inferences=len(latencies_s),
        min_latency=float(latencies_s.min()),
        max_latency=float(latencies_s.max()),
        **{name: float(np.percentile(latencies_s, rank)) for name, rank in PERCENTILES.items()},
        total_inference_time=float(latencies_s.sum()),
        avg_latency=float(latencies_s.mean()),
    )


def format_summary(summary: Metrics) -> str:
    """Return the lines of ``print_metrics``. As in the documentation, the average appears twice."""
    average = f"Average latency / inference time observed is {summary['avg_latency']} s"
    percentiles = [
        f"{name} / {name[1:]}% of inferences observed latency less than {summary[name]} s"
        for name in PERCENTILES
        if name != "P999"
    ]
    return "\n".join(
        [
            f"Number of inferences utilized for calculation are {summary['num_of_inferences']}",
            f"Minimum latency observed {summary['min_latency']} s",
            f"Maximum latency observed {summary['max_latency']} s",
            average,
            *percentiles,
            f"Sum of all the inference times {summary['total_inference_time']} s",
            average,
        ]
    )


class CallProfile:
    """Calls of one ``run``: ``(file, line, function)`` -> ``(calls, own seconds, cumulative seconds)``."""

    def __init__(self, profiler: "cProfile.Profile") -> None:
        # Few sessions profile, and the profiler takes a third of the import time of Session.
        import pstats

        stats: dict[_Where, tuple[int, int, float, float, Any]] = vars(pstats.Stats(profiler))["stats"]
        self.calls: dict[_Where, tuple[int, float, float]] = {
            where: (calls, own, cumulative) for where, (_, calls, own, cumulative, _) in stats.items()
        }

    @classmethod
    def record(cls, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> "tuple[R, CallProfile]":
        """Run ``work`` under the standard profiler."""
        import cProfile

        profiler = cProfile.Profile()
        result = profiler.runcall(work, *args, **kwargs)
        return result, cls(profiler)

    def __str__(self) -> str:
        """Return the documented table, ordered by cumulative time, the largest first."""
        header = "|  File-Line-Function  | |  num calls  | |  func time  | |  tot time  |"
        rows = sorted(self.calls.items(), key=lambda item: -item[1][2])
        return "\n\n".join(
            [
                header,
                *(
                    f"{where} {calls} {round(own, 9)} {round(total, 9)}"
                    for where, (calls, own, total) in rows
                ),
            ]
        )
