"""Statistics of a model, in the terms of Triton's statistics extension and of Prometheus."""

import collections
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from qaic.serving.batcher import Batcher, BatchReport
from qaic.support.text import escape_unprintable

_SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_LABELS = ("model", "version")


class Metrics:
    """Metrics of a server. `models` returns name, version, readiness and batcher of each loaded model."""

    def __init__(self, models: Callable[[], Iterable[tuple[str, int, bool, Batcher]]]) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "qaic_requests", "number of completed requests", (*_LABELS, "outcome"), registry=self.registry
        )
        self.request_s, self.queue_s, self.batch_rows = (
            Histogram(f"qaic_{name}", text, _LABELS, buckets=buckets, registry=self.registry)
            for name, text, buckets in (
                (
                    "request_duration_seconds",
                    "from the arrival of a request at the batcher to its end",
                    _SECONDS,
                ),
                (
                    "queue_duration_seconds",
                    "from the arrival of a request to the start of its inference",
                    _SECONDS,
                ),
                ("batch_rows", "rows of requests in an inference", _ROWS),
            )
        )
        self._models = models
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        queue = GaugeMetricFamily("qaic_queue_length", "requests that wait", labels=_LABELS)
        running = GaugeMetricFamily("qaic_running_inferences", "inferences on the device", labels=_LABELS)
        ready = GaugeMetricFamily("qaic_model_ready", "1 if a model is ready", labels=_LABELS)
        busy = CounterMetricFamily(
            "qaic_device_busy_seconds",
            "seconds in which the device ran inferences; the rate is the busy share",
            labels=_LABELS,
        )
        for name, version, is_ready, batcher in self._models():
            labels = (escape_unprintable(name), str(version))
            queue.add_metric(labels, batcher.waiting)
            running.add_metric(labels, batcher.running)
            ready.add_metric(labels, is_ready)
            busy.add_metric(labels, batcher.busy_s)
        yield from (queue, running, ready, busy)


class ModelStatistics:
    """Counts and durations of one version of a model. Any thread may call any method."""

    def __init__(self, name: str, version: int, metrics: Metrics) -> None:
        self._name, self._version = name, str(version)
        labels = (escape_unprintable(name), str(version))
        self._request_s = metrics.request_s.labels(*labels)
        self._queue_s = metrics.queue_s.labels(*labels)
        self._batch_rows = metrics.batch_rows.labels(*labels)
        self._succeeded = metrics.requests.labels(*labels, "success")
        self._failed = metrics.requests.labels(*labels, "failure")
        self._lock = threading.Lock()
        self._durations = {
            name: {"count": 0, "ns": 0}
            for name in ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
        }
        self._last_inference_ms = 0
        self._rows = 0
        self._executions = 0
        self._batches: dict[int, dict[str, int]] = collections.defaultdict(lambda: {"count": 0, "ns": 0})

    def batch_ended(self, report: BatchReport) -> None:
        """Count an inference."""
        self._batch_rows.observe(report.rows)
        with self._lock:
            self._last_inference_ms = time.time_ns() // 1_000_000
            if report.error is None:
                self._rows += report.rows
                self._executions += 1
                _add(self._batches[report.rows], report.run_ns)

    def request_ended(self, *, queue_ns: int, run_ns: int, is_success: bool) -> None:
        """Count a request."""
        self._request_s.observe((queue_ns + run_ns) / 1e9)
        self._queue_s.observe(queue_ns / 1e9)
        (self._succeeded if is_success else self._failed).inc()
        with self._lock:
            _add(self._durations["success" if is_success else "fail"], queue_ns + run_ns)
            if is_success:
                _add(self._durations["queue"], queue_ns)
                _add(self._durations["compute_infer"], run_ns)

    def as_dict(self) -> dict[str, Any]:
        """Return the counts and durations in the form of the protocol."""
        with self._lock:
            return {
                "name": self._name,
                "version": self._version,
                "last_inference": self._last_inference_ms,
                "inference_count": self._rows,
                "execution_count": self._executions,
                "inference_stats": {name: dict(value) for name, value in self._durations.items()},
                "batch_stats": [
                    {"batch_size": rows, "compute_infer": dict(value)}
                    for rows, value in sorted(self._batches.items())
                ],
            }


def _add(duration: dict[str, int], ns: int) -> None:
    duration["count"] += 1
    duration["ns"] += ns
