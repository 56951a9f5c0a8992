"""Which picture a file name asks for: ``.html``, a page of ours; ``.png``, by matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qaic.errors import OptionError
from qaic.page.document import write_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from qaic.page.latency.distribution import Distribution
    from qaic.page.timeline import Timeline
    from qaic.stats.reports.render.table import Report


def suffix_of(path: str | os.PathLike[str]) -> str:
    """Return ``.html`` or ``.png``.

    Raises
    ------
    OptionError
        The name ends in neither.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in {".html", ".png"}:
        raise OptionError(
            f"{Path(path)}: a picture ends in .html or .png, not in {suffix or 'nothing'!r}",
            code="plot.suffix",
        )
    return suffix


def draw_latencies(
    distribution: Distribution,
    path: str | os.PathLike[str],
    *,
    title: str,
    reports: Sequence[Report] = (),
) -> Path:
    """Write a picture of latencies; reports are shown on pages only. Blocking."""
    if suffix_of(path) == ".png":
        from qaic.page.png import latency_png

        return write_bytes(path, latency_png(distribution, title=title))
    from qaic.page.latency.page import latency_page

    return write_bytes(path, latency_page(distribution, title=title, reports=reports).encode())


def draw_timeline(timeline: Timeline, path: str | os.PathLike[str], *, title: str) -> Path:
    """Write a picture of a timeline. Blocking."""
    if suffix_of(path) == ".png":
        from qaic.page.png import timeline_png

        return write_bytes(path, timeline_png(timeline, title=title))
    from qaic.page.timeline.trace_page import trace_page

    return write_bytes(path, trace_page(timeline, title=title).encode())
