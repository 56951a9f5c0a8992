"""Sums over operations with a common key, as medians over the samples.

The operations of each device are summed, and the medians over samples are added for all devices. A sum over
devices or cores is work, and not a latency.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qaic.report import Cell, Column, columns_of
from qaic.stats.reports.capture import Capture, median_rows
from qaic.stats.reports.capture.op_info import Coded, OpInfo
from qaic.stats.reports.capture.trace_reader import TraceReader

#: smallest multiple of its median at which a time is an outlier
_INTERRUPTED: Final = 3.0


def own_time_us(reader: TraceReader) -> NDArray[np.float64]:
    """Own time of each operation."""
    return reader.ops.dur_u * (1e6 / reader.hz)


def output_bytes(reader: TraceReader) -> NDArray[np.float64]:
    """Bytes that each operation wrote: as measured, else as the compiler computed for each execution."""
    written = reader.ops.out_bytes
    return np.where(written > 0, written, reader.facts.output_bytes * reader.ops.count)


#: columns of the operations that `Sums` adds up, by name; ``count`` excludes transfers
_MEASURES: Final[Mapping[str, Callable[[TraceReader], NDArray[np.float64]]]] = {
    "count": lambda reader: reader.ops.count,
    "present": lambda reader: reader.ops.count + reader.ops.transfer_count,
    "time": own_time_us,
    "pcycles": lambda reader: reader.ops.pcycles,
    "cycled": lambda reader: reader.ops.pcycle_count,
    "bytes": output_bytes,
    "sync": lambda reader: reader.ops.sync_u * (1e6 / reader.hz),
    "synced": lambda reader: reader.ops.sync_count,
    "transfer": lambda reader: reader.ops.transfer_u * (1e6 / reader.hz),
    "transfers": lambda reader: reader.ops.transfer_count,
    "moved": lambda reader: reader.ops.transfer_bytes,
    "macs": lambda reader: reader.facts.macs * reader.ops.count,
    "timed": lambda reader: own_time_us(reader) * (reader.facts.macs > 0),
    "worked": lambda reader: (
        (output_bytes(reader) + reader.facts.constant_bytes * reader.ops.count) * (reader.facts.macs > 0)
    ),
}


class Sums:
    """Sums over the operations with the same key; keys without executed operations are omitted.

    `key` returns the column of keys. `sums[name]` contains the sum of a measure for each of the `keys`.
    """

    def __init__(self, capture: Capture, key: Callable[[OpInfo], Coded]) -> None:
        self._devices = [(key(readers[0].facts), readers) for readers in capture.by_device()]
        self._places: dict[Any, int] = {}
        for coded, _ in self._devices:
            for value in coded.values:
                self._places.setdefault(value, len(self._places))
        self._sums: dict[str, NDArray[np.float64]] = {}
        self._kept = self._summed("present") != 0
        self.keys = [value for value, kept in zip(self._places, self._kept, strict=True) if kept]

    def _summed(self, name: str) -> NDArray[np.float64]:
        sums = np.zeros(len(self._places))
        for coded, readers in self._devices:
            places = [self._places[value] for value in coded.values]
            sums[places] += median_rows([coded.sums(_MEASURES[name](reader)) for reader in readers])
        return sums

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        if name not in self._sums:
            self._sums[name] = self._summed(name)[self._kept]
        return self._sums[name]

    def of(self, name: str = "time") -> dict[Any, float]:
        """Return the sum of a measure by key."""
        return dict(zip(self.keys, self[name].tolist(), strict=True))

    def total(self, name: str = "time") -> float:
        """Return the sum of a measure over all keys."""
        return float(sum(self[name].tolist()))

    def rows(
        self,
        figures: str,
        *,
        order: str | Callable[[Any], int] = "time",
        only: Callable[[Any], bool] = lambda _: True,
        whole: float | None = None,
    ) -> tuple[tuple[Column, ...], list[tuple[Cell, ...]]]:
        """Return the columns of some figures, and a row for each key.

        `figures` are names separated by `` | ``: the columns of the keys, then names of `_FIGURES`. `order`
        is the measure whose largest sum is first, or a function that returns the position of a key. `only`
        selects keys. `whole` is the time for 100 % of ``share``; by default, the time of all keys.
        """
        names = figures.split(" | ")
        chosen = [_FIGURES[name] for name in names if name in _FIGURES]
        columns = columns_of(" | ".join(_FIGURES[name][0] if name in _FIGURES else name for name in names))
        whole = self.total() if whole is None else whole
        with np.errstate(divide="ignore", invalid="ignore"):
            cells = [_cells(find(self, whole), column) for column, find in chosen]
        keys = [key if isinstance(key, tuple) else (key,) for key in self.keys]
        amounts = self[order].tolist() if isinstance(order, str) else [-order(key) for key in self.keys]
        places = sorted(
            (place for place, key in enumerate(self.keys) if only(key)),
            key=lambda place: (-amounts[place], tuple(map(str, keys[place]))),
        )
        width = len(names) - len(chosen)
        return columns, [(*keys[place][:width], *(cell[place] for cell in cells)) for place in places]


def _cells(values: NDArray[np.float64], column: str) -> list[Cell]:
    """Return the cells of a described column; values that are not finite are omitted."""
    is_whole = column.partition(":")[2] in {"int", "bytes"}
    return [
        None if not math.isfinite(value) else round(value) if is_whole else value for value in values.tolist()
    ]


def _known(values: NDArray[np.float64], measured: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return values, NaN for rows without measurements."""
    return np.where(measured != 0, values, np.nan)


