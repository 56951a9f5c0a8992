"""Sums over operations that have something in common, as medians over the samples.

Each device is summed for itself, the median over its samples taken, and the devices added: a sum over devices
or cores is work, never a latency.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qaic.stats.reports.capture import Capture, median_rows
from qaic.stats.reports.capture.op_info import Coded, OpInfo
from qaic.stats.reports.capture.trace_reader import TraceReader

#: least multiple of its median at which a time is an outlier
_INTERRUPTED: Final = 3.0


def own_time_us(reader: TraceReader) -> NDArray[np.float64]:
    """Own time of each operation."""
    return reader.ops.dur_u * (1e6 / reader.hz)


def output_bytes(reader: TraceReader) -> NDArray[np.float64]:
    """Bytes that each operation wrote: as measured, else as the compiler computed for each execution."""
    written = reader.ops.out_bytes
    return np.where(written > 0, written, reader.facts.output_bytes * reader.ops.count)


@dataclass(frozen=True)
class Group:
    """One row of sums."""

    key: Any
    sums: Mapping[str, float]

    def __getitem__(self, name: str) -> float:
        return self.sums[name]


def grouped(
    capture: Capture,
    key: Callable[[OpInfo], Coded],
    weights: Mapping[str, Callable[[TraceReader], NDArray[np.float64]]],
) -> list[Group]:
    """Sum columns over the operations with the same key; groups that nothing was executed of are left out.

    `key` returns the column of keys. `weights` has per name the column that is summed; ``count`` (executions,
    transfers left out) is always there.
    """
    found: dict[Hashable, dict[str, float]] = {}
    columns = {
        "count": lambda reader: reader.ops.count,
        "present": lambda reader: reader.ops.count + reader.ops.transfer_count,
        **weights,
    }
    for readers in capture.by_device():
        coded = key(readers[0].facts)
        for name, column in columns.items():
            sums = median_rows([coded.sums(column(reader)) for reader in readers])
            for value, amount in zip(coded.values, sums, strict=True):
                row = found.setdefault(value, dict.fromkeys(columns, 0.0))
                row[name] += float(amount)
    return [Group(value, row) for value, row in found.items() if row["present"]]


@dataclass(frozen=True)
class Spread:
    """Own time of what has a key in common, over all inferences, in microseconds."""

    median: float
    least: float
    most: float

    def holds(self, time_us: float) -> bool:
        """Return true if a time is ordinary, less than several times the median."""
        return time_us <= _INTERRUPTED * self.median


def spreads(capture: Capture, key: Callable[[OpInfo], Coded]) -> dict[Any, Spread]:
    """Median and range over all inferences of the own time of each key, the sum of the devices."""
    found: dict[Any, NDArray[np.float64]] = {}
    for readers in capture.by_device():
        coded = key(readers[0].facts)
        rows = np.stack([coded.sums(own_time_us(reader)) for reader in readers])
        figures = np.stack([np.median(rows, axis=0), rows.min(axis=0), rows.max(axis=0)], axis=1)
        for value, of_device in zip(coded.values, figures, strict=True):
            found[value] = found.get(value, 0.0) + of_device
    return {value: Spread(*figures.tolist()) for value, figures in found.items()}


def share(part: float, whole: float) -> float | None:
    """Percentage of a whole; None of nothing."""
    return 100 * part / whole if whole > 0 else None
