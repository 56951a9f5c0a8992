"""Reports as files or text."""

import csv
import io
import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from qaic.report._data import Cell, Report, Table
from qaic.report.text import to_text
from qaic.support.atomic_io import replace_bytes
from qaic.support.text import escape_json, escape_unprintable


def as_json(report: Report) -> dict[str, Any]:
    """Return a value for ``json.dumps``. Values that were not measured are null."""
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
                    {column.name: _json_value(cell) for column, cell in zip(table.columns, row, strict=True)}
                    for row in table.rows
                ],
                "estimated_rows": sorted(table.estimated_rows),
            }
            for table in report.tables
        ],
    }


def to_json(reports: Sequence[Report]) -> str:
    """Return several reports as one JSON text."""
    held = [as_json(report) for report in reports]
    return escape_json(json.dumps(held, indent=1, ensure_ascii=False, allow_nan=False))


def _json_value(cell: Cell) -> Cell:
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


#: forms that can be printed to a terminal
FORMS: Final = ("text", "csv", "json")
#: width of text files in columns, enough for the widest tables
_FILE_WIDTH: Final = 1000


def rendered(reports: Sequence[Report], form: str, *, width: int, whole: str = "") -> str:
    """Return all reports as one text; `whole` is the same as in `to_text`."""
    if form == "json":
        return to_json(reports) + "\n"
    if form == "csv":
        return "\n".join(
            f"# {report.name}: {escape_unprintable(table.title)}\n{to_csv(table)}"
            for report in reports
            for table in report.tables
        )
    return "\n".join(to_text(report, width=width, whole=whole) for report in reports)


def write_files(reports: Sequence[Report], form: str, folder: str | os.PathLike[str]) -> list[Path]:
    """Write the files of a form. Each file is written atomically.

    Text has a file for each report, CSV one for each table, and JSON one for all reports.

    Raises OSError if a file cannot be written.
    """
    written = []
    for name, text in _files(reports, form):
        path = Path(folder) / name
        replace_bytes(path, text.encode(errors="backslashreplace"))
        written.append(path)
    return written


def _files(reports: Sequence[Report], form: str) -> Iterator[tuple[str, str]]:
    if form == "json":
        yield "reports.json", to_json(reports) + "\n"
    elif form == "csv":
        for report in reports:
            yield from ((f"{report.name}.{table.name}.csv", to_csv(table)) for table in report.tables)
    else:
        for report in reports:
            yield f"{report.name}.txt", to_text(report, width=_FILE_WIDTH, most_rows=None)


def to_csv(table: Table) -> str:
    """Return a table with a line of titles. Values that were not measured are N/A, as in text."""
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
    # Spreadsheets execute cells that begin like a formula, and names come from files.
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in {"=", "+", "-", "@", "\t", "\r"} else cell
