"""Reports as HTML. Scripts only add sorting, filtering and copying."""

import os.path
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from qaic.report._data import Cell, Column, Report, Table
from qaic.report.text import ABSENT, cell_text
from qaic.support.text import bytes_text, duration, shortened, three_digits
from qaic.support.text import escape_html as escape

#: largest number of rows of a table on a page, and in a notebook
MOST_ROWS = 2000
NOTEBOOK_ROWS = 60
# A short table of names and values is shown as stat cards.
_MOST_TILES = 16
# Texts longer than this get a wide column.
_LONG = 24
#: largest number of characters of a text in a table
_LONGEST = 72
# Tables with at most this many columns, all short, are as narrow as possible.
_NARROW = 4
#: smallest number of names, and length of their common path, for which the path is shown once
_FEWEST_NAMES = 3
_LEAST_PREFIX = 6
#: an option, and a command in backquotes
_FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
_COMMAND = re.compile(r"`([^`\n]+)`")
#: microseconds of each unit of time
_TIMES = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}


def folded(report: Report) -> tuple[str, str, str, str]:
    """Return id, title, body and first sentence, or the note of an empty table, of a closed section."""
    line, *rest = report.verdict or [next((one.note or "" for one in report.tables if not one.rows), "")]
    return report.name, report.title, report_html(replace(report, verdict=rest)), line


def report_html(report: Report, most_rows: int = MOST_ROWS) -> str:
    """Return the body of a report's section."""
    tables = (
        stat_cards_html(table) if is_facts(table) else table_html(table, most_rows) for table in report.tables
    )
    lines = "".join(
        f"<li><span>{prose_html(purpose or 'next')}:</span> <code>{_words_html(line)}</code></li>"
        for purpose, line in report.next_steps.items()
    )
    parts = (verdict_html(report.verdict), *tables, f'<ul class="commands">{lines}</ul>' if lines else "")
    return "\n".join(part for part in parts if part)


def verdict_html(sentences: Sequence[str]) -> str:
    """Return the verdict of a report as a list."""
    if not sentences:
        return ""
    return '<ul class="verdict">' + "".join(f"<li>{prose_html(line)}</li>" for line in sentences) + "</ul>"


def prose_html(text: object) -> str:
    """Return a text as HTML, with commands in backquotes as code, and options that do not break."""
    marked = _FLAG.sub(r'<span class="flag">\g<0></span>', escape(text))
    return _COMMAND.sub(r"<code>\1</code>", marked)


def _words_html(line: str) -> str:
    """Return a command line whose words do not break; a browser would break them behind hyphens."""
    return " ".join(f'<span class="word">{escape(word)}</span>' for word in line.split(" "))


def is_facts(table: Table) -> bool:
    """Return True if a table lists names and values: a figure, its value (with minimum and maximum), unit."""
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
    cards = "".join(stat_cards)
    return f'<dl class="stat-cards" data-table="{escape(table.name)}">{cards}</dl>{_notes(notes)}'


def _figure(value: Cell, unit: Cell) -> list[str]:
    """Return a value with three digits, and the unit that suits it."""
    if not isinstance(value, int | float):
        return [escape(value)]
    if unit in _TIMES:
        return duration(value * _TIMES[unit]).split()
    if unit == "bytes":
        return [bytes_text(value)]
    return [three_digits(value), escape(unit)] if unit else [three_digits(value)]


def table_html(table: Table, most_rows: int = MOST_ROWS) -> str:
    """Return a table with its title, its tools and its note."""
    title = f"<h3>{escape(table.title)}</h3>"
    if not table.rows:
        return title + _notes([table.note]) if table.note else ""
    # A column without values is named below the table instead.
    columns, absent = [], []
    shown = table.rows[:most_rows]
    for place, column in enumerate(table.columns):
        if any(row[place] is not None for row in table.rows):
            columns.append(_column_html(column, [row[place] for row in shown]))
        else:
            absent.append(column.name)
    notes = [table.note or "", f"columns without values: {', '.join(absent)}" if absent else ""]
    count = f"{len(shown)} {'row' if len(shown) == 1 else 'rows'}"
    if len(shown) < len(table.rows):
        count = f"the first {len(shown)} of {len(table.rows)} rows"
    lines = zip(*columns, strict=True) if columns else [()] * (len(shown) + 1)
    head, *rows = map("".join, lines)
    body = "".join(
        f"<tr{' class=estimate' if number in table.estimated_rows else ''}>{row}</tr>\n"
        for number, row in enumerate(rows)
    )
    # A narrow table would hide the columns behind a long name.
    narrow = " narrow" if len(columns) <= _NARROW and 'class="t long"' not in body else ""
    return (
        f'<div class="table-block{narrow}">{title}\n'
        f'<div class="tools"><span class="count">{escape(count)}</span></div>\n'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">'
        f'<table data-table="{escape(table.name)}" data-title="{escape(table.title)}">'
        f"<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{body}</tbody></table></div>{_notes(notes)}</div>"
    )


def _notes(notes: Iterable[str]) -> str:
    return "".join(f'<p class="note">{prose_html(note)}</p>' for note in notes if note)


def _column_html(column: Column, cells: Sequence[Cell]) -> list[str]:
    """Return the head and the cells of a column; texts omit the prefix that the head shows."""
    path, style = "", "n"
    if column.kind == "text":
        path = common_path(cells)
        # Long names have a minimum width for any number of columns; short ones stay in one line.
        style = "t long" if any(isinstance(cell, str) and len(cell) > _LONG for cell in cells) else "t"
    elif column.kind == "percent":
        style = "n share"
    # Cells of bytes name their unit.
    unit = {"percent": "%", "change": "%", "bytes": None, "text": path}.get(column.kind, column.unit)
    small = f" <small>{escape(unit)}</small>" if unit else ""
    head = f'<th scope="col"{"" if column.kind == "text" else " class=n"}>{escape(column.name)}{small}</th>'
    return [head, *(_cell(column, cell, style, len(path)) for cell in cells)]


def _cell(column: Column, cell: Cell, style: str, cut: int) -> str:
    """Return a cell. The tooltip, the filter and the copy contain the whole text or value."""
    if cell is None:
        return f'<td class="{style.removesuffix(" share")} na">{ABSENT}</td>'
    if column.kind != "text":
        return f'<td class="{style}" data-v="{escape(cell)}">{escape(cell_text(column, cell))}</td>'
    text = str(cell)
    short, whole = shortened(text[cut:], _LONGEST), escape(text)
    if short == text:
        return f'<td class="{style}">{whole}</td>'
    return f'<td class="{style}" title="{whole}" data-v="{whole}">{escape(short)}</td>'


def common_path(names: Sequence[object]) -> str:
    """Return the common path of all texts among the names; "" if the path is short."""
    texts = [name for name in names if isinstance(name, str)]
    # Characters are compared, because node names are not file paths.
    common = os.path.commonprefix(texts) if len(texts) >= _FEWEST_NAMES else ""  # noqa: RUF071
    path = common[: common.rfind("/") + 1]
    return path if len(path) >= _LEAST_PREFIX else ""
