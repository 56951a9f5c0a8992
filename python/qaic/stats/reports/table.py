"""A report before it is printed: titles, columns with units, rows.

One value for all forms: text, CSV, JSON and the page show the same rows, so they cannot disagree.
"""

import importlib
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

from qaic.errors import StateError
from qaic.support.text import bytes_text, escape_html, escape_unprintable, html_table, shortened

Kind = Literal["text", "int", "float", "percent", "change", "bytes", "significant"]
#: ``None`` is what was not measured or does not apply; it is shown as N/A and is never a zero
Cell = str | int | float | None

NOT_MEASURED: Final = "not measured on this device"


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Parameters
    ----------
    name
        Title, unique in its table.
    unit
        Of the numbers, as ``us``; None for counts and text. Percent and change columns have none.
    kind
        How cells are shown: ``bytes`` cells are whole bytes, ``percent`` cells are 0 to 100,
        ``change`` cells are percent of any size and sign; ``significant`` cells are numbers of very
        different sizes, each with three digits.
    """

    name: str
    unit: str | None = None
    kind: Kind = "text"

    @property
    def title(self) -> str:
        """Name and unit."""
        if self.kind in {"percent", "change"}:
            return f"{self.name} %"
        if self.unit == self.name:
            return self.name
        return f"{self.name} {self.unit}" if self.unit else self.name


def columns_of(text: str) -> tuple[Column, ...]:
    """Return the columns that a text describes, each as ``name``, ``name:kind`` or ``name:kind unit``.

    Descriptions have ``|`` between them; columns of the kind ``bytes`` have that unit.
    """
    made = []
    for described in text.split(" | "):
        name, _, form = described.partition(":")
        kind, _, unit = form.partition(" ")
        made.append(
            Column(name, unit or ("bytes" if kind == "bytes" else None), cast("Kind", kind or "text"))
        )
    return tuple(made)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one kind.

    Parameters
    ----------
    name
        Identifier, unique in its report.
    title
        For people.
    columns, rows
        Each row has one cell per column.
    note
        How to read it, or why it has no rows.
    estimated_rows
        Rows whose numbers mean little, as those at or below the cost of measuring them.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: list[tuple[Cell, ...]]
    note: str | None = None
    estimated_rows: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if len(set(names)) < len(names):
            raise ValueError(f"table {self.name}: columns of the same name: {names}")

    def column(self, name: str) -> list[Cell]:
        """Return the cells of one column, in the order of the rows."""
        place = [column.name for column in self.columns].index(name)
        return [row[place] for row in self.rows]

    def to_columns(self) -> dict[str, list[Cell]]:
        """Return title -> cells, with units in the titles: what data frames of any library are made of."""
        return {column.title: [row[place] for row in self.rows] for place, column in enumerate(self.columns)}

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame``; what was not measured is missing there.

        Raises
        ------
        qaic.errors.StateError
            pandas is not installed.
        """
        return _library("pandas").DataFrame(self.to_columns())

    def to_arrow(self) -> Any:
        """Return a ``pyarrow.Table``, which other libraries take by its capsules (``__arrow_c_stream__``).

        Raises
        ------
        qaic.errors.StateError
            pyarrow is not installed.
        """
        return _library("pyarrow").table(self.to_columns())

    def _repr_html_(self) -> str:
        return html_table([column.title for column in self.columns], self.rows, caption=self.title)


@dataclass(frozen=True, slots=True)
class Report:
    """One report: sentences that answer its question, then the tables that show why."""

    name: str
    title: str
    verdict: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    def table(self, name: str) -> Table:
        """Return the table of this name."""
        return next(table for table in self.tables if table.name == name)

    def __str__(self) -> str:
        """Return the text that ``qaic-opstats report`` prints, 120 columns wide."""
        return to_text(self).rstrip("\n")

    def _repr_html_(self) -> str:
        verdict = "".join(f"<p>{escape_html(line)}</p>" for line in self.verdict)
        tables = "".join(table._repr_html_() for table in self.tables if table.rows)
        return f"<div><h4>{escape_html(self.title)}</h4>{verdict}{tables}</div>"


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise StateError(
            f"{name} is not installed",
            code="report.library",
            context={"library": name},
            hints=(f"pip install {name}; to_columns() needs no library",),
        ) from None


#: rows of a table that are shown; CSV and JSON have them all
MOST_ROWS: Final = 40
#: a text column is not made narrower than this
_NARROWEST: Final = 36
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
            yield f"  ... and {len(table.rows) - len(rows)} more; csv and json contain all rows"
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
