"""The page of a capture: verdict, timeline, then tables."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from qaic import __version__
from qaic.page.bars import diff_html, first_screen_html
from qaic.page.document import Part, document
from qaic.page.graph import DrawnGraph, graph_html
from qaic.page.graph import pack as pack_graphs
from qaic.page.timeline import pack, timeline_html
from qaic.page.timeline.capture_tracks import timeline_of
from qaic.report import Report
from qaic.report.html import folded
from qaic.stats.reports.advice import NOT_KNOWN, precisions
from qaic.stats.reports.capture import Capture
from qaic.support.text import counted
from qaic.support.text import escape_html as escape

#: smallest percentage of the time for which the title names a precision
_MUCH: Final = 20.0
#: open reports of a page, in their order
_FIRST = ("diff", "overview")


def capture_page(capture: Capture, reports: Sequence[Report], graphs: Sequence[DrawnGraph] = ()) -> str:
    """Return the page as HTML; graphs follow the timeline."""
    timeline = timeline_of(capture)
    order = {name: place for place, name in enumerate(_FIRST)}
    parts: list[Part] = [
        (report.name, report.title, _body(report, capture)) if report.name in _FIRST else folded(report)
        for report in sorted(reports, key=lambda report: order.get(report.name, len(order)))
        if not is_empty(report)
    ]
    silent = [report for report in reports if is_empty(report)]
    if silent:
        titles = ", ".join(report.title for report in silent)
        parts.append(("silent", "Not measured", empty_html(silent), titles))
    data = None
    after = sum(part[0] in _FIRST for part in parts)
    if graphs:
        parts.insert(after, ("graph", "Graph", graph_html(graphs)))
    if timeline.operations:
        parts.insert(after, ("timeline", "Timeline", timeline_html(timeline)))
        data = pack(timeline)
    networks = dict.fromkeys(reader.facts.network for reader in capture.each() if reader.facts.network)
    title = capture.name or ", ".join(networks) or "Measurements"
    if capture.samples:
        title += f"{_precision(capture)} on {_device(capture)}"
    return document(
        title,
        _subtitle(capture),
        parts,
        data=data,
        graph=pack_graphs(graphs) if graphs else None,
        by=_producers(capture),
    )


def _body(report: Report, capture: Capture) -> str:
    return first_screen_html(report, capture) if report.name == "overview" else diff_html(report)


def is_empty(report: Report) -> bool:
    """Return True if a report has no verdict and no row, because the device did not measure its subject."""
    return not report.verdict and not any(table.rows for table in report.tables)


def empty_html(reports: Sequence[Report]) -> str:
    """Return the list of reports without content, and the reason."""
    rows = []
    for report in reports:
        notes = dict.fromkeys(table.note for table in report.tables if table.note)
        rows.append(f"<dt>{escape(report.title)}</dt><dd>{escape('; '.join(notes) or 'no figures')}</dd>")
    return f'<dl class="facts">{"".join(rows)}</dl>'


def _precision(capture: Capture) -> str:
    """Name the precisions of most of the time; quantized results are int8, signed or not."""
    rows = [row for row in precisions(capture.typical).rows if float(row[3] or 0) >= _MUCH]
    stated = (str(row[0]) for row in rows if row[0] != NOT_KNOWN)
    names = dict.fromkeys("int8" if name == "uint8" else name for name in stated)
    return f" in {' and '.join([*names][:2])}" if names else ""


def _subtitle(capture: Capture) -> str:
    versions = [f"openqaic {__version__}", *filter(None, [capture.engine])]
    readers = capture.each()
    if not readers:
        return " \u00b7 ".join(["Measured by the host", *versions])
    run = readers[0].run
    inferences = len(capture.samples)
    facts = [
        counted(inferences, "inference"),
        f"stats level {run.stats_level}",
        *([f"{run.batch_size} samples per inference"] if int(run.batch_size) > 1 else ()),
    ]
    if int(run.epoch_utc_ns):
        seconds = (
            int(run.epoch_utc_ns) + readers[0].start_u * 1_000_000_000 // readers[0].hz
        ) // 1_000_000_000
        # Damaged buffers have years outside the calendar.
        if seconds < 253_402_300_800:
            facts.append(f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC")
    return " \u00b7 ".join([*facts, *versions])


def _device(capture: Capture) -> str:
    if capture.is_cpu:
        return "the CPU device"
    return counted(capture.devices, "device")


def _producers(capture: Capture) -> str:
    """Return what measured, except openqaic, which also wrote the page."""
    producers = dict.fromkeys(str(buffer.meta.get("producer") or "") for buffer in capture.buffers)
    return ", ".join(name for name in producers if name not in {"", "openqaic"})
