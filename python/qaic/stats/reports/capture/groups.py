"""Sums over operations that have something in common, as medians over the samples.

Each device is summed for itself, the median over its samples taken, and the devices added: a sum over devices
or cores is work, never a latency.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qaic.stats.reports.capture import median_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from qaic.stats.reports.capture import Capture
    from qaic.stats.reports.capture.op_info import Coded, OpInfo
    from qaic.stats.reports.capture.trace_reader import TraceReader


def own_time_us(reader: TraceReader) -> NDArray[np.float64]:
    """Own time of each operation."""
    return reader.ops.dur_u * (1e6 / reader.hz)


def output_bytes(reader: TraceReader) -> NDArray[np.float64]:
    """Bytes that each operation wrote: as measured, else as the compiler computed for each execution."""
    import numpy as np

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

    Parameters
    ----------
    capture
        Samples and devices.
    key
        Column of keys.
    weights
        Per name the column that is summed; ``count`` (executions, transfers left out) is always there.
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


def share(part: float, whole: float) -> float | None:
    """Percentage of a whole; None of nothing."""
    return 100 * part / whole if whole > 0 else None
