"""Latencies of a run, which ``-s`` and ``--json`` print."""

import json
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qaic import _core
from qaic.cli.console import print_line
from qaic.support.atomic_io import replace_bytes
from qaic.support.status_line import repeated

PERCENTILES: Final = (50, 90, 95, 99)


class Latencies:
    """Times from submission to completion of all inferences of a set since its construction."""

    def __init__(self, inference_set: _core.RtInferenceSet) -> None:
        self._profiler = _core.Profiler([inference_set])
        self._profiler.start()
        self._parts: list[NDArray[np.float64]] = []
        self._dropped = 0

    def take(self) -> _core.Samples:
        """Return the samples since the last call."""
        samples = self._profiler.drain()
        self._parts.append(_latencies_us(samples))
        self._dropped += samples.dropped
        return samples

    def summary(self) -> dict[str, Any]:
        """Summarize all inferences; ``samples_us`` lists those that were kept."""
        self.take()
        return summarize(np.concatenate(self._parts), self._dropped)


def summarize(latencies_us: NDArray[np.float64], dropped: int = 0) -> dict[str, Any]:
    """Summarize latencies in microseconds; ``samples_us`` lists those that were kept."""
    if not len(latencies_us):
        return {"count": 0, "dropped": dropped, "samples_us": []}
    percentiles = np.percentile(latencies_us, PERCENTILES)
    return {
        "count": len(latencies_us) + dropped,
        "dropped": dropped,
        "mean_us": float(latencies_us.mean()),
        "min_us": float(latencies_us.min()),
        **{f"p{name}_us": float(value) for name, value in zip(PERCENTILES, percentiles, strict=True)},
        "max_us": float(latencies_us.max()),
        "samples_us": latencies_us.tolist(),
    }


def _latencies_us(samples: _core.Samples) -> NDArray[np.float64]:
    times = samples.times()
    latencies_us: NDArray[np.float64] = (times["completed_ns"] - times["enqueued_ns"]) / 1e3
    return latencies_us


def round_trips(samples: _core.Samples) -> str:
    """Return a sentence about the round trip times of some samples."""
    if not len(samples):
        return "RoundTripTimeUs none completed"
    latencies_us = _latencies_us(samples)
    return (
        f"RoundTripTimeUs Avg {latencies_us.mean():.3f} Min {latencies_us.min():.3f} "
        f"Max {latencies_us.max():.3f} Count {len(samples) + samples.dropped}"
    )


def final_line(summary: dict[str, Any], in_flight: int) -> str:
    """Return the line about all inferences. Each latency includes the wait for earlier inferences."""
    if not summary["samples_us"]:
        return "LatencyUs none completed"
    figures = ("mean", "min", *(f"p{percent}" for percent in PERCENTILES), "max")
    shown = " ".join(f"{name.capitalize()} {summary[f'{name}_us']:.3f}" for name in figures)
    return f"LatencyUs {shown} Count {summary['count']} InFlight {in_flight}"


def write_json(path: Path, result: dict[str, Any]) -> None:
    """Write the result of a run. Blocking."""
    replace_bytes(path, json.dumps(result, indent=1).encode() + b"\n")


_STATS_PERIOD_SECONDS = 1.0


class RunProgress:
    """State of a run. One thread counts; readers may see a slightly older number."""

    def __init__(self) -> None:
        self.completed = 0
        #: samples of the completed inferences
        self.samples = 0
        #: failure in another thread that must end the run
        self.fault: BaseException | None = None


def rate_reporter(progress: RunProgress, period_ms: int) -> AbstractContextManager[None]:
    """Report the number of completed inferences, and the rate of samples in the last period."""
    last_count, last_samples, last_time = 0, 0, time.perf_counter()

    def report() -> None:
        nonlocal last_count, last_samples, last_time
        count, samples, now = progress.completed, progress.samples, time.perf_counter()
        rate = (samples - last_samples) / (now - last_time)
        print_line(f"Live: InferenceCnt {count} Period {count - last_count} Inf/Sec {rate:.3f}")
        last_count, last_samples, last_time = count, samples, now

    return repeated(report, period_ms / 1e3)


def latency_reporter(latencies: Latencies) -> AbstractContextManager[None]:
    """Report every second the times from submission to completion."""
    return repeated(lambda: print_line(f"Live: {round_trips(latencies.take())}"), _STATS_PERIOD_SECONDS)
