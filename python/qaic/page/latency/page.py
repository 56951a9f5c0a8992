"""The page of latencies: figures, histogram, percentiles, curve over time, and reports if there are any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qaic import __version__
from qaic.page.document import document
from qaic.page.latency.charts import curve_note, curve_svg, histogram_svg, percentiles_svg
from qaic.page.report_tables import report_html, stat_cards_html, verdict_html
from qaic.stats.reports.render.table import Column, Report, Table
from qaic.support.text import escape_html as escape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qaic.page.latency.distribution import Distribution


def latency_page(distribution: Distribution, *, title: str, reports: Sequence[Report] = ()) -> str:
    """Return the page as HTML."""
    parts = [
        ("overview", "Overview", _overview(distribution)),
        ("distribution", "Distribution", _distribution(distribution)),
    ]
    if distribution.seconds is not None and distribution.count > 1:
        chart = _figure(curve_svg(distribution), curve_note(distribution))
        parts.append(("curve", "In the order of measuring", chart))
    parts += [(report.name, report.title, report_html(report)) for report in reports]
    return document(title, f"Latency of {distribution.counted} \u00b7 openqaic {__version__}", parts)


def _overview(distribution: Distribution) -> str:
    middle, high = distribution.percentiles["P50"], distribution.percentiles["P99"]
    verdict = [
        f"Half of the {distribution.what}s take at most {distribution.text(middle)}, "
        f"99 of 100 at most {distribution.text(high)}."
    ]
    if middle > 0 and distribution.maximum > 10 * middle:
        verdict.append(
            f"The slowest took {distribution.text(distribution.maximum)}, "
            f"{distribution.maximum / middle:.0f} times the median."
        )
    unit, per_second = distribution.unit
    rows = [(name, seconds * per_second, unit) for name, seconds in distribution.rows()]
    columns = (Column("metric"), Column("value", None, "float"), Column("unit"))
    facts = Table("figures", "Figures", columns, [("count", distribution.count, None), *rows])
    return verdict_html(verdict) + stat_cards_html(facts)


def _distribution(distribution: Distribution) -> str:
    curve = _figure(percentiles_svg(distribution), "Latency that a share of them stays below.")
    if distribution.seconds is None:
        return curve
    bars = _figure(histogram_svg(distribution), "How many took how long.")
    return bars + curve


def _figure(chart: str, caption: str) -> str:
    return f"<figure>{chart}<figcaption>{escape(caption)}</figcaption></figure>"
