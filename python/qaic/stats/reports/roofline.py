"""Work per byte and speed of operations, if the compiler knows their work."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from qaic.report import Cell, Column, Report, Table, columns_of
from qaic.stats.reports.capture import Capture
from qaic.stats.reports.capture.groups import Group, grouped, output_bytes, own_time_us, share
from qaic.stats.reports.capture.op_info import Coded, OpInfo
from qaic.stats.reports.capture.trace_reader import TraceReader


def _columns(name: str) -> tuple[Column, ...]:
    return (
        Column(name),
        *columns_of(
            "count:int | time:float us | share:percent | MACs:int | bytes:bytes | MACs per byte:float | "
            "rate:float GMAC/s | memory rate:float GB/s"
        ),
    )


def _macs(reader: TraceReader) -> NDArray[np.float64]:
    return reader.facts.macs * reader.ops.count


def _bytes(reader: TraceReader) -> NDArray[np.float64]:
    every = output_bytes(reader) + reader.facts.constant_bytes * reader.ops.count
    return every * (reader.facts.macs > 0)


def _timed(reader: TraceReader) -> NDArray[np.float64]:
    """Time of the operations whose multiplications are known."""
    return own_time_us(reader) * (reader.facts.macs > 0)


def roofline(capture: Capture) -> Report:
    """Multiplications, bytes, and the rates of both, by kind and by node."""
    capture = capture.typical
    whole = sum(group["time"] for group in grouped(capture, lambda facts: facts.kinds, {"time": own_time_us}))
    tables = [
        Table("kinds", "By kind", _columns("kind"), _rows(capture, lambda facts: facts.kinds, whole)),
        Table("nodes", "By node", _columns("node"), _rows(capture, lambda facts: facts.nodes, whole)),
    ]
    if not tables[0].rows:
        note = "the descriptor knows of no operation how many multiplications it makes"
        tables = [Table("kinds", "By kind", _columns("kind"), [], note)]
        return Report("roofline", "Work and bytes", [], tables)
    note = (
        "bytes are outputs and constants, so a lower bound;"
        " operations whose multiplications are not known are left out"
    )
    tables[0] = Table("kinds", "By kind", _columns("kind"), tables[0].rows, note)
    macs = sum(float(row[4] or 0) for row in tables[0].rows)
    time = sum(float(row[2] or 0) for row in tables[0].rows)
    verdict = [
        f"{macs / time / 1000:.2f} GMAC/s in operations with known work, which take"
        f" {share(time, whole) or 0:.1f} % of the operations' time"
    ]
    return Report("roofline", "Work and bytes", verdict if time else [], tables)


def _rows(capture: Capture, key: Callable[[OpInfo], Coded], whole: float) -> list[tuple[Cell, ...]]:
    weights = {"time": _timed, "macs": _macs, "bytes": _bytes}
    found = [group for group in grouped(capture, key, weights) if group["macs"]]
    found.sort(key=lambda group: (-group["time"], str(group.key)))
    return [(group.key, *_figures(group, whole)) for group in found]


def _figures(group: Group, whole: float) -> tuple[Cell, ...]:
    time, macs, size = group["time"], group["macs"], group["bytes"]
    return (
        round(group["count"]),
        time,
        share(time, whole),
        round(macs),
        round(size),
        macs / size if size else None,
        macs / time / 1000 if time else None,
        size / time / 1000 if time else None,
    )
