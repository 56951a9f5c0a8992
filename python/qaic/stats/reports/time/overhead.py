"""Cost of measuring, and operations that take no longer."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from qaic.report import Cell, Column, Report, Table, columns_of
from qaic.stats.reports.capture import Capture, median, median_rows
from qaic.stats.reports.capture.groups import own_time_us, share
from qaic.support.text import counted, duration

#: largest number of listed operations
_MOST: Final = 200

_FIGURES = (Column("figure"), Column("value", kind="float"), Column("unit"))
_OPS = columns_of("operation | kind | count:int | time:float us | time per execution:float us")


@dataclass(frozen=True)
class Calibration:
    """Cost of measuring, as stated by the producer of the buffers."""

    plain_us: float | None = None
    measured_us: float | None = None
    #: additional time of a measured operation
    floor_us: float | None = None
    #: time of a measured inference, including the time to write the measurements
    call_us: float | None = None

    @property
    def sentence(self) -> str | None:
        """Return a sentence about the cost; None if it is not known."""
        if self.factor is None:
            return None
        if self.is_below_noise:
            return "the measurement did not make inferences slower"
        text = f"with the measurement, an inference takes {self.factor:.2f} x its usual time"
        return text + (f", and each operation {duration(self.floor_us)} more" if self.floor_us else "")

    @property
    def is_below_noise(self) -> bool:
        """True if measured inferences took no longer than others."""
        return self.factor is not None and self.factor < 1

    @property
    def factor(self) -> float | None:
        """Ratio of the times of a measured and an unmeasured inference."""
        return self.measured_us / self.plain_us if self.plain_us and self.measured_us else None


def calibration(capture: Capture) -> Calibration:
    """Return medians of the META sections of the samples; no floor if the cost is below the noise."""
    found = [_of_meta(reader.buffer.meta) for reader in capture.each()]
    known = Calibration(
        median([one.plain_us for one in found]),
        median([one.measured_us for one in found]),
        median([one.floor_us for one in found]) or None,
        median([one.call_us for one in found]),
    )
    return replace(known, floor_us=None) if known.is_below_noise else known


def _of_meta(meta: Mapping[str, Any] | None) -> Calibration:
    described = (meta or {}).get("calibration")
    if not isinstance(described, dict):
        return Calibration()

    def number(key: str) -> float | None:
        value = described.get(key)
        return float(value) if isinstance(value, int | float) and value >= 0 else None

    return Calibration(number("plain_us"), number("profiled_us"), number("per_op_us"), number("call_us"))


def overhead(capture: Capture) -> Report:
    """Report measured and unmeasured inferences, the floor of one operation, and the time of writing."""
    known = calibration(capture)
    flush = median([reader.flush_us() for reader in capture.each()]) or 0.0
    figures: list[tuple[Cell, ...]] = [
        ("inference, not measured", known.plain_us, "us"),
        ("inference, measured", known.measured_us, "us"),
        ("measured / not measured", known.factor, "x"),
        ("measured, including writing the record", known.call_us, "us"),
        ("cost of measuring an operation", known.floor_us, "us"),
    ]
    if any(reader.ops.count.any() for reader in capture.each()):
        figures.append(("writing the statistics (aicendcyclestats)", flush or None, "us"))
    saturated = sum(thread.saturated for reader in capture.each() for thread in reader.threads)
    if saturated:
        figures.append(("durations too long for their field", saturated, "operations"))
    verdict = []
    if known.sentence is not None:
        verdict.append(known.sentence)
    elif any(reader.run.instrumented for reader in capture.each()):
        verdict.append("times contain an unknown cost of measuring")
    tables = [
        Table(
            "figures", "Cost of measuring", _FIGURES, figures, "compare measured runs only with measured runs"
        )
    ]
    if known.floor_us is not None:
        rows, part = _at_floor(capture, known.floor_us)
        verdict.append(
            f"{counted(len(rows), 'operation')}, with {part:.1f} % of the time: no longer than measuring an "
            f"operation, {duration(known.floor_us)}, so such times are not reliable"
        )
        estimated = frozenset(range(min(len(rows), _MOST)))
        tables.append(
            Table("at-floor", "Operations within this cost", _OPS, rows[:_MOST], estimated_rows=estimated)
        )
    return Report("overhead", "Cost of measuring", verdict, tables)


def _at_floor(capture: Capture, floor_us: float) -> tuple[list[tuple[Cell, ...]], float]:
    rows: list[tuple[Cell, ...]] = []
    total = under = 0.0
    for readers in capture.by_device():
        facts = readers[0].facts
        times = median_rows([own_time_us(reader) for reader in readers])
        counts = median_rows([reader.ops.count for reader in readers])
        total += float(times.sum())
        low = at_floor(times, counts, floor_us)
        under += float(times[low].sum())
        order = sorted(np.flatnonzero(low).tolist(), key=lambda op: (-times[op], op))
        rows += [
            (
                facts.names[op],
                facts.kinds[op],
                round(float(counts[op])),
                float(times[op]),
                float(times[op] / counts[op]),
            )
            for op in order
        ]
    return rows, share(under, total) or 0.0


def marked(capture: Capture, table: Table) -> Table:
    """Return a table that marks rows whose time per execution does not exceed the cost of measuring."""
    floor_us = calibration(capture).floor_us
    if floor_us is None or not table.rows:
        return table
    times, counts = (np.array(table.column(name), np.float64) for name in ("time", "count"))
    low = at_floor(times, counts, floor_us)
    return replace(table, estimated_rows=frozenset(np.flatnonzero(low).tolist()))


def at_floor(
    times_us: np.ndarray[Any, Any], counts: np.ndarray[Any, Any], floor_us: float
) -> np.ndarray[Any, Any]:
    """Return True for operations whose time per execution does not exceed the cost of measuring."""
    low: np.ndarray[Any, Any] = (counts > 0) & (times_us <= floor_us * counts * (1 + 1e-9))
    return low
