"""The page of a trace: the picture, and how busy rows and kinds are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qaic.page.document import document
from qaic.page.report_tables import report_html
from qaic.page.timeline import pack
from qaic.page.timeline.section import timeline_html
from qaic.page.timeline.summary_rows import kind_rows, track_rows
from qaic.stats.reports.render.table import Column, Report, Table
from qaic.support.text import counted

if TYPE_CHECKING:
    from qaic.page.timeline import Timeline

_ROWS = (
    Column("row"),
    Column("events", kind="int"),
    Column("busy", "us", "float"),
    Column("from", "us", "float"),
    Column("to", "us", "float"),
)
_KINDS = (
    Column("kind"),
    Column("events", kind="int"),
    Column("time", "us", "float"),
    Column("share", kind="percent"),
)


def trace_page(timeline: Timeline, *, title: str) -> str:
    """Return the page as HTML."""
    note = "Sums over all rows, which work side by side; events inside others count in both."
    figures = Report(
        "figures",
        "Figures",
        [],
        [
            Table("kinds", "Kinds", _KINDS, list(kind_rows(timeline)), note),
            Table("rows", "Rows", _ROWS, list(track_rows(timeline))),
        ],
    )
    parts = [
        ("timeline", "Timeline", timeline_html(timeline)),
        (figures.name, figures.title, report_html(figures)),
    ]
    subtitle = f"{counted(timeline.operations, 'event')} in {counted(len(timeline.tracks), 'row')}"
    return document(title, subtitle, parts, data=pack(timeline))
