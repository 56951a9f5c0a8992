"""Which kinds of operations cost most: the summary's table, over all cores and devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qaic.stats.reports.capture.groups import grouped, output_bytes, own_time_us, share
from qaic.stats.reports.capture.op_info import Coded
from qaic.stats.reports.render.table import NOT_MEASURED, Column, Report, Table
from qaic.stats.reports.time.overhead import marked
from qaic.support.text import duration

if TYPE_CHECKING:
    from qaic.stats.reports.capture import Capture
    from qaic.stats.reports.capture.op_info import OpInfo

_COLUMNS = (
    Column("kind"),
    Column("engine"),
    Column("memory"),
    Column("types"),
    Column("category"),
    Column("count", kind="int"),
    Column("time", "us", "float"),
    Column("share", kind="percent"),
    Column("PCycles", kind="int"),
    Column("output", "bytes", "bytes"),
    Column("time per KB", "us", "float"),
)


def ops(capture: Capture) -> Report:
    """Time by kind, engine, memory and types of the operands, and by category."""
    capture = capture.typical

    def key(facts: OpInfo) -> Coded:
        return Coded.joined(facts.kinds, facts.engines, facts.memories, facts.types, facts.categories)

    found = grouped(
        capture,
        key,
        {
            "time": own_time_us,
            "pcycles": lambda reader: reader.ops.pcycles,
            "cycled": lambda reader: reader.ops.pcycle_count,
            "bytes": output_bytes,
        },
    )
    total = sum(group["time"] for group in found)
    found.sort(key=lambda group: (-group["time"], group.key))
    rows = [
        (
            *group.key,
            round(group["count"]),
            group["time"],
            share(group["time"], total),
            round(group["pcycles"]) if group["cycled"] else None,
            round(group["bytes"]),
            group["time"] * 1024 / group["bytes"] if group["bytes"] else None,
        )
        for group in found
    ]
    note = (
        None
        if rows
        else f"operations: {NOT_MEASURED}, or the program was compiled with a stats level below 70"
    )
    estimated = marked(capture, [group["time"] for group in found], [group["count"] for group in found])
    verdict = []
    if found:
        first = found[0]
        part = share(first["time"], total) or 0.0
        verdict = [f"{first.key[0]} takes {part:.1f} % of the {duration(total)} that operations took"]
    return Report(
        "ops", "Operations by kind", verdict, [Table("kinds", "Kinds", _COLUMNS, rows, note, estimated)]
    )
