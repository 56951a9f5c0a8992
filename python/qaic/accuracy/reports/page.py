"""The page of a comparison: verdict and first offender, errors along the graph, then the tables."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from qaic import __version__, _core
from qaic.accuracy.metrics import BINS, LEAST_EXPONENT, decibel_text
from qaic.accuracy.reasons import Reason
from qaic.accuracy.reports.precision_accuracy import PrecisionAccuracy
from qaic.accuracy.reports.tables import WORST_NODES
from qaic.compiler.diagnostics.messages import listing
from qaic.page.document import document
from qaic.report import Report
from qaic.report.html import common_path, folded, table_html, verdict_html
from qaic.support.text import escape_html as escape
from qaic.support.text import three_digits

_WIDTH, _HEIGHT = 1000, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 16, 36
#: dB at the top of the chart, where larger values are drawn
_MOST_DB: Final = 100.0
_STEP_DB: Final = 20
#: most points of the chart; if there are more nodes, several share a point
_POINTS: Final = 450
#: bins of the smallest normal and of the largest float16
_HALF_LOW: Final = -14 - LEAST_EXPONENT + 1
_HALF_HIGH: Final = 15 - LEAST_EXPONENT + 1


def accuracy_page(reports: Sequence[Report], precisions: Sequence[PrecisionAccuracy]) -> str:
    """Return the page as HTML; `reports` are those of `as_reports`."""
    first, *nodes = reports
    worst = [table for table in first.tables if table.name.startswith("worst-")]
    others = [table for table in first.tables if not table.name.startswith("worst-")]
    charts = "".join(
        f"<figure>{errors_svg(item)}<figcaption>{escape(item.to)}: the line is the SQNR in dB of each result "
        "in the deployed program, in the order of the graph; bars, drawn from the top, "
        f"are the error that a node adds. {escape(_masked_note(item))}</figcaption></figure>"
        for item in precisions
    )
    shapes = "".join(map(table_html, worst)) + "".join(worst_html(item) for item in precisions)
    parts = [
        ("verdict", "Verdict", verdict_html(first.verdict)),
        ("curve", "Errors along the graph", charts),
        *((("values", "Nodes that lose the most precision", shapes),) if shapes else ()),
        *map(folded, nodes),
        ("outputs", "Outputs", "".join(map(table_html, others)), ""),
    ]
    names = ", ".join(item.to for item in precisions)
    versions = f"openqaic {__version__} \u00b7 onnxruntime {_core.engine_info()[1]}"
    return document(
        first.title, f"float32 compared with {names} \u00b7 {versions}", parts, by="the virtual card"
    )


def _masked_note(item: PrecisionAccuracy) -> str:
    """Return why the line falls or rises at masked scores; empty without any."""
    masked = item.nodes[item.nodes["reason"] == Reason.MASKED.value]
    if not len(masked):
        return ""
    least = float(masked["minimum"].min())
    return (
        f"Masked scores are in {listing(masked['name'].tolist())}: constants such as {three_digits(least)}, "
        "which Softmax turns into 0. They dominate the SQNR, so the line falls or rises there without an "
        "effect on later nodes."
    )


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
            f"{worst['name']} ({worst['op_type']}): inherited SQNR "
            f"{decibel_text(worst['inherited_sqnr_db'])}, own SQNR {decibel_text(worst['own_sqnr_db'])}"
            + ("" if worst["reason"] == "none" else f", {worst['reason']}")
        )
        pieces.append(
            f'<rect class="band" x="{x:.1f}" y="{_TOP}" width="{max(step - 0.5, 0.5):.1f}" '
            f'height="{max(_y(own) - _TOP, 0.5):.1f}"><title>{escape(text)}</title></rect>'
        )
        points.append(f"{x + step / 2:.1f},{_y(inherited):.1f}")
    pieces.append(f'<polyline class="curve" points="{" ".join(points)}"/>')
    label = escape(f"SQNR along the graph in {item.to}")
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{"".join(pieces)}</svg>'


def worst_html(item: PrecisionAccuracy) -> str:
    """Return histograms of the nodes that lose the most precision; empty if no node loses precision."""
    figures = []
    has_limits = False
    found = [(item.nodes[row], item.histogram(row)) for row in item.worst(WORST_NODES)]
    path = common_path([node["name"] for node, _ in found])
    for node, counts in found:
        if counts is None:
            continue
        is_half = bool(node["precision"] == "fp16")
        has_limits |= is_half
        text = (
            f"{node['name'][len(path) :]} ({node['op_type']}): own SQNR {decibel_text(node['own_sqnr_db'])}"
        )
        if node["reason"] != "none":
            text += f", {node['reason']}"
        picture = histogram_svg(*counts, label=f"values of {node['name']} in {item.to}", has_half=is_half)
        figures.append(f"<figure>{picture}<figcaption>{escape(text)}</figcaption></figure>")
    if not figures:
        return ""
    return (
        f"<h3>Values in {escape(item.to)} <small>{escape(path)}</small></h3>"
        f'<div class="small-charts">{"".join(figures)}</div>'
        '<p class="note">Share of values by powers of two. The left bar counts zeros, the right bar '
        "infinity and NaN. Bars show float32, the line shows the deployed program. "
        + ("Vertical lines show the limits of normal float16. " if has_limits else "")
        + "Counted on evenly spaced elements.</p>"
    )


def histogram_svg(
    reference: NDArray[np.int64], deployed: NDArray[np.int64], *, label: str, has_half: bool
) -> str:
    """Return the octaves of values: bars for float32, a line for the deployed program."""
    used = [at for at in range(BINS) if reference[at] or deployed[at]]
    octaves = [at for at in used if 0 < at < BINS - 1]
    low, high = (min(octaves), max(octaves)) if octaves else (1, 1)
    if has_half:
        # The chart includes the limit.
        high = max(high, _HALF_HIGH)
    places = [0, *range(low, high + 1), BINS - 1]
    most = max(1, int(reference.max()), int(deployed.max()))
    width, height, foot = 320, 124, 22
    step = width / len(places)
    pieces = []
    points = []
    for at, place in enumerate(places):
        size, other = (
            (height - foot - 4) * reference[place] / most,
            (height - foot - 4) * deployed[place] / most,
        )
        pieces.append(
            f'<rect class="band" x="{at * step:.1f}" y="{height - foot - size:.1f}" '
            f'width="{max(step - 1, 1):.1f}" height="{size:.1f}"><title>{_octave(place)}: '
            f"{reference[place]} in float32, {deployed[place]} deployed</title></rect>"
        )
        points.append(f"{(at + 0.5) * step:.1f},{height - foot - other:.1f}")
    pieces.append(f'<polyline class="curve" points="{" ".join(points)}"/>')
    for limit in (_HALF_LOW, _HALF_HIGH + 1) if has_half else ():
        if low <= limit <= high + 1:
            x = (limit - low + 1) * step
            pieces.append(f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - foot}"/>')
    pieces.append(f'<text x="{step:.1f}" y="{height - 4}" text-anchor="start">{_octave(low)}</text>')
    if high > low:
        pieces.append(
            f'<text x="{width - step:.1f}" y="{height - 4}" text-anchor="end">{_octave(high)}</text>'
        )
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">{"".join(pieces)}</svg>'
    )


def _octave(place: int) -> str:
    if place == 0:
        return "zero"
    return "not finite" if place == BINS - 1 else f"2^{place - 1 + LEAST_EXPONENT}"


def _axis() -> list[str]:
    lines = []
    for value in range(0, int(_MOST_DB) + 1, _STEP_DB):
        y = _y(value)
        lines.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{y:.1f}" dy="0.35em" text-anchor="end">{value}</text>')
    below = f'y="{_HEIGHT - _BOTTOM}" dy="1.5em"'
    lines.append(f'<text x="{_LEFT}" {below} text-anchor="start">first node</text>')
    lines.append(f'<text x="{_WIDTH - _RIGHT}" {below} text-anchor="end">last node</text>')
    return lines


def _y(value: float) -> float:
    return _TOP + (_MOST_DB - value) / _MOST_DB * (_HEIGHT - _TOP - _BOTTOM)


def _limited(value: float) -> float:
    """Return a ratio limited to the chart; a missing number is not drawn as an error."""
    return _MOST_DB if math.isnan(value) else float(min(max(value, 0.0), _MOST_DB))
