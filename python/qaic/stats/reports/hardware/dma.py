"""Transfers: those that run at the same time as the engines, and the operations that copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qaic.stats.reports.capture import median
from qaic.stats.reports.capture.groups import grouped, output_bytes, own_time_us, share
from qaic.stats.reports.capture.op_categories import MOVEMENT
from qaic.stats.reports.capture.op_info import Coded
from qaic.stats.reports.render.table import NOT_MEASURED, Column, Report, Table
from qaic.stats.reports.time.timeline import activity

if TYPE_CHECKING:
    from qaic.stats.reports.capture import Capture
    from qaic.stats.reports.render.table import Cell

_TRANSFERS = (
    Column("kind"),
    Column("engine"),
    Column("memory"),
    Column("transfers", kind="int"),
    Column("time", "us", "float"),
    Column("moved", "bytes", "bytes"),
    Column("rate", "GB/s", "float"),
)
_CORES = (
    Column("device", kind="int"),
    Column("core", kind="int"),
    Column("transferring", "us", "float"),
    Column("transferring share", kind="percent"),
    Column("one after the other", "us", "float"),
)
_COPIES = (
    Column("kind"),
    Column("engine"),
    Column("memory"),
    Column("operations", kind="int"),
    Column("time", "us", "float"),
    Column("share", kind="percent"),
    Column("output", "bytes", "bytes"),
    Column("rate", "GB/s", "float"),
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
    """Gigabytes a second: thousand bytes per microsecond."""
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
