"""Reports as HTML: complete without scripts, which only add sorting, filtering and copying."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qaic.page.text import escape
from qaic.stats.reports.table import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qaic.stats.reports.table import Cell, Report, Table

#: rows of a table that a page shows
MOST_ROWS = 2000
# Facts that are shown large: a short table of names and values.
_MOST_TILES = 16
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def report_html(report: Report) -> str:
    """Return the body of a report's section."""
    tables = (tiles_html(table) if is_facts(table) else table_html(table) for table in report.tables)
    return "\n".join(part for part in (verdict_html(report.verdict), *tables) if part)


def verdict_html(sentences: Sequence[str]) -> str:
    """Return a report's answer as a list."""
    if not sentences:
        return ""
    return '<ul class="verdict">' + "".join(f"<li>{escape(line)}</li>" for line in sentences) + "</ul>"


def is_facts(table: Table) -> bool:
    """Whether a table is a list of names and values: a figure, its value (and least and most), its unit."""
    kinds = [column.kind for column in table.columns]
    return (
        0 < len(table.rows) <= _MOST_TILES
        and table.columns[-1].name == "unit"
        and kinds in (["text", "float", "text"], ["text", "float", "float", "float", "text"])
    )


def tiles_html(table: Table) -> str:
    """Return names and values as tiles."""
    tiles = []
    for name, value, *extremes, unit in table.rows:
        sized = isinstance(value, int | float) and unit == "bytes"
        column = Column("value", kind="bytes") if sized else table.columns[1]
        shown = escape(cell_text(column, value))
        if unit and value is not None and not sized:
            shown += f" <small>{escape(unit)}</small>"
        if extremes and value is not None and extremes[0] != extremes[1]:
            low, high = (escape(cell_text(column, extreme)) for extreme in extremes)
            shown += f"<br><small>{low} to {high}</small>"
        tiles.append(f"<div><dt>{escape(name)}</dt><dd>{shown}</dd></div>")
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return f'<dl class="tiles" data-table="{escape(table.name)}">{"".join(tiles)}</dl>{note}'


def table_html(table: Table) -> str:
    """Return a table with its title, its tools and its note."""
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    title = f"<h3>{escape(table.title)}</h3>"
    if not table.rows:
        return f"{title}{note or '<p class=note>No rows.</p>'}"
    shown = table.rows[:MOST_ROWS]
    count = f"{len(shown)} {'row' if len(shown) == 1 else 'rows'}"
    if len(shown) < len(table.rows):
        count = f"the first {len(shown)} of {len(table.rows)} rows; CSV and JSON have them all"
    head = "".join(_head(column) for column in table.columns)
    body = "".join(
        f"<tr{' class=faint' if place in table.faint else ''}>"
        + "".join(_cell(column, cell) for column, cell in zip(table.columns, row, strict=True))
        + "</tr>\n"
        for place, row in enumerate(shown)
    )
    return (
        f'<div class="table-block">{title}\n'
        f'<div class="tools"><span class="count">{escape(count)}</span></div>\n'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">'
        f'<table data-table="{escape(table.name)}" data-title="{escape(table.title)}">'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>{note}</div>"
    )


def _head(column: Column) -> str:
    # Cells of bytes name their unit.
    unit = {"percent": "%", "bytes": None}.get(column.kind, column.unit)
    shown = f"{escape(column.name)} <small>{escape(unit)}</small>" if unit else escape(column.name)
    return f'<th scope="col"{"" if column.kind == "text" else " class=n"}>{shown}</th>'


def _cell(column: Column, cell: Cell) -> str:
    text = escape(cell_text(column, cell))
    if cell is None:
        return f'<td class="{"t" if column.kind == "text" else "n"} na">{text}</td>'
    if column.kind == "text":
        return f'<td class="t">{text}</td>'
    share = " share" if column.kind == "percent" else ""
    return f'<td class="n{share}" data-v="{escape(cell)}">{text}</td>'


def cell_text(column: Column, cell: Cell) -> str:
    """Return a cell as people read it; its full value is in the page too."""
    if cell is None:
        return "N/A"
    if isinstance(cell, str):
        return cell
    if column.kind == "bytes":
        return bytes_text(cell)
    if column.kind == "percent":
        return f"{cell:.2f}"
    if column.kind == "int" or isinstance(cell, int):
        return f"{round(cell):,}"
    return number_text(cell)


def number_text(value: float) -> str:
    """Return a number with as many digits as say something."""
    size = abs(value)
    if value == round(value) and size < 1e15:
        return f"{value:,.0f}"
    digits = 1 if size >= 10_000 else 2 if size >= 100 else 3 if size >= 0.1 else 6
    return f"{value:,.{digits}f}"


def bytes_text(size: float) -> str:
    """Return bytes for people, by powers of 1024."""
    value = float(size)
    power = 0
    while abs(value) >= 1024 and power < len(_UNITS) - 1:
        value /= 1024
        power += 1
    return f"{value:.2f} {_UNITS[power]}" if power else f"{value:.0f} B"
