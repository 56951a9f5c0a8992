"""The overview: speed, limiting factor, and advice."""

from collections.abc import Callable
from typing import Final

import numpy as np

from qaic.report import NOT_MEASURED, Cell, Column, Report, Table, columns_of
from qaic.stats.reports.advice import advice, precisions, types
from qaic.stats.reports.capture import Capture, Sample, median
from qaic.stats.reports.capture.groups import Sums
from qaic.stats.reports.capture.op_info import CATEGORIES
from qaic.stats.reports.capture.trace_reader import TraceReader
from qaic.stats.reports.cores import findings, loads
from qaic.stats.reports.memory import residency
from qaic.stats.reports.time.bottleneck import Bottleneck, bottleneck_of
from qaic.stats.reports.time.disturbance import disturbances
from qaic.stats.reports.time.overhead import Calibration, calibration
from qaic.support.text import counted, duration

_FIGURES = columns_of("figure | median:float | min:float | max:float | unit")
#: names of waits by the direction of a port
_WAITS: Final = ("input wait", "output wait")
_PARTS = (Column("part"), Column("of the cores' time", kind="percent"))
_MEANING: Final = {
    "compute": "arithmetic takes most of the time",
    "memory": "moving data takes most of the time",
    "layout": "converting formats and layouts takes most of the time",
    "overhead": "most of the time no large operation runs",
}


def overview(capture: Capture) -> Report:
    """Report the verdict and key figures."""
    known = calibration(capture)
    bottleneck = bottleneck_of(capture, known.floor_us) if capture.samples else None
    figures = _figures(capture)
    tables = [
        advice(capture, bottleneck),
        Table("figures", "Key figures", _FIGURES, figures, _missing(figures)),
    ]
    if bottleneck is not None:
        rows: list[tuple[Cell, ...]] = [*bottleneck.parts.items(), ("other operations", bottleneck.other)]
        note = (
            "of the cores' time, idle time included; compute is matrix, dequantize, normalize and elementwise"
            " together; engines work in parallel, so the parts need not add up to 100"
        )
        tables.append(Table("parts", "Time by part", _PARTS, rows, note))
        tables.append(_categories(capture.typical))
        tables += [table for table in (precisions(capture.typical),) if table.rows]
        tables.append(types(capture.typical))
    return Report("overview", "Overview", [*_verdict(capture, bottleneck, known), *_remarks(capture)], tables)


def _verdict(capture: Capture, bottleneck: Bottleneck | None, known: Calibration) -> list[str]:
    span = capture.median(lambda sample: sample.span_us)
    if span is None:
        return ["no inference was measured on the device"]
    where = "the CPU device" if capture.is_cpu else counted(capture.devices, "device")
    count = len(capture.samples)
    spans = [found for sample in capture.samples if (found := sample.span_us)]
    spread = "one sample"
    if count > 1:
        spread = f"median of {counted(count, 'sample')}, {duration(min(spans))} to {duration(max(spans))}"
    verdict = [f"an inference takes {duration(span)} on {where} ({spread})"]
    if bottleneck is None:
        verdict.append("the limiting factor is unknown: only stats level 70 and above measures operations")
        return verdict
    parts = ", ".join(f"{name} {part:.1f} %" for name, part in bottleneck.parts.items())
    if count > 1:
        place = capture.typical_place
        number = capture.samples[place].inference
        verdict.append(
            f"the parts of this time are those of sample {place + 1} of {count} (inference {number} of the "
            "session), whose operations are nearest to their medians"
        )
    meaning = f"{_MEANING.get(bottleneck.name, 'no part dominates')} ({parts})"
    if reasons := disturbances(capture):
        verdict.insert(0, f"in the inference that the reports show, {meaning}")
        verdict.insert(
            0, f"not certain, measure again on an idle machine, one inference at a time: {'; '.join(reasons)}"
        )
    else:
        verdict.insert(0, f"{bottleneck.name}-bound: {meaning}" if bottleneck.name else meaning)
    if known.sentence is not None:
        verdict.append(known.sentence)
    if capture.is_cpu:
        verdict.append(
            "one CPU thread was measured: HVX, HMX, DMA and DDR traffic are not measured on this device"
        )
    return verdict


