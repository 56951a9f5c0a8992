"""Reports as data: sentences, and tables of columns with units.

All forms show the same rows of one value: text (`qaic.report.text`), CSV and JSON (`qaic.report.files`), and
pages and notebooks (`qaic.report.html`).
"""

from collections.abc import Sequence
from dataclasses import replace

from qaic.report import _data
from qaic.report._data import NOT_MEASURED, Cell, Column, Prose, columns_of
from qaic.report.html import NOTEBOOK_ROWS, report_html, table_html
from qaic.report.text import to_text
from qaic.support.text import escape_html

__all__ = ["NOT_MEASURED", "Cell", "Column", "Prose", "Report", "Table", "columns_of"]


class Table(_data.Table):
    """Rows of one kind. Notebooks display the table as HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return table_html(self if self.rows or self.note else replace(self, note="none"), NOTEBOOK_ROWS)


class Report(_data.Report):
    """Sentences and tables. Notebooks display the report as HTML, and ``print`` writes it as text."""

    __slots__ = ()
    tables: Sequence[Table]

    def __str__(self) -> str:
        """Return the text that ``qaic-opstats report`` prints, 120 columns wide."""
        return to_text(self).rstrip("\n")

    def _repr_html_(self) -> str:
        return f"<div><h4>{escape_html(self.title)}</h4>{report_html(self, NOTEBOOK_ROWS)}</div>"
