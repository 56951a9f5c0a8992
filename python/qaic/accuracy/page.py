"""The page of a comparison: verdict and first offender, errors along the graph, then the tables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from qaic.accuracy.tables import as_reports
from qaic.page.document import document
from qaic.page.report_tables import report_html, table_html, verdict_html
from qaic.page.text import escape

if TYPE_CHECKING:
    from qaic.accuracy.report import AccuracyReport, PrecisionAccuracy

_WIDTH, _HEIGHT = 1000, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 16, 30
#: dB at the top; more is drawn there
_MOST_DB: Final = 100.0
_STEP_DB: Final = 20
#: points from which on several nodes share one place
_POINTS: Final = 450


def accuracy_page(report: AccuracyReport) -> str:
    """Return the page as HTML."""
    first, *nodes = as_reports(report)
    charts = "".join(
        f"<figure>{errors_svg(item)}<figcaption>{escape(item.to)}: the line is the SQNR of each result in "
        "the deployed program, in the order of the graph; bars are what a node loses by itself, from the top "
        "down."
        "</figcaption></figure>"
        for item in report.precisions
    )
    parts = [
        ("verdict", "Verdict", verdict_html(first.verdict)),
        ("course", "Errors along the graph", charts),
        *((item.name, item.title, report_html(item)) for item in nodes),
        ("outputs", "Outputs", "".join(map(table_html, first.tables))),
    ]
    precisions = ", ".join(item.to for item in report.precisions)
    return document(first.title, f"float32 beside {precisions}", parts, by="the virtual card")


def errors_svg(item: PrecisionAccuracy) -> str:
    """Return inherited errors as a line and own errors as bars; lost results are at 0 dB."""
    rows = item.nodes
    count = len(rows)
    together = max(1, -(-count // _POINTS))
    places = range(0, count, together)
    step = (_WIDTH - _LEFT - _RIGHT) / max(len(places), 1)
    pieces = list(_axis())
    points = []
    for at, begin in enumerate(places):
        part = rows[begin : begin + together]
        own = min((_limited(row["own_sqnr_db"]) for row in part), default=_MOST_DB)
        inherited = min((_limited(row["inherited_sqnr_db"]) for row in part), default=_MOST_DB)
        x = _LEFT + at * step
        worst = min(part, key=lambda row: _limited(row["own_sqnr_db"]))
        text = (
            f"{worst['name']} ({worst['op_type']}): inherited {_text(worst['inherited_sqnr_db'])}, own "
            f"{_text(worst['own_sqnr_db'])}" + ("" if worst["reason"] == "none" else f", {worst['reason']}")
        )
        pieces.append(
            f'<rect class="band" x="{x:.1f}" y="{_TOP}" width="{max(step - 0.5, 0.5):.1f}" '
            f'height="{max(_y(own) - _TOP, 0.5):.1f}"><title>{escape(text)}</title></rect>'
        )
        points.append(f"{x + step / 2:.1f},{_y(inherited):.1f}")
    pieces.append(f'<polyline class="curve" points="{" ".join(points)}"/>')
    label = escape(f"SQNR along the graph in {item.to}")
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{"".join(pieces)}</svg>'


def _axis() -> list[str]:
    lines = []
    for value in range(0, int(_MOST_DB) + 1, _STEP_DB):
        y = _y(value)
        lines.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value} dB</text>')
    lines.append(f'<text x="{_LEFT}" y="{_HEIGHT - 10}" text-anchor="start">first node</text>')
    lines.append(f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 10}" text-anchor="end">last node</text>')
    return lines


def _y(value: float) -> float:
    return _TOP + (_MOST_DB - value) / _MOST_DB * (_HEIGHT - _TOP - _BOTTOM)


def _limited(value: float) -> float:
    """Return a ratio within the chart; what has no number is not drawn as an error."""
    return _MOST_DB if math.isnan(value) else float(min(max(value, 0.0), _MOST_DB))


def _text(value: float) -> str:
    from qaic.accuracy.report import decibel_text

    return decibel_text(float(value))
