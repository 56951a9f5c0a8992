"""Which node of the model costs most, and doing what."""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING, Final

import numpy as np

from qaic.stats.reports.capture import median_rows
from qaic.stats.reports.capture.groups import grouped, output_bytes, own_time_us, share, spreads
from qaic.stats.reports.capture.op_categories import CATEGORIES
from qaic.stats.reports.capture.op_info import Coded
from qaic.stats.reports.render.table import NOT_MEASURED, Column, Report, Table
from qaic.stats.reports.time.overhead import marked

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from qaic.stats.reports.capture import Capture
    from qaic.stats.reports.capture.op_info import OpInfo
    from qaic.stats.reports.capture.trace_reader import TraceReader
    from qaic.stats.reports.render.table import Cell

_RANGE: Final = tuple(Column(name, "us", "float") for name in ("median", "least", "most"))
NO_OPERATIONS = f"operations: {NOT_MEASURED}, or the stats level is below 70"


def nodes(capture: Capture) -> Report:
    """Time by the user's node, split into categories."""
    table = split_by(capture, lambda facts: facts.nodes, "node")
    verdict = []
    ordinary = spreads(capture, lambda facts: facts.nodes)
    first = next((row for row in table.rows if ordinary[row[0]].holds(float(row[2] or 0))), None)
    if first is not None:
        verdict = [f"{first[0]} takes {first[3] or 0:.1f} % of the time of all operations"]
    return Report("nodes", "Nodes of the model", verdict, [table])


def split_by(capture: Capture, key: Callable[[OpInfo], Coded], name: str) -> Table:
    """Table of time by a column of texts, with a column for each category that occurs.

    The times are those of the typical inference. The median and range over all inferences follow them.
    """
    several = len(capture.samples) > 1
    ordinary = spreads(capture, key)
    capture = capture.typical
    found = grouped(
        capture,
        lambda facts: Coded.joined(key(facts), facts.categories),
        {
            "time": own_time_us,
            "bytes": output_bytes,
            "sync": lambda reader: reader.ops.sync_u * (1e6 / reader.hz),
            "synced": lambda reader: reader.ops.sync_count,
        },
    )
    spans = wall_spans_us(capture, key)
    present = [category for category in CATEGORIES if any(group.key[1] == category for group in found)]
    synced = any(group["synced"] for group in found)
    total = sum(group["time"] for group in found)
    merged: dict[str, dict[str, float]] = {}
    for group in found:
        text, category = group.key
        row = merged.setdefault(text, dict.fromkeys(("count", "time", "bytes", "sync", *present), 0.0))
        for column in ("count", "time", "bytes", "sync"):
            row[column] += group[column]
        row[category] += group["time"]
    ordered = sorted(merged.items(), key=lambda item: (-item[1]["time"], item[0]))
    rows: list[tuple[Cell, ...]] = [
        (
            text,
            round(row["count"]),
            row["time"],
            share(row["time"], total),
            *(astuple(ordinary[text]) if several else ()),
            spans.get(text),
            row["time"] / spans[text] if spans.get(text) else None,
            row["sync"] if synced else None,
            round(row["bytes"]),
            *(row[category] for category in present),
        )
        for text, row in ordered
    ]
    columns = (
        Column(name),
        Column("count", kind="int"),
        Column("time", "us", "float"),
        Column("share", kind="percent"),
        *(_RANGE if several else ()),
        Column("wall span", "us", "float"),
        Column("work per span", kind="float"),
        Column("waited", "us", "float"),
        Column("output", "bytes", "bytes"),
        *(Column(category, "us", "float") for category in present),
    )
    note = None if rows else NO_OPERATIONS
    estimated = marked(capture, [row["time"] for _, row in ordered], [row["count"] for _, row in ordered])
    return Table(f"{name}s", f"{name.capitalize()}s", columns, rows, note, estimated)


def wall_spans_us(capture: Capture, key: Callable[[OpInfo], Coded]) -> dict[str, float]:
    """From the first start to the last end of what has a key in common; the longest of the devices."""
    spans: dict[str, float] = {}
    for readers in capture.by_device():
        coded = key(readers[0].facts)
        found = median_rows([_spans(coded, reader) for reader in readers])
        for text, span in zip(coded.values, found, strict=True):
            spans[text] = max(spans.get(text, 0.0), float(span))
    return spans


def _spans(coded: Coded, reader: TraceReader) -> NDArray[np.float64]:
    first = np.full(len(coded.values), np.inf)
    last = np.full(len(coded.values), -np.inf)
    np.minimum.at(first, coded.codes, reader.ops.first_u)
    np.maximum.at(last, coded.codes, reader.ops.last_u)
    ran = np.isfinite(first) & np.isfinite(last)
    spans = np.zeros(len(first))
    spans[ran] = (last[ran] - first[ran]) * (1e6 / reader.hz)
    return spans
