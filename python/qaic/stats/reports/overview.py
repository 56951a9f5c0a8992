"""The first answer: how fast, bound by what, and what is worth looking at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from qaic.stats.reports.advice import advice, types
from qaic.stats.reports.capture import median
from qaic.stats.reports.capture.groups import grouped, own_time_us, share
from qaic.stats.reports.capture.op_categories import BUCKETS
from qaic.stats.reports.hardware.cores import findings, loads
from qaic.stats.reports.hardware.memory import residency
from qaic.stats.reports.render.table import NOT_MEASURED, Column, Report, Table
from qaic.stats.reports.time.bottleneck import Bottleneck, bottleneck_of
from qaic.stats.reports.time.overhead import Calibration, calibration
from qaic.support.text import duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from qaic.stats.reports.capture import Capture, Sample
    from qaic.stats.reports.capture.trace_reader import Reading
    from qaic.stats.reports.render.table import Cell

_OPS_TRUNCATED: Final = 2

_FIGURES = (
    Column("figure"),
    Column("median", kind="float"),
    Column("least", kind="float"),
    Column("most", kind="float"),
    Column("unit"),
)
#: by the direction of a port
_WAITS: Final = ("input wait", "output wait")
_PARTS = (Column("part"), Column("of the cores' time", kind="percent"))
_BUCKETS = (
    Column("bucket"),
    Column("count", kind="int"),
    Column("time", "us", "float"),
    Column("share", kind="percent"),
)
_MEANING: Final = {
    "compute": "arithmetic takes most of the time",
    "memory": "moving data takes most of the time",
    "layout": "converting formats and layouts takes most of the time",
    "overhead": "most of the time no operation of weight runs",
}


def overview(capture: Capture) -> Report:
    """Verdict and key figures."""
    known = calibration(capture)
    bound = bottleneck_of(capture.typical, known.floor_us) if capture.samples else None
    figures = _figures(capture)
    tables = [advice(capture, bound), Table("figures", "Key figures", _FIGURES, figures, _missing(figures))]
    if bound is not None:
        rows: list[tuple[Cell, ...]] = [*bound.parts.items(), ("other operations", bound.other)]
        note = (
            "of the cores' time, idle time included; compute is matrix, dequantise, normalise and elementwise"
            " together; engines work beside each other, so the parts need not add up to 100"
        )
        tables.append(Table("parts", "What the time goes into", _PARTS, rows, note))
        tables.append(_buckets(capture.typical))
        tables.append(types(capture.typical))
    return Report("overview", "Overview", [*_verdict(capture, bound, known), *_remarks(capture)], tables)


def _verdict(capture: Capture, bound: Bottleneck | None, known: Calibration) -> list[str]:
    span = capture.median(lambda sample: sample.span_us)
    if span is None:
        return ["no inference was measured on the device"]
    where = "the CPU device" if capture.is_cpu else f"{capture.devices} device{'s' * (capture.devices != 1)}"
    count = len(capture.samples)
    spans = [found for sample in capture.samples if (found := sample.span_us)]
    spread = f", {duration(min(spans))} to {duration(max(spans))}" if count > 1 else ""
    verdict = [
        f"an inference takes {duration(span)} on {where} "
        f"(median of {count} sample{'s' * (count != 1)}{spread})"
    ]
    if bound is None:
        verdict.append("what bounds it is not known: operations are measured from stats level 70 on")
        return verdict
    parts = ", ".join(f"{name} {part:.1f} %" for name, part in bound.parts.items())
    if count > 1:
        (sample,) = capture.typical.samples
        verdict.append(
            f"the parts of its time are those of inference {sample.inference}, which took the median"
        )
    if bound.name:
        verdict.insert(0, f"{bound.name}-bound: {_MEANING[bound.name]} ({parts})")
    else:
        verdict.insert(0, f"nothing stands out ({parts})")
    if known.sentence is not None:
        verdict.append(known.sentence)
    if capture.is_cpu:
        verdict.append(
            "one CPU thread was timed: HVX, HMX, DMA and DDR traffic are not measured on this device"
        )
    return verdict


def _remarks(capture: Capture) -> list[str]:
    remarks = []
    for readings in capture.by_device():
        found = loads(readings)
        judged = findings([load.time_us for load in found])
        remarks += [
            f"core {load.core} of device {readings[0].slice} is a {finding}: {ratio:.2f} x the mean work"
            for load, (ratio, finding) in zip(found, judged, strict=True)
            if finding
        ]
    if any(int(reading.run.flags) & _OPS_TRUNCATED for reading in capture.each()):
        remarks.append("there were more operations than room in the buffer: sums are too low")
    saturated = sum(thread.saturated for reading in capture.each() for thread in reading.threads)
    if saturated:
        remarks.append(f"{saturated} durations did not fit their field and are too low")
    near = residency(grouped(capture, lambda facts: facts.memories, {"time": own_time_us}))
    if near is not None:
        remarks.append(f"{near:.1f} % of the operations' time works in TCM")
    return remarks


def _figures(capture: Capture) -> list[tuple[Cell, ...]]:
    def waited(direction: int) -> Callable[[Sample], float | None]:
        def value(sample: Sample) -> float | None:
            waits = [
                reading.us(int(port["wait_u"]))
                for reading in sample.readings
                for port in reading.buffer.ports
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
    return max(1, max((int(reading.run.batch_size) for reading in sample.readings), default=1))


def _most(sample: Sample, value: Callable[[Reading], float | None]) -> float | None:
    return max((found for reading in sample.readings if (found := value(reading)) is not None), default=None)


def _pcycles(reading: Reading) -> float | None:
    return max((float(core.pcycles) for core in reading.cores if core.pcycles is not None), default=None)


def _frequency(reading: Reading) -> float | None:
    found = [core.pcycles / reading.us(core.span_u) for core in reading.cores if core.pcycles and core.span_u]
    return float(np.mean(found)) if found else None


def _ddr(sample: Sample) -> float | None:
    pairs = [
        core.ddr_bytes for reading in sample.readings for core in reading.cores if core.ddr_bytes is not None
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


def _buckets(capture: Capture) -> Table:
    found = grouped(capture, lambda facts: facts.buckets, {"time": own_time_us})
    total = sum(group["time"] for group in found)
    found.sort(key=lambda group: BUCKETS.index(group.key))
    rows: list[tuple[Cell, ...]] = [
        (group.key, round(group["count"]), group["time"], share(group["time"], total)) for group in found
    ]
    return Table("buckets", "Kinds of work, all engines and cores", _BUCKETS, rows)
