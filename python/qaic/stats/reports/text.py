"""Reports as text: columns that fit a terminal."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from qaic.stats.reports.table import Cell, Column, Report, Table
from qaic.support.text import bytes_text, escape_unprintable, shortened

#: rows of a table that are shown; CSV and JSON have them all
MOST_ROWS: Final = 40
#: a text column is not made narrower than this
_NARROWEST: Final = 24
_GAP: Final = 2
_ABSENT: Final = "N/A"


def to_text(report: Report, *, width: int = 120, most_rows: int | None = MOST_ROWS) -> str:
    """One report as text, with a line break at its end.

    `width` is the number of columns of the terminal; long names lose their middle. `most_rows` is the limit
    of rows shown of a table; None for all.
    """
    return "\n".join(_lines(report, width, most_rows)) + "\n"


def _lines(report: Report, width: int, most_rows: int | None) -> Iterator[str]:
    yield f"== {escape_unprintable(report.title)} =="
    for line in report.verdict:
        yield from _wrapped(line, width, "")
    for table in report.tables:
        if table.rows or table.note:
            yield ""
            yield from _advice(table, width) if table.name == "advice" else _table(table, width, most_rows)


def _advice(table: Table, width: int) -> Iterator[str]:
    """Sentences, which columns would cut: hazard, then its reason and remedy."""
    yield escape_unprintable(table.title)
    for number, (hazard, reason, remedy) in enumerate(table.rows, 1):
        yield from _wrapped(f"{hazard}: {reason}", width, f"  {number}. ")
        yield from _wrapped(f"{remedy}", width, "     ")


def _table(table: Table, width: int, most_rows: int | None) -> Iterator[str]:
    yield escape_unprintable(table.title)
    if table.rows:
        rows = table.rows[:most_rows]
        columns = [_texts(column, [row[place] for row in rows]) for place, column in enumerate(table.columns)]
        # A column without a single value only costs room.
        shown = [
            place for place, texts in enumerate(columns) if any(text not in {"", _ABSENT} for text in texts)
        ]
        fitting = _fitting(table, columns, shown, width)
        yield from _aligned(
            [table.columns[place] for place in fitting],
            [columns[place] for place in fitting],
            table.estimated_rows,
            width,
        )
        if len(fitting) < len(shown):
            left_out = ", ".join(table.columns[place].name for place in shown[len(fitting) :])
            yield from _wrapped(f"more columns in csv, json and wider terminals: {left_out}", width, "  ")
        if len(rows) < len(table.rows):
            yield f"  ... and {len(table.rows) - len(rows)} more; csv and json have them all"
        missing = [column.name for place, column in enumerate(table.columns) if place not in set(shown)]
        if missing:
            yield from _wrapped(f"columns without values: {', '.join(missing)}", width, "  ")
    if any(place in table.estimated_rows for place in range(len(table.rows[:most_rows]))):
        yield "  ~ within the cost of measuring"
    if table.note:
        yield from _wrapped(table.note, width, "  ")


def _fitting(table: Table, columns: Sequence[Sequence[str]], shown: list[int], width: int) -> list[int]:
    """Choose the columns, from the left, that fit when texts are as narrow as they may be."""
    fitting: list[int] = []
    used = 0
    for place in shown:
        column = table.columns[place]
        widest = max(len(_head(column)), *map(len, columns[place]))
        used += _GAP + (min(widest, _NARROWEST) if column.kind == "text" else widest)
        if used > width and fitting:
            break
        fitting.append(place)
    return fitting


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(
        escape_unprintable(text),
        max(width, 40),
        initial_indent=indent,
        subsequent_indent=" " * len(indent) + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _head(column: Column) -> str:
    """Title of a column whose cells may carry the unit themselves."""
    return column.name if column.kind == "bytes" else column.title


def _aligned(
    columns: Sequence[Column], texts: Sequence[Sequence[str]], estimated_rows: frozenset[int], width: int
) -> Iterator[str]:
    widths = [max(len(_head(column)), *map(len, cells)) for column, cells in zip(columns, texts, strict=True)]
    # Long texts give way first, the longest most.
    while sum(widths) + _GAP * len(widths) > width:
        longest = max(
            (
                place
                for place, column in enumerate(columns)
                if column.kind == "text" and widths[place] > _NARROWEST
            ),
            key=lambda place: widths[place],
            default=None,
        )
        if longest is None:
            break
        widths[longest] -= 1

    def line(cells: Sequence[str], mark: str) -> str:
        parts = [
            shortened(cell, size).ljust(size) if column.kind == "text" else cell.rjust(size)
            for column, cell, size in zip(columns, cells, widths, strict=True)
        ]
        return f"{mark} {'  '.join(parts)}".rstrip()

    yield line([_head(column) for column in columns], " ")
    for place in range(len(texts[0]) if texts else 0):
        yield line([cells[place] for cells in texts], "~" if place in estimated_rows else " ")


def _texts(column: Column, cells: Sequence[Cell]) -> list[str]:
    numbers = [abs(cell) for cell in cells if isinstance(cell, int | float)]
    largest = max(numbers, default=0)
    digits = 1 if largest >= 1000 else 2 if largest >= 10 else 3
    return [_text(column, cell, digits) for cell in cells]


def _text(column: Column, cell: Cell, digits: int) -> str:
    if cell is None:
        return _ABSENT
    if isinstance(cell, str):
        return escape_unprintable(cell)
    match column.kind:
        case "bytes":
            return bytes_text(cell)
        case "percent" | "change":
            return f"{cell:.1f}"
        case "int":
            return str(round(cell))
        case "significant":
            return f"{cell:.3g}"
        case _:
            return f"{cell:.{digits}f}"
