"""A report before it is printed: titles, columns with units, rows.

One value for all forms: text, CSV, JSON and the page show the same rows, so they cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

Kind = Literal["text", "int", "float", "percent", "change", "bytes"]
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
        ``change`` cells are percent of any size and sign.
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
        Rows whose numbers say little, as those at or below the cost of measuring them.
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
