"""Reports as JSON: rows are objects by the names of the columns."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from qaic.support.text import escape_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qaic.stats.reports.render.table import Cell, Report


def as_json(report: Report) -> dict[str, Any]:
    """Value that ``json.dumps`` takes. What was not measured is null."""
    return {
        "name": report.name,
        "title": report.title,
        "verdict": list(report.verdict),
        "tables": [
            {
                "name": table.name,
                "title": table.title,
                "note": table.note,
                "columns": [
                    {"name": column.name, "unit": column.unit, "kind": column.kind}
                    for column in table.columns
                ],
                "rows": [
                    {column.name: _value(cell) for column, cell in zip(table.columns, row, strict=True)}
                    for row in table.rows
                ],
                "estimated_rows": sorted(table.estimated_rows),
            }
            for table in report.tables
        ],
    }


def to_json(reports: Sequence[Report]) -> str:
    """Several reports as one JSON text."""
    held = [as_json(report) for report in reports]
    return escape_json(json.dumps(held, indent=1, ensure_ascii=False, allow_nan=False))


def _value(cell: Cell) -> Cell:
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell
