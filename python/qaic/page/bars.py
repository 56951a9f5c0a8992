"""Bars and advice: the first part of a page. They need no script."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from qaic.page.kind_colors import OTHER, PALETTE, color_of
from qaic.report import Report, Table
from qaic.report.html import common_path, prose_html, report_html, verdict_html
from qaic.stats.reports.capture import Capture
from qaic.stats.reports.capture.groups import Sums
from qaic.stats.reports.capture.op_info import Coded
from qaic.support.text import duration, percentage, shortened
from qaic.support.text import escape_html as escape

#: largest number of bars in a chart
MOST_BARS: Final = 10
#: characters of a name next to its bar
_LONGEST_NAME: Final = 38


def first_screen_html(report: Report, capture: Capture) -> str:
    """Return the overview's body: verdict, advice, the most expensive nodes, precisions, then figures."""
    tables = {table.name: table for table in report.tables}
    # Precisions that the compiler recorded are more exact than the types of operands.
    split = tables.get("precisions") or tables.get("types")
    shown = {"advice"} if split is None else {"advice", split.name}
    rest = replace(report, verdict=[], tables=[table for name, table in tables.items() if name not in shown])
    left = advice_html(tables["advice"]) if "advice" in tables else ""
    left += shares_html(split) if split is not None else ""
    halves = f'<div class="half">{left}</div><div class="half">{costliest_nodes(capture)}</div>'
    return verdict_html(report.verdict) + f'<div class="halves">{halves}</div>' + report_html(rest)


def diff_html(report: Report) -> str:
    """Return the body of a comparison: verdict, bars of both programs, then tables."""
    bars = "".join(changed_nodes(table) for table in report.tables if table.name == "nodes")
    return verdict_html(report.verdict) + bars + report_html(replace(report, verdict=[]))


def costliest_nodes(capture: Capture) -> str:
    """Return the nodes that take the most time, as bars in the color of the kind that takes most of each."""
    sums = Sums(capture.typical, lambda facts: Coded.joined(facts.nodes, facts.node_kinds))
    total = sums.total()
    nodes: dict[str, dict[str, float]] = {}
    for (node, kind), time in sums.of().items():
        nodes.setdefault(node, {})[kind] = time
    ordered = sorted(nodes.items(), key=lambda item: (-sum(item[1].values()), item[0]))[:MOST_BARS]
    if not ordered or not total:
        return ""
    longest = sum(ordered[0][1].values())
    path = common_path([node for node, _ in ordered])
    rows = []
    for node, kinds in ordered:
        time, kind = sum(kinds.values()), max(kinds, key=lambda kind: kinds[kind])
        bar = _bar([(0, time / longest, _color(kind))])
        part = percentage(100 * time / total)
        said = f"<strong>{duration(time)}</strong> {part} % <small>{escape(kind)}</small>"
        rows.append(_row(node, bar, said, cut=len(path)))
    return _chart("The most expensive nodes", rows, path)


def changed_nodes(table: Table) -> str:
    """Return the nodes whose time changed most, the baseline above the new one."""
    rows = []
    changed = table.rows[:MOST_BARS]
    times = [[_number(row[place]) for place in (1, 2)] for row in changed]
    longest = max((time for pair in times for time in pair), default=0.0)
    if not longest:
        return ""
    for row, (before, after) in zip(changed, times, strict=True):
        bar = _bar([(0, before / longest, "old"), (1, after / longest, "less" if after < before else "more")])
        change = _number(row[4])
        shown = f" ({change:+,.0f} %)" if row[4] is not None else ""
        rows.append(
            _row(str(row[0]), bar, f"{duration(before)} \u2192 <strong>{duration(after)}</strong>{shown}")
        )
    return _chart("From the baseline (above) to the new program (below)", rows)


def advice_html(table: Table) -> str:
    """Return problems with their reasons and remedies as a list."""
    if not table.rows:
        return f'<h3>{escape(table.title)}</h3><p class="note">No rule found a problem.</p>'
    items = "".join(
        f"<li><strong>{prose_html(hazard)}</strong><p>{escape(reason)}</p>"
        f'<p class="remedy">{prose_html(remedy)}</p></li>'
        for hazard, reason, remedy in table.rows
    )
    return f'<h3>{escape(table.title)}</h3><ol class="advice">{items}</ol>'


def shares_html(table: Table) -> str:
    """Return a table of names, counts, times and shares as bars."""
    rows = []
    for name, _, time, share in table.rows[:MOST_BARS]:
        bar = _bar([(0, _number(share) / 100, "same")])
        rows.append(
            _row(str(name), bar, f"<strong>{percentage(_number(share))} %</strong> {duration(_number(time))}")
        )
    return _chart(table.title, rows) if rows else ""


def _chart(title: str, rows: Iterable[str], path: str = "") -> str:
    more = f" <small>{escape(path)}</small>" if path else ""
    return f'<h3>{escape(title)}{more}</h3><ul class="bars">{"".join(rows)}</ul>'


def _row(name: str, bar: str, said: str, cut: int = 0) -> str:
    short = escape(shortened(name[cut:], _LONGEST_NAME))
    return f'<li><span class="name" title="{escape(name)}">{short}</span>{bar}<span>{said}</span></li>'


def _bar(parts: list[tuple[int, float, str]]) -> str:
    """Draw bars below each other: line, length from 0 to 1, and a color or a class."""
    drawn = "".join(
        f'<rect y="{line * 10}" height="9" width="{max(0.3, 100 * length):.2f}" '
        f'{"fill" if color.startswith("#") else "class"}="{color}"/>'
        for line, length, color in parts
    )
    height = 10 * len(parts)
    return f'<svg viewBox="0 0 100 {height}" preserveAspectRatio="none" aria-hidden="true">{drawn}</svg>'


def _color(kind: str) -> str:
    place = color_of(kind)
    return PALETTE[place] if place >= 0 else OTHER


def _number(cell: object) -> float:
    return float(cell) if isinstance(cell, int | float) else 0.0