#: name of a figure -> its column, and its computation from the sums of all keys and the whole time
_FIGURES: Final[Mapping[str, tuple[str, Callable[[Sums, float], NDArray[np.float64]]]]] = {
    "count": ("count:int", lambda sums, _: sums["count"]),
    "operations": ("operations:int", lambda sums, _: sums["count"]),
    "time": ("time:float us", lambda sums, _: sums["time"]),
    "share": ("share:percent", lambda sums, whole: 100 * sums["time"] / whole),
    "PCycles": ("PCycles:int", lambda sums, _: _known(sums["pcycles"], sums["cycled"])),
    "output": ("output:bytes", lambda sums, _: sums["bytes"]),
    "time per KB": ("time per KB:float us", lambda sums, _: sums["time"] * 1024 / sums["bytes"]),
    "output rate": ("rate:float GB/s", lambda sums, _: _rate(sums["bytes"], sums["time"])),
    "transfers": ("transfers:int", lambda sums, _: sums["transfers"]),
    "transfer time": ("time:float us", lambda sums, _: sums["transfer"]),
    "moved": ("moved:bytes", lambda sums, _: _known(sums["moved"], sums["moved"])),
    "moved rate": ("rate:float GB/s", lambda sums, _: _rate(sums["moved"], sums["transfer"])),
    "timed": ("time:float us", lambda sums, _: sums["timed"]),
    "timed share": ("share:percent", lambda sums, whole: 100 * sums["timed"] / whole),
    "MACs": ("MACs:int", lambda sums, _: sums["macs"]),
    "bytes": ("bytes:bytes", lambda sums, _: sums["worked"]),
    "MACs per byte": ("MACs per byte:float", lambda sums, _: sums["macs"] / sums["worked"]),
    "MAC rate": ("rate:float GMAC/s", lambda sums, _: sums["macs"] / sums["timed"] / 1000),
    "memory rate": ("memory rate:float GB/s", lambda sums, _: sums["worked"] / sums["timed"] / 1000),
}


def _rate(size: NDArray[np.float64], time_us: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return gigabytes per second, which are thousands of bytes per microsecond; NaN without bytes."""
    return _known(size / time_us / 1000, size)


@dataclass(frozen=True)
class Spread:
    """Own time of the operations with a key, over all inferences, in microseconds."""

    median: float
    least: float
    most: float

    def holds(self, time_us: float) -> bool:
        """Return True if a time is ordinary, less than several times the median."""
        return time_us <= _INTERRUPTED * self.median


def spreads(capture: Capture, key: Callable[[OpInfo], Coded]) -> dict[Any, Spread]:
    """Return the median and range over all inferences of the own time of each key, summed over devices."""
    found: dict[Any, NDArray[np.float64]] = {}
    for readers in capture.by_device():
        coded = key(readers[0].facts)
        rows = np.stack([coded.sums(own_time_us(reader)) for reader in readers])
        figures = np.stack([np.median(rows, axis=0), rows.min(axis=0), rows.max(axis=0)], axis=1)
        for value, of_device in zip(coded.values, figures, strict=True):
            found[value] = found.get(value, 0.0) + of_device
    return {value: Spread(*figures.tolist()) for value, figures in found.items()}


def share(part: float, whole: float) -> float | None:
    """Return the percentage of a whole; None if the whole is 0."""
    return 100 * part / whole if whole > 0 else None
