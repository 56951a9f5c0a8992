"""Balance of work among the cores of a device, and among the devices of a program."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from qaic.report import Cell, Report, Table, columns_of
from qaic.stats.buffer import CoreTimes
from qaic.stats.reports.capture import Capture
from qaic.stats.reports.capture.trace_reader import TraceReader

# Thresholds of the findings.
_STRAGGLER: Final = 1.5
_CRITICAL: Final = 3.0

_CORES = columns_of(
    "device:int | core:int | span:float us | PCycles:int | frequency:float MHz | work:float us | "
    "work PCycles:int | operations:int | of the mean:float | finding | DDR read:bytes | DDR written:bytes"
)
_DEVICES = columns_of(
    "device:int | network | cores:int | samples:int | span:float us | fastest:float us | slowest:float us | "
    "work:float us | operations:int | of the mean:float | finding"
)


@dataclass(frozen=True)
class Load:
    """Work of one core, without the time to write statistics."""

    core: int
    time_us: float
    pcycles: float | None
    operations: float


def loads(reader: TraceReader) -> list[Load]:
    """Return the work of each core of a device."""
    facts, ops = reader.facts, reader.ops
    work = ~facts.is_bookkeeping
    count = len(facts.base) - 1
    times, cycles, counts = (
        np.bincount(facts.cores[work], values[work], minlength=count)
        for values in (ops.dur_u, ops.pcycles, ops.count)
    )
    # Cycles measure the work only if all executions have them.
    measured = bool((ops.pcycle_count[work] >= ops.count[work]).all())
    return [
        Load(core, reader.us(times[core]), float(cycles[core]) if measured else None, float(counts[core]))
        if core < count
        else Load(core, 0.0, None, 0.0)
        for core in (record.number for record in reader.cores)
    ]


def findings(values: Sequence[float]) -> list[tuple[float | None, str]]:
    """Return the ratio of each value to the mean, and a finding if it is far above the mean."""
    mean = float(np.mean(values)) if len(values) else 0.0
    deviation = float(np.std(values)) if len(values) else 0.0
    if len(values) < 2 or mean <= 0:
        return [(None, "") for _ in values]
    return [
        (
            value / mean,
            ""
            if value <= _STRAGGLER * mean or value <= mean + deviation
            else "critical straggler"
            if value > _CRITICAL * mean
            else "straggler",
        )
        for value in values
    ]


def cores(capture: Capture) -> Report:
    """Report the work of every core, and cores with much more work than the others."""
    rows: list[tuple[Cell, ...]] = []
    verdict = []
    for reader in capture.typical.each():
        found = loads(reader)
        # Wall time hides imbalance, because cores wait for each other.
        cycles = [load.pcycles for load in found if load.pcycles is not None]
        weights = cycles if len(cycles) == len(found) and cycles else [load.time_us for load in found]
        judged = findings(weights)
        for record, load, (ratio, finding) in zip(reader.cores, found, judged, strict=True):
            rows.append(
                (*_core_figures(reader, record, load), ratio, finding, *(record.ddr_bytes or (None, None)))
            )
            if finding:
                verdict.append(
                    f"{finding}: core {load.core} of device {reader.slice}, {ratio:.2f} x the mean"
                )
        if len(found) > 1 and any(weights):
            worst = max(weights) / (sum(weights) / len(weights))
            verdict.append(f"device {reader.slice}: the busiest core has {worst:.2f} x the mean work")
    if not verdict:
        verdict.append("one core: nothing to balance" if len(rows) == 1 else "work of the cores is unknown")
    note = "work does not include writing the statistics at the end, when all cores compete for memory"
    return Report("cores", "Cores", verdict, [Table("cores", "Cores", _CORES, rows, note)])


def _core_figures(reader: TraceReader, record: CoreTimes, load: Load) -> tuple[Cell, ...]:
    span = reader.us(record.span_u)
    return (
        reader.slice,
        load.core,
        span,
        record.pcycles,
        record.pcycles / span if record.pcycles is not None and span else None,
        load.time_us if load.operations else None,
        None if load.pcycles is None else round(load.pcycles),
        round(load.operations) if load.operations else None,
    )


def devices(capture: Capture) -> Report:
    """Report the time and work of every device."""
    readers = capture.typical.each()
    found = [loads(reader) for reader in readers]
    work = [sum(load.time_us for load in of_device) for of_device in found]
    counts = [sum(load.operations for load in of_device) for of_device in found]
    judged = findings(work if all(work) else [reader.span_us for reader in readers])
    spans: dict[tuple[int, str], list[float]] = {}
    for reader in capture.each():
        spans.setdefault((reader.slice, reader.facts.network), []).append(reader.span_us)
    rows: list[tuple[Cell, ...]] = []
    verdict = []
    for place, (reader, (ratio, finding)) in enumerate(zip(readers, judged, strict=True)):
        rows.append(
            (
                reader.slice,
                reader.facts.network,
                len(reader.cores),
                len(measured := spans[reader.slice, reader.facts.network]),
                reader.span_us,
                min(measured),
                max(measured),
                work[place] if counts[place] else None,
                round(counts[place]) if counts[place] else None,
                ratio,
                finding,
            )
        )
        if finding:
            verdict.append(f"{finding}: device {reader.slice}, {ratio:.2f} x the mean")
    if len(readers) == 1:
        verdict.append("one device: nothing to balance")
    elif not verdict:
        verdict.append(f"{len(readers)} devices, none of them far above the mean")
    return Report("devices", "Devices", verdict, [Table("devices", "Devices", _DEVICES, rows)])
