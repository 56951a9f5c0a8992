"""Balance of work among the cores of a device, and among the devices of a program."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from qaic.report import Cell, Report, Table, columns_of
from qaic.stats.reports.capture import Capture, median, median_rows
from qaic.stats.reports.capture.op_info import BOOKKEEPING
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
    """Work of one core, statistics of the device itself left out."""

    core: int
    time_us: float
    pcycles: float | None
    operations: float


def loads(readers: list[TraceReader]) -> list[Load]:
    """Work of each core of a device, medians over its samples."""
    facts = readers[0].facts
    categories = facts.categories
    codes = [place for place, category in enumerate(categories.values) if category in BOOKKEEPING]
    work = ~np.isin(categories.codes, codes)
    count = len(facts.base) - 1

    def by_core(values: NDArray[np.float64]) -> NDArray[np.float64]:
        sums: NDArray[np.float64] = np.bincount(facts.cores[work], values[work], minlength=count).astype(
            np.float64
        )
        return sums

    times = median_rows([by_core(reader.ops.dur_u) for reader in readers])
    cycles = median_rows([by_core(reader.ops.pcycles) for reader in readers])
    counts = median_rows([by_core(reader.ops.count) for reader in readers])
    # Half the cycles would be no measure of the work.
    measured = all((reader.ops.pcycle_count[work] >= reader.ops.count[work]).all() for reader in readers)
    return [
        Load(core, readers[0].us(times[core]), float(cycles[core]) if measured else None, float(counts[core]))
        if core < count
        else Load(core, 0.0, None, 0.0)
        for core in (facts.core for facts in readers[0].cores)
    ]


def findings(values: Sequence[float]) -> list[tuple[float | None, str]]:
    """Judge values: ratio to the mean, and whether that is far above it and above one deviation."""
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
    """Work of every core, and those that have much more than the others."""
    capture = capture.typical
    rows: list[tuple[Cell, ...]] = []
    verdict = []
    for readers in capture.by_device():
        found = loads(readers)
        # Wall time hides imbalance, because cores wait for each other.
        cycles = [load.pcycles for load in found if load.pcycles is not None]
        weights = cycles if len(cycles) == len(found) and cycles else [load.time_us for load in found]
        judged = findings(weights)
        for place, (load, (ratio, finding)) in enumerate(zip(found, judged, strict=True)):
            rows.append((*_core_figures(readers, place, load), ratio, finding, *_ddr(readers, place)))
            if finding:
                verdict.append(
                    f"core {load.core} of device {readers[0].slice} is a {finding}: {ratio:.2f} x the mean"
                )
        if len(found) > 1 and any(weights):
            worst = max(weights) / (sum(weights) / len(weights))
            verdict.append(f"device {readers[0].slice}: the busiest core has {worst:.2f} x the mean work")
    if not verdict:
        verdict.append("one core: nothing to balance" if len(rows) == 1 else "work of the cores is unknown")
    note = "work does not include writing the statistics at the end, when all cores compete for memory"
    return Report("cores", "Cores", verdict, [Table("cores", "Cores", _CORES, rows, note)])


def _core_figures(readers: list[TraceReader], place: int, load: Load) -> tuple[Cell, ...]:
    records = [reader.cores[place] for reader in readers if place < len(reader.cores)]
    us = readers[0].us
    span = median([us(record.span_u) for record in records])
    cycles = median([record.pcycles for record in records])
    return (
        readers[0].slice,
        load.core,
        span,
        None if cycles is None else round(cycles),
        cycles / span if cycles is not None and span else None,
        load.time_us if load.operations else None,
        None if load.pcycles is None else round(load.pcycles),
        round(load.operations) if load.operations else None,
    )


def _ddr(readers: list[TraceReader], place: int) -> tuple[Cell, Cell]:
    pairs = [reader.cores[place].ddr_bytes for reader in readers if place < len(reader.cores)]
    read = median([None if pair is None else pair[0] for pair in pairs])
    written = median([None if pair is None else pair[1] for pair in pairs])
    return (None if read is None else round(read), None if written is None else round(written))


def devices(capture: Capture) -> Report:
    """Time and work of every device."""
    capture = capture.typical
    groups = capture.by_device()
    spans = [median([reader.span_us for reader in readers]) or 0.0 for readers in groups]
    work = [sum(load.time_us for load in loads(readers)) for readers in groups]
    counts = [sum(load.operations for load in loads(readers)) for readers in groups]
    judged = findings(work if all(work) else spans)
    rows: list[tuple[Cell, ...]] = []
    verdict = []
    for place, readers in enumerate(groups):
        ratio, finding = judged[place]
        all_spans = [reader.span_us for reader in readers]
        rows.append(
            (
                readers[0].slice,
                readers[0].facts.network,
                len(readers[0].cores),
                len(readers),
                spans[place],
                min(all_spans),
                max(all_spans),
                work[place] if counts[place] else None,
                round(counts[place]) if counts[place] else None,
                ratio,
                finding,
            )
        )
        if finding:
            verdict.append(f"device {readers[0].slice} is a {finding}: {ratio:.2f} x the mean")
    if len(groups) == 1:
        verdict.append("one device: nothing to balance")
    elif not verdict:
        verdict.append(f"{len(groups)} devices, none of them far above the mean")
    return Report("devices", "Devices", verdict, [Table("devices", "Devices", _DEVICES, rows)])
