"""Memory that operations use, traffic to DDR, transfers that overlap with engines, and work per byte."""

from dataclasses import replace
from typing import Final

from qaic.report import NOT_MEASURED, Cell, Report, Table, columns_of
from qaic.stats.reports.capture import Capture
from qaic.stats.reports.capture.groups import Sums, share
from qaic.stats.reports.capture.op_info import MOVEMENT, Coded
from qaic.stats.reports.ops import NO_OPERATIONS
from qaic.stats.reports.time.timeline import activity
from qaic.support.text import three_digits

NOT_GIVEN: Final = "(not given)"
# Rules of thumb.
_GOOD: Final = 75.0
_PROBLEM: Final = 50.0

_TRAFFIC = columns_of(
    "device:int | core:int | DDR read:bytes | DDR written:bytes | DDR rate:float GB/s | "
    "multicast read:bytes | multicast written:bytes"
)


def memory(capture: Capture) -> Report:
    """Report time and bytes by memory, and the traffic of the cores."""
    capture = capture.typical
    sums = Sums(capture, lambda facts: facts.memories)
    kinds = Sums(capture, lambda facts: Coded.joined(facts.kinds, facts.memories))
    figures = "memory | operations | time | share | output | time per KB"
    columns, rows = sums.rows(figures)
    kind_columns, kind_rows = kinds.rows(f"kind | {figures}", whole=sums.total())
    rows = [(row[0] or NOT_GIVEN, *row[1:]) for row in rows]
    kind_rows = [(row[0], row[1] or NOT_GIVEN, *row[2:]) for row in kind_rows]
    traffic = _traffic(capture)
    traffic_note = None if traffic else f"traffic: {NOT_MEASURED}, or compiled without -ddr-stats"
    return Report(
        "memory",
        "Memory",
        _verdict(sums),
        [
            Table("memories", "By memory", columns, rows, None if rows else NO_OPERATIONS),
            Table("kinds", "By kind and memory", kind_columns, kind_rows),
            Table("traffic", "Traffic of the cores", _TRAFFIC, traffic, traffic_note),
        ],
    )


def residency(sums: Sums) -> float | None:
    """Return the percentage of time with operands in TCM; None if no operand is in TCM or DDR."""
    times = sums.of()
    near, far = times.get("TCM", 0.0), times.get("DDR", 0.0)
    return share(near, near + far)


def _verdict(sums: Sums) -> list[str]:
    resident = residency(sums)
    if resident is None:
        names = ", ".join(sorted({memory or NOT_GIVEN for memory in sums.keys}))
        return [f"operands are in {names}; residency in TCM does not apply"] if sums.total() else []
    rating = "good" if resident > _GOOD else "a problem" if resident < _PROBLEM else "fair"
    return [
        f"{resident:.1f} % of the operations' time uses TCM, which is {rating}"
        " (good above 75, a problem below 50)"
    ]


def _traffic(capture: Capture) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []
    for reader in capture.each():
        for core in reader.cores:
            ddr, span = core.ddr_bytes, reader.us(core.span_u)
            if ddr or core.multicast_bytes:
                # Bytes per microsecond are megabytes per second.
                rate = sum(ddr) / span / 1000 if ddr and span else None
                ends = core.multicast_bytes or (None, None)
                rows.append((reader.slice, core.number, *(ddr or (None, None)), rate, *ends))
    return rows


_CORES = columns_of(
    "device:int | core:int | transferring:float us | transferring share:percent | "
    "one after the other:float us"
)


def dma(capture: Capture) -> Report:
    """Report time, bytes and rates of transfers and copies by kind, and the time in which cores transfer."""
    capture = capture.typical
    sums = Sums(
        capture, lambda facts: Coded.joined(facts.kinds, facts.engines, facts.memories, facts.categories)
    )
    total, count, transferred = sums.total(), sums.of("count"), sums.of("transfers")
    columns, transfers = sums.rows(
        "kind | engine | memory | transfers | transfer time | moved | moved rate",
        order="transfer",
        only=lambda key: bool(transferred[key]),
    )
    copy_columns, copies = sums.rows(
        "kind | engine | memory | operations | time | share | output | output rate",
        only=lambda key: key[3] == MOVEMENT and bool(count[key]),
    )
    cores = _cores(capture) if transfers else []
    verdict = []
    if cores:
        busiest = max(cores, key=lambda row: float(row[3] or 0))
        verdict.append(
            f"core {busiest[1]} of device {busiest[0]} transfers for {busiest[3]:.1f} % of its time"
        )
    moving = sum(float(row[4] or 0) for row in copies)
    if total:
        verdict.append(
            f"operations that only move data take {share(moving, total) or 0:.1f} % of the operations' time"
        )
    return Report(
        "dma",
        "Transfers",
        verdict,
        [
            Table(
                "transfers",
                "Asynchronous transfers",
                columns,
                transfers,
                None if transfers else f"transfers: {NOT_MEASURED}",
            ),
            Table("cores", "Cores", _CORES, cores),
            Table("copies", "Operations that move data", copy_columns, copies),
        ],
    )


def _cores(capture: Capture) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []
    for reader in capture.each():
        for core in reader.cores:
            busy = reader.us(activity(reader, core, transfers=True).busy_u)
            summed = reader.us(
                sum(thread.transfer_u for thread in reader.threads if thread.core == core.number)
            )
            rows.append((reader.slice, core.number, busy, share(busy, reader.us(core.span_u)), summed))
    return rows


def roofline(capture: Capture) -> Report:
    """Report multiplications, bytes, and their rates, by kind and by node."""
    capture = capture.typical
    whole = Sums(capture, lambda facts: facts.kinds).total()
    kinds, nodes = (_work_table(capture, name, whole) for name in ("kind", "node"))
    if not kinds.rows:
        note = "the descriptor does not contain the number of multiplications of any operation"
        return Report("roofline", "Work and bytes", [], [replace(kinds, note=note)])
    note = (
        "bytes count only outputs and constants, so they are a lower bound;"
        " operations with an unknown number of multiplications are omitted"
    )
    macs, time = (sum(float(str(cell or 0)) for cell in kinds.column(name)) for name in ("MACs", "time"))
    verdict = [
        f"{three_digits(macs / (time or 1) / 1000)} GMAC/s in operations with known work, which take"
        f" {share(time, whole) or 0:.1f} % of the operations' time"
    ]
    return Report("roofline", "Work and bytes", verdict if time else [], [replace(kinds, note=note), nodes])


def _work_table(capture: Capture, name: str, whole: float) -> Table:
    """Return the table of operations with a known number of multiplications."""
    sums = Sums(capture, lambda facts: getattr(facts, f"{name}s"))
    macs = sums.of("macs")
    columns, rows = sums.rows(
        f"{name} | count | timed | timed share | MACs | bytes | MACs per byte | MAC rate | memory rate",
        order="timed",
        only=lambda key: bool(macs[key]),
        whole=whole,
    )
    return Table(f"{name}s", f"By {name}", columns, rows)
