"""Time of the host: percentiles of every stage of the inferences."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qaic._core import profiling_clock
from qaic.errors import StatsError
from qaic.report import NOT_MEASURED, Cell, Report, Table, columns_of
from qaic.stats.reports.capture import Capture
from qaic.support.open_regular import read_regular
from qaic.support.text import counted, duration

#: columns of the latency report -> their names in tables, in the order of an inference
STAGES: Final = {
    "enqTimeUs": "waiting in the queue",
    "preProcTimeUs": "pre-processing",
    "submitTimeUs": "submitting",
    "exectoVcUs": "kernel to channel",
    "execToCompleteUs": "channel to interrupt",
    "hostRoundTripUs": "kernel to interrupt",
    "execTotalUs": "submitting to completion",
    "postProcUs": "post-processing",
    "totalRoundtripTimeUs": "total",
    "devExecUs": "device: execution",
    "devInWaitTimeUs": "device: waiting for input",
    "devOutWaitTimeUs": "device: waiting for output",
}
_TOTAL: Final = "totalRoundtripTimeUs"
#: stages that follow each other and add up to the total
_PARTS: Final = ("enqTimeUs", "preProcTimeUs", "execTotalUs", "postProcUs")
_QUEUE: Final = {"queueDepth": "elements in the queue before", "numInfInQueue": "inferences in the queue"}
_PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)
#: largest number of bytes of a latency report
_LARGEST_BYTES: Final = 1 << 30

_COLUMNS = columns_of(
    "stage | mean:float us | share of total:percent | min:float us | p50:float us | p90:float us | "
    "p99:float us | p99.9:float us | max:float us"
)
_QUEUE_COLUMNS = columns_of("figure | mean:float | p50:float | p99:float | max:float")


@dataclass(frozen=True)
class HostLatencies:
    """Columns of a latency report: microseconds and counts per inference; NaN is N/A."""

    columns: Mapping[str, NDArray[np.float64]]
    #: times of a profiler's samples, if recorded by a profiler, and UTC nanoseconds at the start of its clock
    times: NDArray[Any] | None = field(default=None, repr=False, compare=False)
    epoch_utc_ns: int = 0

    def __len__(self) -> int:
        return max((len(values) for values in self.columns.values()), default=0)

    @classmethod
    def of_report(cls, text: str, *, source: str = "latency report") -> HostLatencies:
        """Read the text of ``aic-profiling-program-<P>-latency.txt``.

        Raises StatsError if no line has the columns of a latency report, or a line has others.
        """
        lines = text.splitlines()
        head = next((place for place, line in enumerate(lines[:64]) if _TOTAL in _cells(line)), None)
        if head is None:
            raise StatsError(
                f"{source}: no line with the columns of a latency report, among them {_TOTAL}",
                code="stats.latency_format",
                hints=("such a file comes from qaic-runner with --aic-profiling-type latency",),
            )
        names = _cells(lines[head])
        rows = []
        for number, cells in enumerate(csv.reader(io.StringIO("\n".join(lines[head + 1 :]))), head + 2):
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(names):
                raise StatsError(
                    f"{source}: line {number} has {counted(len(cells), 'column')}, expected {len(names)}",
                    code="stats.latency_format",
                )
            rows.append([_number(cell, source, number) for cell in cells])
        values = np.array(rows, np.float64).reshape(len(rows), len(names))
        return cls({name: values[:, place] for place, name in enumerate(names)})

    @classmethod
    def of_samples(cls, times: NDArray[Any]) -> HostLatencies:
        """Read the times that a profiler recorded, in nanoseconds of one clock."""

        def between(first: str, last: str) -> NDArray[np.float64]:
            spans: NDArray[np.float64] = (
                times[last].astype(np.float64) - times[first].astype(np.float64)
            ) / 1000
            return spans

        return cls(
            {
                "enqTimeUs": between("enqueued_ns", "begun_ns"),
                "preProcTimeUs": between("begun_ns", "inputs_ready_ns"),
                "execTotalUs": between("inputs_ready_ns", "executed_ns"),
                "postProcUs": between("executed_ns", "outputs_ready_ns"),
                "totalRoundtripTimeUs": between("enqueued_ns", "completed_ns"),
                "queueDepth": times["queue_depth"].astype(np.float64),
                "numInfInQueue": times["in_queue"].astype(np.float64),
            },
            times,
            profiling_clock()[1],
        )

    @classmethod
    def of_file(cls, path: Any) -> HostLatencies:
        """Read a latency report. Blocking."""
        file = Path(path)
        if file.stat().st_size > _LARGEST_BYTES:
            raise StatsError(
                f"{file}: {file.stat().st_size} bytes, a latency report has at most {_LARGEST_BYTES}",
                code="stats.latency_format",
            )
        return cls.of_report(read_regular(file).decode("utf-8", errors="replace"), source=str(file))


def host_latency(capture: Capture) -> Report:
    """Report the percentiles of every stage, and the depth of the queue."""
    latencies: HostLatencies | None = capture.host
    if latencies is None or not len(latencies):
        why = "no latencies of the host were given; a latency report or samples of a profiler are expected"
        return Report("host-latency", "Time of the host", [], [Table("stages", "Stages", _COLUMNS, [], why)])
    columns = latencies.columns
    total = _known(columns.get(_TOTAL))
    mean_total = float(total.mean()) if len(total) else 0.0
    rows: list[tuple[Cell, ...]] = []
    missing: list[str] = []
    for name, title in STAGES.items():
        values = _known(columns.get(name))
        if not len(values):
            missing.append(title)
            continue
        mean = float(values.mean())
        part = 100 * mean / mean_total if mean_total > 0 and (name in _PARTS or name == _TOTAL) else None
        percentiles = [float(value) for value in np.percentile(values, _PERCENTILES)]
        rows.append((title, mean, part, float(values.min()), *percentiles, float(values.max())))
    queue_rows: list[tuple[Cell, ...]] = []
    for name, title in _QUEUE.items():
        values = _known(columns.get(name))
        if len(values):
            middle, high = (float(value) for value in np.percentile(values, (50, 99)))
            queue_rows.append((title, float(values.mean()), middle, high, float(values.max())))
    verdict = _verdict(columns, total)
    note = f"{NOT_MEASURED}: {', '.join(missing)}" if missing else None
    return Report(
        "host-latency",
        "Time of the host",
        verdict,
        [
            Table("stages", f"Stages of {counted(len(latencies), 'inference')}", _COLUMNS, rows, note),
            Table("queue", "Queue", _QUEUE_COLUMNS, queue_rows),
        ],
    )


def _verdict(columns: Mapping[str, NDArray[np.float64]], total: NDArray[np.float64]) -> list[str]:
    if not len(total):
        return []
    middle, high = (float(value) for value in np.percentile(total, (50, 99)))
    verdict = [
        f"an inference takes {duration(middle)} in the median, {duration(high)} in the 99th percentile"
    ]
    means = {name: float(values.mean()) for name in _PARTS if len(values := _known(columns.get(name)))}
    if means and total.mean() > 0:
        most = max(means, key=lambda name: means[name])
        verdict.append(
            f"most of it is {STAGES[most]}: {100 * means[most] / float(total.mean()):.1f} % of the mean"
        )
    return verdict


def _known(values: NDArray[np.float64] | None) -> NDArray[np.float64]:
    if values is None:
        return np.empty(0)
    known: NDArray[np.float64] = values[np.isfinite(values)]
    return known


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split(",")]


def _number(cell: str, source: str, line: int) -> float:
    text = cell.strip()
    if text in {"N/A", ""}:
        return float("nan")
    try:
        return float(text)
    except ValueError:
        raise StatsError(
            f"{source}: line {line} has {text[:40]!r}, expected a number or N/A", code="stats.latency_format"
        ) from None
