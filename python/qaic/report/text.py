"""Reports and tables as text of a given width, and the text of a cell in all forms for people."""

import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from numbers import Real
from typing import Any, Final

from qaic.report._data import Column, Report, Table, columns_of
from qaic.support.text import bytes_text, escape_unprintable, percentage, shortened, three_digits

#: largest number of rows of a table that are shown
MOST_ROWS: Final = 40
ABSENT: Final = "N/A"
#: least width of a shortened text column
_NARROWEST: Final = 36
_GAP: Final = 2


def cell_text(column: Column, cell: Any) -> str:
    """Return the text of a cell for people, in text, on pages and in notebooks."""
    if cell is None:
        return ABSENT
    is_number = isinstance(cell, Real) and not isinstance(cell, bool)
    if column.kind == "text" or not is_number:
        return escape_unprintable(str(cell))
    if column.kind == "bytes":
        return bytes_text(cell)
    if column.kind in {"percent", "change"}:
        return percentage(cell)
    return f"{round(cell):,}" if column.kind == "int" else three_digits(cell)


def to_text(report: Report, *, width: int = 120, most_rows: int | None = MOST_ROWS, whole: str = "") -> str:
    """Convert one report to text, with a line break at its end.

    `width` is the number of columns of the terminal; long names are shortened in the middle. `most_rows` is
    the largest number of rows of a table; None for all. `whole` names the option that shows the whole table.
    """
    return "\n".join(_lines(report, width, most_rows, whole)) + "\n"


def rows_text(
    columns: str | Sequence[Column], rows: Sequence[Sequence[Any]], width: int | None = None, whole: str = ""
) -> str:
    """Return rows below the titles of their columns; without a `width`, columns are not shortened.

    `columns` may be a text for `columns_of`. If the last columns have no room, a line names them and the
    option `whole`, which shows them.
    """
    made = columns_of(columns) if isinstance(columns, str) else columns
    texts = _texts(made, rows)
    fitting = range(len(made)) if width is None else _fitting(made, texts, range(len(made)), width)
    lines = _aligned([made[place] for place in fitting], [texts[place] for place in fitting], width)
    return "\n".join([*lines, *_without_room(made[len(fitting) :], width or 0, "", whole)])


def facts_text(facts: Iterable[tuple[str, str]]) -> str:
    """Return a line for each name and value. A blank name continues the value above."""
    pairs = list(facts)
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"{name:<{width}}  {escape_unprintable(value)}" for name, value in pairs)


def _lines(report: Report, width: int, most_rows: int | None, whole: str) -> Iterator[str]:
    yield f"== {escape_unprintable(report.title)} =="
    for line in report.verdict:
        yield from _wrapped(line, width, "")
    for table in report.tables:
        if table.rows or table.note:
            yield ""
            yield escape_unprintable(table.title)
            is_advice = table.name == "advice"
            yield from _advice(table, width) if is_advice else _table(table, width, most_rows, whole)
    if report.next_steps:
        yield ""
    for purpose, line in report.next_steps.items():
        yield escape_unprintable(f"next{f', {purpose}' if purpose else ''}: {line}")


def _advice(table: Table, width: int) -> Iterator[str]:
    """Yield each hazard with its reason and remedy as sentences, because columns would cut them."""
    for number, (hazard, reason, remedy) in enumerate(table.rows, 1):
        yield from _wrapped(f"{hazard}: {reason}", width, f"  {number}. ")
        yield from _wrapped(f"{remedy}", width, "     ")


def _table(table: Table, width: int, most_rows: int | None, whole: str) -> Iterator[str]:
    rows = table.rows[:most_rows]
    columns = table.columns
    if rows:
        texts = _texts(columns, rows)
        # Columns without values are named below the table.
        shown = [place for place, cells in enumerate(texts) if set(cells) - {"", ABSENT}]
        fitting = _fitting(columns, texts, shown, width)
        lines = _aligned([columns[at] for at in fitting], [texts[at] for at in fitting], width)
        for place, line in enumerate(lines, -1):
            yield f"{'~' if place in table.estimated_rows else ' '} {line}".rstrip()
        yield from _without_room([columns[place] for place in shown[len(fitting) :]], width, "  ", whole)
        if len(rows) < len(table.rows):
            yield f"  ... and {len(table.rows) - len(rows)} more{_see(whole)}"
        missing = [column.name for place, column in enumerate(columns) if place not in shown]
        if missing:
            yield from _wrapped(f"columns without values: {', '.join(missing)}", width, "  ")
    if any(place in table.estimated_rows for place in range(len(rows))):
        yield "  ~ within the cost of measuring"
    if table.note:
        yield from _wrapped(table.note, width, "  ")


def _without_room(columns: Collection[Column], width: int, indent: str, whole: str) -> list[str]:
    names = ", ".join(column.name for column in columns)
    return _wrapped(f"columns without room: {names}{_see(whole)}", width, indent) if columns else []


def _see(whole: str) -> str:
    return f"; see {whole}" if whole else ""


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
    """Return the title of a column, without the unit if the cells contain it."""
    return column.name if column.kind == "bytes" else column.title


def _texts(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> list[list[str]]:
    """Return the cells of each column as texts."""
    return [[cell_text(column, row[place]) for row in rows] for place, column in enumerate(columns)]


def _widest(column: Column, cells: Sequence[str]) -> int:
    return max(len(_head(column)), *map(len, cells), 0)


def _fitting(
    columns: Sequence[Column], texts: Sequence[Sequence[str]], shown: Sequence[int], width: int
) -> list[int]:
    """Select the columns, from the left, that fit if all texts have their least width."""
    fitting: list[int] = []
    used = 0
    for place in shown:
        widest = _widest(columns[place], texts[place])
        used += _GAP + (min(widest, _NARROWEST) if columns[place].kind == "text" else widest)
        if used > width and fitting:
            break
        fitting.append(place)
    return fitting


def _aligned(
    columns: Sequence[Column], texts: Sequence[Sequence[str]], width: int | None = None
) -> Iterator[str]:
    """Yield the titles and the rows. The widest text columns are shortened first."""
    widths = [_widest(*pair) for pair in zip(columns, texts, strict=True)]
    while width is not None and sum(widths) + _GAP * len(widths) > width:
        wide = [at for at, column in enumerate(columns) if column.kind == "text" and widths[at] > _NARROWEST]
        if not wide:
            break
        widths[max(wide, key=lambda at: widths[at])] -= 1
    for row in [[*map(_head, columns)], *zip(*texts, strict=True)]:
        parts = (
            shortened(cell, size).ljust(size) if column.kind == "text" else cell.rjust(size)
            for column, cell, size in zip(columns, row, widths, strict=True)
        )
        yield "  ".join(parts).rstrip()
