"""Memory that operations use, traffic to DDR, and transfers that overlap with engines."""

from typing import Final

from qaic.report import NOT_MEASURED, Cell, Column, Report, Table, columns_of
from qaic.stats.reports.capture import Capture, median
from qaic.stats.reports.capture.groups import Group, grouped, output_bytes, own_time_us, share
from qaic.stats.reports.capture.op_info import MOVEMENT, Coded
from qaic.stats.reports.ops import NO_OPERATIONS
from qaic.stats.reports.time.timeline import activity

# Rules of thumb.
_GOOD: Final = 75.0
_PROBLEM: Final = 50.0

_MEMORIES = columns_of(
    "memory | operations:int | time:float us | share:percent | output:bytes | time per KB:float us"
)
_KINDS = (Column("kind"), *_MEMORIES)
_TRAFFIC = columns_of(
    "device:int | core:int | DDR read:bytes | DDR written:bytes | DDR rate:float GB/s | "
    "multicast read:bytes | multicast written:bytes"
)


def memory(capture: Capture) -> Report:
    """Time and bytes by memory, and the traffic of the cores."""
    capture = capture.typical
    weights = {"time": own_time_us, "bytes": output_bytes}
    found = grouped(capture, lambda facts: facts.memories, weights)
    kinds = grouped(capture, lambda facts: Coded.joined(facts.kinds, facts.memories), weights)
    total = sum(group["time"] for group in found)
    rows: list[tuple[Cell, ...]] = [
        (group.key or "(not given)", *_figures(group, total)) for group in sorted(found, key=_by_time)
    ]
    kind_rows: list[tuple[Cell, ...]] = [
        (group.key[0], group.key[1] or "(not given)", *_figures(group, total))
        for group in sorted(kinds, key=_by_time)
    ]
    traffic = _traffic(capture)
    traffic_note = None if traffic else f"traffic: {NOT_MEASURED}, or compiled without -ddr-stats"
    return Report(
        "memory",
        "Memory",
        _verdict(found, total),
        [
            Table("memories", "By memory", _MEMORIES, rows, None if rows else NO_OPERATIONS),
            Table("kinds", "By kind and memory", _KINDS, kind_rows),
            Table("traffic", "Traffic of the cores", _TRAFFIC, traffic, traffic_note),
        ],
    )


def residency(found: list[Group]) -> float | None:
    """Return the percentage of time whose operands are in TCM; None where nothing is in TCM or DDR."""
    near = sum(group["time"] for group in found if group.key == "TCM")
    far = sum(group["time"] for group in found if group.key == "DDR")
    return share(near, near + far)


def _verdict(found: list[Group], total: float) -> list[str]:
    resident = residency(found)
    if resident is None:
        names = ", ".join(sorted({group.key or "(not given)" for group in found}))
        return [f"operands are in {names}; residency in TCM does not apply"] if total else []
    rating = "good" if resident > _GOOD else "a problem" if resident < _PROBLEM else "fair"
    return [
        f"{resident:.1f} % of the operations' time uses TCM, which is {rating}"
        " (good above 75, a problem below 50)"
    ]


def _by_time(group: Group) -> tuple[float, str]:
    return -group["time"], str(group.key)


def _figures(group: Group, total: float) -> tuple[Cell, ...]:
    return (
        round(group["count"]),
        group["time"],
        share(group["time"], total),
        round(group["bytes"]),
        group["time"] * 1024 / group["bytes"] if group["bytes"] else None,
    )


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


_TRANSFERS = columns_of(
    "kind | engine | memory | transfers:int | time:float us | moved:bytes | rate:float GB/s"
)
_CORES = columns_of(
    "device:int | core:int | transferring:float us | transferring share:percent | "
    "one after the other:float us"
)
_COPIES = columns_of(
    "kind | engine | memory | operations:int | time:float us | share:percent | output:bytes | rate:float GB/s"
)


def dma(capture: Capture) -> Report:
    """Time, bytes and rates of transfers by kind, of copies by kind, and how long each core transfers."""
    capture = capture.typical
    found = grouped(
        capture,
        lambda facts: Coded.joined(facts.kinds, facts.engines, facts.memories, facts.categories),
        {
            "time": own_time_us,
            "bytes": output_bytes,
            "executed": lambda reader: reader.ops.count,
            "transfer": lambda reader: reader.ops.transfer_u * (1e6 / reader.hz),
            "transfers": lambda reader: reader.ops.transfer_count,
            "moved": lambda reader: reader.ops.transfer_bytes,
        },
    )
    total = sum(group["time"] for group in found)
    transfers: list[tuple[Cell, ...]] = [
        (
            *group.key[:3],
            round(group["transfers"]),
            group["transfer"],
            round(group["moved"]) if group["moved"] else None,
            _rate(group["moved"], group["transfer"]),
        )
        for group in sorted(found, key=lambda group: (-group["transfer"], group.key))
        if group["transfers"]
    ]
    copies: list[tuple[Cell, ...]] = [
        (
            *group.key[:3],
            round(group["executed"]),
            group["time"],
            share(group["time"], total),
            round(group["bytes"]),
            _rate(group["bytes"], group["time"]),
        )
        for group in sorted(found, key=lambda group: (-group["time"], group.key))
        if group.key[3] == MOVEMENT and group["executed"]
    ]
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
                _TRANSFERS,
                transfers,
                None if transfers else f"transfers: {NOT_MEASURED}",
            ),
            Table("cores", "Cores", _CORES, cores),
            Table("copies", "Operations that move data", _COPIES, copies),
        ],
    )


def _rate(size: float, time_us: float) -> float | None:
    """Return gigabytes per second, which are thousands of bytes per microsecond."""
    return size / time_us / 1000 if size and time_us else None


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
