"""Reports as CSV: one file per table, numbers as they are."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from qaic.support.text import escape_unprintable

if TYPE_CHECKING:
    from qaic.stats.reports.render.table import Cell, Table


def to_csv(table: Table) -> str:
    """One table with a line of titles. What was not measured is N/A, as in the text."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.title for column in table.columns])
    writer.writerows([[_value(cell) for cell in row] for row in table.rows])
    return out.getvalue()


def _value(cell: Cell) -> str | int | float:
    if cell is None:
        return "N/A"
    if isinstance(cell, str):
        cell = escape_unprintable(cell)
    # Spreadsheets run cells that begin like a formula; names come from files.
    if isinstance(cell, str) and cell[:1] in {"=", "+", "-", "@", "\t", "\r"}:
        return f"'{cell}"
    return cell
