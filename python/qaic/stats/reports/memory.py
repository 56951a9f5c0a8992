"""Memory that operations use, traffic to DDR, and transfers that overlap with engines."""

from typing import Final

from qaic.report import NOT_MEASURED, Cell, Report, Table, columns_of
from qaic.stats.reports.capture import Capture, median
from qaic.stats.reports.capture.groups import Sums, share
from qaic.stats.reports.capture.op_info import MOVEMENT, Coded
from qaic.stats.reports.ops import NO_OPERATIONS
from qaic.stats.reports.time.timeline import activity

NOT_GIVEN: Final = "(not given)"
# Rules of thumb.
_GOOD: Final = 75.0
_PROBLEM: Final = 50.0

_TRAFFIC = columns_of(
    "device:int | core:int | DDR read:bytes | DDR written:bytes | DDR rate:float GB/s | "
    "multicast read:bytes | multicast written:bytes"
)


def memory(capture: Capture) -> Report:
    """Time and bytes by memory, and the traffic of the cores."""
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
    """Return the percentage of time whose operands are in TCM; None where nothing is in TCM or DDR."""
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
    for readers in capture.by_device():
        for place, core in enumerate(readers[0].cores):
            records = [reader.cores[place] for reader in readers if place < len(reader.cores)]
            figures = [
                median([None if pair is None else pair[side] for pair in pairs])
                for pairs in ([one.ddr_bytes for one in records], [one.multicast_bytes for one in records])
                for side in (0, 1)
            ]
            if all(figure is None for figure in figures):
                continue
            span = median([readers[0].us(record.span_u) for record in records])
            moved = None if figures[0] is None or figures[1] is None else figures[0] + figures[1]
            # Bytes per microsecond are megabytes per second.
            rate = moved / span / 1000 if moved is not None and span else None
            cells = [None if figure is None else round(figure) for figure in figures]
            rows.append((readers[0].slice, core.core, cells[0], cells[1], rate, cells[2], cells[3]))
    return rows


_CORES = columns_of(
    "device:int | core:int | transferring:float us | transferring share:percent | "
    "one after the other:float us"
)


def dma(capture: Capture) -> Report:
    """Time, bytes and rates of transfers by kind, of copies by kind, and how long each core transfers."""
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
    for readers in capture.by_device():
        us = readers[0].us
        for core in readers[0].cores:
            found = [
                (activity(reader, facts, transfers=True), reader)
                for reader in readers
                for facts in reader.cores
                if facts.core == core.core
            ]
            busy = median([us(one.busy_u) for one, _ in found]) or 0.0
            span = median([us(one.core.span_u) for one, _ in found]) or 0.0
            summed = median(
                [
                    us(sum(thread.transfer_u for thread in reader.threads if thread.core == core.core))
                    for _, reader in found
                ]
            )
            rows.append((readers[0].slice, core.core, busy, share(busy, span), summed))
    return rows