def _remarks(capture: Capture) -> list[str]:
    remarks = []
    for reader in capture.typical.each():
        found = loads(reader)
        judged = findings([load.time_us for load in found])
        remarks += [
            f"{finding}: core {load.core} of device {reader.slice}, {ratio:.2f} x the mean work"
            for load, (ratio, finding) in zip(found, judged, strict=True)
            if finding
        ]
    if any(reader.run.ops_truncated for reader in capture.each()):
        remarks.append("the buffer was too small for all operations: sums are too low")
    saturated = sum(thread.saturated for reader in capture.each() for thread in reader.threads)
    if saturated:
        remarks.append(f"{saturated} durations did not fit their field and are too short")
    near = residency(Sums(capture.typical, lambda facts: facts.memories))
    if near is not None:
        remarks.append(f"{near:.1f} % of the operations' time uses TCM")
    return remarks


def _figures(capture: Capture) -> list[tuple[Cell, ...]]:
    def waited(direction: int) -> Callable[[Sample], float | None]:
        def value(sample: Sample) -> float | None:
            waits = [
                reader.us(int(port["wait_u"]))
                for reader in sample.readers
                for port in reader.buffer.ports
                if int(port["direction"]) == direction
            ]
            return max(waits, default=None)

        return value

    rows: list[tuple[Cell, ...]] = []

    def add(title: str, unit: str, value: Callable[[Sample], float | None]) -> None:
        values = [found for sample in capture.samples if (found := value(sample)) is not None]
        rows.append(
            (title, median(values), min(values), max(values), unit)
            if values
            else (title, None, None, None, unit)
        )

    add("inference time", "us", lambda sample: sample.span_us)
    add("rate", "inf/s", lambda sample: _batch(sample) * 1e6 / sample.span_us if sample.span_us else None)
    for direction, name in enumerate(_WAITS):
        add(name, "us", waited(direction))
    add("PCycles, busiest core", "cycles", lambda sample: _most(sample, _pcycles))
    add("frequency", "MHz", lambda sample: _most(sample, _frequency))
    add("DDR traffic", "bytes", _ddr)
    return rows


def _batch(sample: Sample) -> int:
    return max(1, max((int(reader.run.batch_size) for reader in sample.readers), default=1))


def _most(sample: Sample, value: Callable[[TraceReader], float | None]) -> float | None:
    return max((found for reader in sample.readers if (found := value(reader)) is not None), default=None)


def _pcycles(reader: TraceReader) -> float | None:
    return max((float(core.pcycles) for core in reader.cores if core.pcycles is not None), default=None)


def _frequency(reader: TraceReader) -> float | None:
    found = [core.pcycles / reader.us(core.span_u) for core in reader.cores if core.pcycles and core.span_u]
    return float(np.mean(found)) if found else None


def _ddr(sample: Sample) -> float | None:
    pairs = [
        core.ddr_bytes for reader in sample.readers for core in reader.cores if core.ddr_bytes is not None
    ]
    return float(sum(read + written for read, written in pairs)) if pairs else None


def _missing(figures: list[tuple[Cell, ...]]) -> str | None:
    missing = [str(row[0]) for row in figures if row[1] is None]
    waits = [name for name in missing if name in _WAITS]
    others = [name for name in missing if name not in _WAITS]
    notes = [f"{NOT_MEASURED}: {', '.join(others)}"] if others else []
    if waits:
        notes.append(f"{NOT_MEASURED}, or the stats level is below 50: {', '.join(waits)}")
    return "; ".join(notes) or None


def _categories(capture: Capture) -> Table:
    sums = Sums(capture, lambda facts: facts.categories)
    columns, rows = sums.rows("category | count | time | share", order=CATEGORIES.index)
    return Table("categories", "Kinds of work, all engines and cores", columns, rows)
