"""Data of reports. Modules outside this package import the classes from `qaic.report`."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Self, cast

from qaic.errors import StateError

Kind = Literal["text", "int", "float", "percent", "change", "bytes"]
#: value of a cell; ``None`` means not measured or not applicable, and is shown as N/A, never as 0
Cell = str | int | float | None

NOT_MEASURED: Final = "not measured on this device"


class Prose(str):
    """A sentence that names options by keyword. Tools show their flags instead.

    Parameters
    ----------
    text
        The sentence.
    options
        Keywords of options that help, in parentheses after the text. A tool shows only its own options.
    names
        The user's names in the text. Tools do not change them.
    """

    __slots__ = ("names", "options", "text")
    text: str
    options: Sequence[str]
    names: Sequence[str]

    def __new__(cls, text: str, *, options: Sequence[str] = (), names: Sequence[str] = ()) -> Self:
        stem = text.removesuffix(".")
        made = super().__new__(cls, f"{stem} ({', '.join(options)}){text[len(stem) :]}" if options else text)
        made.text, made.options, made.names = text, options, names
        return made


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Parameters
    ----------
    name
        Title, unique in its table.
    unit
        Unit of the numbers, such as ``us``; None for counts, text, and percent and change columns.
    kind
        Format of the cells: ``float`` cells have three digits, ``bytes`` cells are whole bytes, ``percent``
        cells are 0 to 100, and ``change`` cells are percentages of any size and sign.
    """

    name: str
    unit: str | None = None
    kind: Kind = "text"

    @property
    def title(self) -> str:
        """Name and unit."""
        if self.kind in {"percent", "change"}:
            return f"{self.name} %"
        if not self.unit or self.unit == self.name:
            return self.name
        return f"{self.name} {self.unit}"


def columns_of(text: str) -> tuple[Column, ...]:
    """Return the columns that a text describes, each as ``name``, ``name:kind`` or ``name:kind unit``.

    Descriptions are separated by ``|``. Columns of the kind ``bytes`` have that unit.
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
        Title for people.
    columns, rows
        Columns, and rows with one cell per column.
    note
        Explanation of the table, or the reason why it has no rows.
    estimated_rows
        Rows whose numbers mean little, for example because they do not exceed the cost of measuring.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: Sequence[tuple[Cell, ...]]
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
        """Return title -> cells, with units in the titles. Any data frame library accepts the dictionary."""
        return {column.title: [row[place] for row in self.rows] for place, column in enumerate(self.columns)}

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame``. Values that were not measured are missing.

        Raises
        ------
        qaic.errors.StateError
            pandas is not installed.
        """
        return _library("pandas").DataFrame(self.to_columns())

    def to_arrow(self) -> Any:
        """Return a ``pyarrow.Table``, which other libraries read through ``__arrow_c_stream__``.

        Raises
        ------
        qaic.errors.StateError
            pyarrow is not installed.
        """
        return _library("pyarrow").table(self.to_columns())


@dataclass(frozen=True, slots=True)
class Report:
    """A report: sentences that answer a question, and tables with the reasons."""

    name: str
    title: str
    verdict: list[str] = field(default_factory=list)
    tables: Sequence[Table] = ()
    #: Command lines to paste next, by purpose; the purpose is empty if there is only one line.
    next_steps: Mapping[str, str] = field(default_factory=dict)

    def table(self, name: str) -> Table:
        """Return the table of this name."""
        return next(table for table in self.tables if table.name == name)

    def with_prose(self, shown: Callable[[Prose], str]) -> Self:
        """Return a copy of the report in which `shown` has converted all prose."""

        def cell(value: Any) -> Any:
            return shown(value) if isinstance(value, Prose) else value

        tables = [replace(table, rows=[tuple(map(cell, row)) for row in table.rows]) for table in self.tables]
        steps = {cell(purpose): line for purpose, line in self.next_steps.items()}
        return replace(self, verdict=[*map(cell, self.verdict)], tables=tables, next_steps=steps)


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
