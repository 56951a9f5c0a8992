"""Reports as HTML: complete without scripts, which only add sorting, filtering and copying."""

from collections.abc import Sequence
from dataclasses import replace

from qaic.page.bars import advice_html, changed_nodes, common_path, costliest_nodes, shares_html
from qaic.stats.reports.capture import Capture
from qaic.stats.reports.table import Cell, Column, Report, Table
from qaic.support.text import bytes_text, duration, shortened, three_digits
from qaic.support.text import escape_html as escape

#: largest number of rows of a table
MOST_ROWS = 2000
# A short table of names and values is shown as stat cards.
_MOST_TILES = 16
# Texts longer than this get a wide column.
_LONG = 24
#: largest number of characters of a text in a table
_LONGEST = 72
# Tables with at most this many columns are as narrow as possible.
_NARROW = 4
#: microseconds of each unit of time
_TIMES = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}


def folded(report: Report) -> tuple[str, str, str, str]:
    """Return id, title, body and first sentence of a section that is closed at first."""
    line, *rest = report.verdict or [""]
    return report.name, report.title, report_html(replace(report, verdict=rest)), line


def report_html(report: Report) -> str:
    """Return the body of a report's section."""
    tables = (stat_cards_html(table) if is_facts(table) else table_html(table) for table in report.tables)
    return "\n".join(part for part in (verdict_html(report.verdict), *tables) if part)


def first_screen_html(report: Report, capture: Capture) -> str:
    """Return the overview's body: verdict, advice, the most expensive nodes, precisions, then figures."""
    tables = {table.name: table for table in report.tables}
    # Precisions that the compiler recorded are more exact than the types of operands.
    split = tables.get("precisions") or tables.get("types")
    shown = {"advice"} if split is None else {"advice", split.name}
    rest = replace(report, verdict=[], tables=[table for name, table in tables.items() if name not in shown])
    left = advice_html(tables["advice"]) if "advice" in tables else ""
    left += shares_html(split) if split is not None else ""
    halves = f'<div class="half">{left}</div><div class="half">{costliest_nodes(capture)}</div>'
    return verdict_html(report.verdict) + f'<div class="halves">{halves}</div>' + report_html(rest)


def diff_html(report: Report) -> str:
    """Return the body of a comparison: verdict, bars of both programs, then tables."""
    bars = "".join(changed_nodes(table) for table in report.tables if table.name == "nodes")
    rest = replace(report, verdict=[])
    return verdict_html(report.verdict) + bars + report_html(rest)


def is_empty(report: Report) -> bool:
    """Return whether a report has neither a verdict nor a row: the device did not measure its subject."""
    return not report.verdict and not any(table.rows for table in report.tables)


def empty_html(reports: Sequence[Report]) -> str:
    """Return the list of reports without content, and the reason."""
    rows = []
    for report in reports:
        notes = dict.fromkeys(table.note for table in report.tables if table.note)
        rows.append(f"<dt>{escape(report.title)}</dt><dd>{escape('; '.join(notes) or 'no figures')}</dd>")
    return f'<dl class="facts">{"".join(rows)}</dl>'


def verdict_html(sentences: Sequence[str]) -> str:
    """Return the verdict of a report as a list."""
    if not sentences:
        return ""
    return '<ul class="verdict">' + "".join(f"<li>{escape(line)}</li>" for line in sentences) + "</ul>"


def is_facts(table: Table) -> bool:
    """Return whether a table lists names and values: a figure, its value (with minimum and maximum), unit."""
    kinds = [column.kind for column in table.columns]
    return (
        0 < len(table.rows) <= _MOST_TILES
        and table.columns[-1].name == "unit"
        and kinds in (["text", "float", "text"], ["text", "float", "float", "float", "text"])
    )


def stat_cards_html(table: Table) -> str:
    """Return names and values as stat cards."""
    stat_cards, absent = [], []
    for name, value, *extremes, unit in table.rows:
        if value is None:
            absent.append(str(name))
            continue
        shown, *unit_shown = _figure(value, unit)
        shown += "".join(f" <small>{text}</small>" for text in unit_shown)
        if extremes and extremes[0] != extremes[1]:
            low, high = (" ".join(_figure(extreme, unit)) for extreme in extremes)
            shown += f"<br><small>{low} to {high}</small>"
        stat_cards.append(f"<div><dt>{escape(name)}</dt><dd>{shown}</dd></div>")
    notes = [table.note or ""]
    if not all(name in notes[0] for name in absent):
        notes.append(f"without values: {', '.join(absent)}")
    note = "".join(f'<p class="note">{escape(line)}</p>' for line in notes if line)
    return f'<dl class="stat-cards" data-table="{escape(table.name)}">{"".join(stat_cards)}</dl>{note}'


