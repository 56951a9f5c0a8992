"""The page of latencies: figures, histogram, percentiles and curve of each measurement, and reports."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from qaic import __version__
from qaic.page.document import document
from qaic.page.latency import PERCENTILES, Distribution, curve, edge_digits, histogram, unit_of
from qaic.report import Column, Report, Table
from qaic.report.html import report_html, stat_cards_html, verdict_html
from qaic.support.text import counted, duration
from qaic.support.text import escape_html as escape

_WIDTH, _HEIGHT = 1000, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 36, 36
_BARS, _COLUMNS, _POINTS = 48, 450, 500
_MOST_TICKS = 5
_RULES = ("P50", "P90", "P99")
#: largest width of the name of a percentile, in a chart as wide as a phone
_RULE_NAME = 55


def histogram_svg(distribution: Distribution) -> str:
    """Return the histogram. The latencies must be known."""
    assert distribution.seconds is not None  # noqa: S101 (callers look)
    bars = histogram(distribution.seconds, _BARS)
    unit, per_second = unit_of(float(bars.edges[-1]))
    counts = [*bars.counts.tolist(), *([bars.above] if bars.above else [])]
    low, step = float(bars.edges[0]), float(bars.edges[1] - bars.edges[0])
    span = len(counts) * step
    highest, digits = max(counts), edge_digits(bars.edges, per_second)
    across = _scale(low, low + span, _LEFT, _WIDTH - _RIGHT)
    up = _scale(0, highest, _HEIGHT - _BOTTOM, _TOP)
    last = low + len(bars.counts) * step
    pieces = [
        *_x_ticks(across, low * per_second, last * per_second, per_second),
        *_y_ticks(up, highest),
    ]
    for place, count in enumerate(counts):
        begin = low + place * step
        low_edge, high_edge = (f"{edge * per_second:.{digits}f}" for edge in (begin, begin + step))
        over = place == len(bars.counts)
        named = f"more than {low_edge} {unit}" if over else f"{low_edge} to {high_edge} {unit}"
        left, right, top = across(begin), across(begin + step), up(count)
        share = 100 * count / distribution.count
        if count:
            # A count of one in a million has a height of one pixel.
            size = max(_HEIGHT - _BOTTOM - top, 1.5)
            pieces.append(
                f'<rect class="fill" x="{left + 0.5:.1f}" y="{_HEIGHT - _BOTTOM - size:.1f}" '
                f'width="{max(right - left - 1, 0.6):.1f}" height="{size:.1f}">'
                f"<title>{escape(named)}: {count} ({share:.2f} %)</title></rect>"
            )
    if bars.above:
        pieces.append(_text(across(last + step / 2), _HEIGHT - _BOTTOM, "more", "middle", "1.5em"))
    percentiles = {name: distribution.percentiles[name] for name in _RULES}
    pieces += _rules({name: across(value) for name, value in percentiles.items() if value <= last})
    return _svg(f"Histogram of {distribution.count} latencies", pieces)


def _rules(places: Mapping[str, float]) -> Iterable[str]:
    """Yield a line for each percentile; lines that are close together have one label."""
    groups: list[tuple[list[str], list[float]]] = []
    for name, x in places.items():
        yield f'<line class="rule" x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{_HEIGHT - _BOTTOM}"/>'
        if groups and x - groups[-1][1][-1] < _RULE_NAME * (len(groups[-1][0]) + 1):
            groups[-1][0].append(name)
            groups[-1][1].append(x)
        else:
            groups.append(([name], [x]))
    limit: float = _WIDTH - _RIGHT
    for names, lines in reversed(groups):
        text, size = " ".join(names), _RULE_NAME * len(names)
        if lines[-1] + size <= limit:
            limit = lines[0]
            yield _text(lines[-1] + 4, 0, text, "start", "1em", style="rule-name")
        else:
            # The label is before its lines, and moves the label on its left.
            limit = lines[0] - size
            yield _text(lines[0] - 4, 0, text, "end", "1em", style="rule-name")


def percentiles_svg(distribution: Distribution) -> str:
    """Return the latency by percentile, on an axis that spreads the slowest runs."""
    if distribution.seconds is not None:
        most = 1 - 1 / max(2, distribution.count)
        spread = -np.log10(1 - np.linspace(0, most, 2)[1])
        places = np.linspace(0, spread, 200)
        shares = 1 - 10.0**-places
        values = np.quantile(distribution.seconds, shares)
    else:
        ranks = [0.0, *PERCENTILES.values()]
        shares = np.array(ranks) / 100
        places = -np.log10(1 - shares)
        values = np.array([distribution.minimum, *distribution.percentiles.values()])
    per_second = unit_of(distribution.maximum)[1]
    across = _scale(0, max(float(places[-1]), 0.31), _LEFT, _WIDTH - _RIGHT)
    top = float(values.max()) * per_second or 1.0
    up = _scale(0, top, _HEIGHT - _BOTTOM, _TOP)
    points = " ".join(
        f"{across(place):.1f},{up(value * per_second):.1f}"
        for place, value in zip(places, values, strict=True)
    )
    pieces = [*_y_ticks(up, top), f'<polyline class="curve" points="{points}"/>']
    for rank in (0, 50, 90, 99, 99.9, 99.99, 99.999):
        place = -math.log10(1 - rank / 100)
        if place <= places[-1] + 1e-9:
            pieces.append(_text(across(place), _HEIGHT - _BOTTOM, f"{rank:g} %", "middle", "1.5em"))
    return _svg("Latency by percentile", pieces)


def curve_svg(distribution: Distribution) -> str:
    """Return the curve of latencies in the order of measurement. The latencies must be known."""
    seconds = distribution.seconds
    assert seconds is not None  # noqa: S101 (callers look)
    top = distribution.top
    per_second = unit_of(top)[1]
    across = _scale(0, max(len(seconds) - 1, 1), _LEFT + 4, _WIDTH - _RIGHT - 4)
    up = _scale(0, top * per_second or 1.0, _HEIGHT - _BOTTOM, _TOP)

    def height(value: float) -> float:
        return up(min(value, top) * per_second)

    pieces = [*_x_ticks(across, 0, len(seconds) - 1, 1), *_y_ticks(up, top * per_second)]
    if len(seconds) <= _POINTS:
        pieces += [
            f'<circle class="dot" cx="{across(place):.1f}" cy="{height(value):.1f}" r="2.6">'
            f"<title>number {place}: {duration(1e6 * value)}</title></circle>"
            for place, value in enumerate(seconds.tolist())
        ]
    else:
        columns = curve(seconds, _COLUMNS)
        xs = [across(place) for place in columns.first.tolist()]
        upper = [
            f"{x:.1f},{height(value):.1f}" for x, value in zip(xs, columns.maximum.tolist(), strict=True)
        ]
        lower = [
            f"{x:.1f},{height(value):.1f}" for x, value in zip(xs, columns.minimum.tolist(), strict=True)
        ]
        middle = [
            f"{x:.1f},{height(value):.1f}" for x, value in zip(xs, columns.middle.tolist(), strict=True)
        ]
        pieces.append(f'<polygon class="band" points="{" ".join(upper + lower[::-1])}"/>')
        pieces.append(f'<polyline class="curve" points="{" ".join(middle)}"/>')
    return _svg("Latencies in measured order", pieces)


def curve_note(distribution: Distribution) -> str:
    """Return a note about the points that the curve omits."""
    seconds = distribution.seconds
    assert seconds is not None  # noqa: S101 (callers look)
    notes = []
    if len(seconds) > _POINTS:
        together = -(-len(seconds) // _COLUMNS)
        notes.append(
            f"Each point represents up to {together} neighbors: the line is their median, the band spans "
            "the minimum to the maximum."
        )
    above = int(np.count_nonzero(seconds > distribution.top))
    if above:
        slowest = duration(1e6 * distribution.maximum)
        notes.append(
            f"Slower {distribution.what}s ({above}) are drawn at the top; the slowest took {slowest}."
        )
    return " ".join(notes)


def _scale(low: float, high: float, begin: float, end: float) -> Callable[[float], float]:
    span = (high - low) or 1.0
    return lambda value: begin + (value - low) / span * (end - begin)


def _ticks(low: float, high: float, most: int) -> list[float]:
    wanted = (high - low) / most or 1.0
    power = 10.0 ** math.floor(math.log10(wanted))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= wanted * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _x_ticks(across: Callable[[float], float], low: float, high: float, per_second: float) -> Iterable[str]:
    for value in _ticks(low, high, _MOST_TICKS):
        yield _text(across(value / per_second), _HEIGHT - _BOTTOM, _number(value), "middle", "1.5em")
    yield (
        f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{_HEIGHT - _BOTTOM}" '
        f'y2="{_HEIGHT - _BOTTOM}"/>'
    )


def _y_ticks(up: Callable[[float], float], high: float) -> Iterable[str]:
    for value in _ticks(0, high, 4):
        y = up(value)
        yield f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _text(_LEFT - 6, y, _number(value), "end", "0.35em")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"


def _text(x: float, y: float, text: str, anchor: str, down: str, *, style: str = "") -> str:
    """Return a label; `down` is the distance of its base line from `y`, in sizes of the font."""
    named = f' class="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" dy="{down}" text-anchor="{anchor}"{named}>{escape(text)}</text>'


def _svg(title: str, pieces: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"{''.join(pieces)}</svg>"
    )


def latency_page(measured: Mapping[str, Distribution], *, title: str, reports: Sequence[Report] = ()) -> str:
    """Return the page as HTML; `measured` maps the names of measurements to their latencies."""
    if len(measured) == 1:
        ((_, only),) = measured.items()
        parts = [("overview", "Overview", _overview(only))]
        parts += [("distribution", "Distribution", charts) for charts in (_charts(only),) if charts]
        subtitle = f"Latency of {only.counted}"
    else:
        parts = [
            (f"measurement-{number}", name, _overview(one) + _charts(one))
            for number, (name, one) in enumerate(measured.items())
        ]
        subtitle = f"Latencies of {counted(len(measured), 'measurement')}"
    shown = [(report.name, report.title, report_html(report)) for report in reports]
    ordered = [*parts, *shown] if len(measured) == 1 else [*shown, *parts]
    return document(title, f"{subtitle} \u00b7 openqaic {__version__}", ordered)


def _overview(distribution: Distribution) -> str:
    if distribution.count == 1:
        return verdict_html([f"The {distribution.what} took {duration(1e6 * distribution.maximum)}."])
    middle, high = distribution.percentiles["P50"], distribution.percentiles["P99"]
    verdict = [
        f"Half of the {distribution.what}s take at most {duration(1e6 * middle)}, "
        f"99 of 100 at most {duration(1e6 * high)}."
    ]
    if middle > 0 and distribution.maximum > 10 * middle:
        verdict.append(
            f"The slowest took {duration(1e6 * distribution.maximum)}, "
            f"{distribution.maximum / middle:.0f} times the median."
        )
    unit, per_second = distribution.unit
    rows = [(name, seconds * per_second, unit) for name, seconds in distribution.rows()]
    columns = (Column("metric"), Column("value", None, "float"), Column("unit"))
    facts = Table("figures", "Figures", columns, [("count", distribution.count, None), *rows])
    return verdict_html(verdict) + stat_cards_html(facts)


def _charts(distribution: Distribution) -> str:
    """Return the charts; empty for one latency, which has no distribution."""
    if distribution.count == 1:
        return ""
    percentiles = _figure(
        percentiles_svg(distribution), f"Latency in {unit_of(distribution.maximum)[0]} by percentile."
    )
    if distribution.seconds is None:
        return f'<div class="charts">{percentiles}</div>'
    last = float(histogram(distribution.seconds, _BARS).edges[-1])
    bars = _figure(
        histogram_svg(distribution), f"Number of {distribution.what}s by latency in {unit_of(last)[0]}."
    )
    order = f"Latency in {unit_of(distribution.top)[0]}, in measured order. {curve_note(distribution)}"
    charts = bars + percentiles + _figure(curve_svg(distribution), order)
    return f'<div class="charts">{charts}</div>'


def _figure(chart: str, caption: str) -> str:
    return f"<figure>{chart}<figcaption>{escape(caption)}</figcaption></figure>"