def _figure(value: Cell, unit: Cell) -> list[str]:
    """Return a value with three digits, and the unit that suits it."""
    if not isinstance(value, int | float):
        return [escape(value)]
    if unit in _TIMES:
        return duration(value * _TIMES[unit]).split()
    if unit == "bytes":
        return [bytes_text(value)]
    return [three_digits(value), escape(unit)] if unit else [three_digits(value)]


def table_html(table: Table) -> str:
    """Return a table with its title, its tools and its note."""
    title = f"<h3>{escape(table.title)}</h3>"
    if not table.rows:
        return f'{title}<p class="note">{escape(table.note)}</p>' if table.note else ""
    # A column without values is named below the table instead.
    places = [
        place for place in range(len(table.columns)) if any(row[place] is not None for row in table.rows)
    ]
    absent = [column.name for place, column in enumerate(table.columns) if place not in set(places)]
    notes = [table.note or "", f"columns without values: {', '.join(absent)}" if absent else ""]
    below = "".join(f'<p class="note">{escape(note)}</p>' for note in notes if note)
    shown = table.rows[:MOST_ROWS]
    count = f"{len(shown)} {'row' if len(shown) == 1 else 'rows'}"
    if len(shown) < len(table.rows):
        count = f"the first {len(shown)} of {len(table.rows)} rows; CSV and JSON contain all rows"
    columns = [table.columns[place] for place in places]
    values = [[row[place] for row in shown] for place in places]
    cells = [_cells(*pair) for pair in zip(columns, values, strict=True)]
    heads = [_head(*pair) for pair in zip(columns, values, strict=True)]
    body = "".join(
        f"<tr{' class=estimate' if number in table.estimated_rows else ''}>{''.join(row)}</tr>\n"
        for number, row in enumerate(zip(*cells, strict=True))
    )
    narrow = " narrow" if len(columns) <= _NARROW else ""
    return (
        f'<div class="table-block{narrow}">{title}\n'
        f'<div class="tools"><span class="count">{escape(count)}</span></div>\n'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">'
        f'<table data-table="{escape(table.name)}" data-title="{escape(table.title)}">'
        f"<thead><tr>{''.join(heads)}</tr></thead>\n"
        f"<tbody>\n{body}</tbody></table></div>{below}</div>"
    )


def _head(column: Column, cells: Sequence[Cell]) -> str:
    # Cells of bytes name their unit.
    unit = {"percent": "%", "change": "%", "bytes": None, "text": common_path(cells)}.get(
        column.kind, column.unit
    )
    shown = f"{escape(column.name)} <small>{escape(unit)}</small>" if unit else escape(column.name)
    return f'<th scope="col"{"" if column.kind == "text" else " class=n"}>{shown}</th>'


def _text_cell(text: str, style: str, cut: int) -> str:
    """Return a cell. If its text is shortened, the tooltip, the filter and the copy have the whole text."""
    short = shortened(text[cut:], _LONGEST)
    if short == text:
        return f'<td class="{style}">{escape(text)}</td>'
    whole = escape(text)
    return f'<td class="{style}" title="{whole}" data-v="{whole}">{escape(short)}</td>'


def _cells(column: Column, cells: Sequence[Cell]) -> list[str]:
    """Cells of one column; texts omit the prefix that the head of the column shows."""
    if column.kind == "text":
        # Long names have a minimum width for any number of columns; short ones stay in one line.
        wide = any(isinstance(cell, str) and len(cell) > _LONG for cell in cells)
        style = "t long" if wide else "t"
        absent = f'<td class="{style} na">N/A</td>'
        cut = len(common_path(cells))
        return [absent if cell is None else _text_cell(str(cell), style, cut) for cell in cells]
    style = "n share" if column.kind == "percent" else "n"
    return [
        '<td class="n na">N/A</td>'
        if cell is None
        else f'<td class="{style}" data-v="{escape(cell)}">{escape(cell_text(column, cell))}</td>'
        for cell in cells
    ]


def cell_text(column: Column, cell: Cell) -> str:
    """Return the text of a cell; the page also contains the full value."""
    if cell is None:
        return "N/A"
    if isinstance(cell, str):
        return cell
    if column.kind == "bytes":
        return bytes_text(cell)
    return f"{round(cell):,}" if column.kind == "int" else three_digits(cell)
