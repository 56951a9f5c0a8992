"""Files of pictures: ``.html`` or ``.png`` by name, and the PNGs of matplotlib."""

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qaic.errors import OptionError, StateError
from qaic.page.document import write_bytes
from qaic.page.latency import PERCENTILES, Distribution, curve, histogram
from qaic.page.latency_page import latency_page
from qaic.page.timeline import Merger, Timeline, Track
from qaic.page.timeline.trace_page import trace_page
from qaic.report import Report

_BARS = 48
_COLUMNS = 600
_RULES = ("P50", "P90", "P99")
# More boxes in a row are not visible in a picture.
_MOST_BOXES = 40_000
_MOST_KINDS = 12


def latency_png(measured: Mapping[str, Distribution], *, title: str) -> bytes:
    """Return a picture: for each measurement histogram and curve, or percentiles if only those are known.

    `measured` maps the names of measurements to their latencies. Raises StateError if matplotlib is not
    installed.
    """
    heights = [6.4 if one.seconds is not None else 3.6 for one in measured.values()]
    figure = _figure((9.0, sum(heights)))
    parts = figure.subfigures(len(measured), height_ratios=heights, squeeze=False)[:, 0]
    for part, (name, distribution) in zip(parts, measured.items(), strict=True):
        _draw_latencies(part, distribution)
        part.suptitle(f"{_plain(name or title)}: latency of {distribution.counted}")
    return _png(figure)


def _draw_latencies(figure: Any, distribution: Distribution) -> None:
    unit, per_second = distribution.unit
    if distribution.seconds is None:
        axes = figure.subplots()
        names = ["min", *PERCENTILES, "max"]
        values = [distribution.minimum, *distribution.percentiles.values(), distribution.maximum]
        axes.plot(range(len(names)), [value * per_second for value in values], marker="o")
        axes.set_xticks(range(len(names)), names)
        axes.set_ylabel(unit)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    else:
        bars_axes, curve_axes = figure.subplots(2, 1)
        _draw_histogram(bars_axes, distribution)
        _draw_curve(curve_axes, distribution)


def _draw_histogram(axes: Any, distribution: Distribution) -> None:
    assert distribution.seconds is not None  # noqa: S101 (callers look)
    bars = histogram(distribution.seconds, _BARS)
    unit, per_second = distribution.unit
    edges = bars.edges * per_second
    axes.bar(edges[:-1], bars.counts, width=np.diff(edges), align="edge", edgecolor="white", linewidth=0.5)
    for place, name in enumerate(_RULES):
        value = distribution.percentiles[name] * per_second
        if value <= edges[-1]:
            axes.axvline(value, linestyle="--", color="#17713a", linewidth=1)
            # Above the frame, where no bar is behind it.
            axes.annotate(
                name, (value, 1), xycoords=("data", "axes fraction"), xytext=(0, 2 + 9 * place),
                textcoords="offset points", ha="center", fontsize=8, color="#17713a",
            )  # fmt: skip
    beyond = f"; slower: {bars.above}" if bars.above else ""
    axes.set_xlabel(f"latency, {unit}{beyond}")
    axes.set_ylabel("count")


def _draw_curve(axes: Any, distribution: Distribution) -> None:
    assert distribution.seconds is not None  # noqa: S101 (callers look)
    unit, per_second = distribution.unit
    columns = curve(distribution.seconds, _COLUMNS)
    if len(columns.first) == distribution.count:
        axes.plot(columns.first, columns.middle * per_second, ".", markersize=4)
    else:
        axes.fill_between(
            columns.first, columns.minimum * per_second, columns.maximum * per_second, alpha=0.3
        )
        axes.plot(columns.first, columns.middle * per_second, linewidth=1)
    above = int(np.count_nonzero(distribution.seconds > distribution.top))
    beyond = f"; slower, beyond the axis: {above}" if above else ""
    axes.set_xlabel(f"number of the {distribution.what}{beyond}")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel(f"latency, {unit}")
    axes.set_ylim(0, distribution.top * per_second * 1.05 or 1)
    axes.grid(alpha=0.3)


def timeline_png(timeline: Timeline, *, title: str) -> bytes:
    """Return a picture of a timeline: a row per thread, colors by kind.

    Raises StateError if matplotlib is not installed.
    """
    rows = [track for track in timeline.tracks if len(track.start)]
    figure = _figure((12.0, 1.6 + 0.32 * max(len(rows), 2)))
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch

    axes = figure.subplots()
    colors = _colors(timeline)
    scale = 1e-6 if _end_ns(rows) >= 1e6 else 1e-3
    for place, track in enumerate(rows):
        extent = int(track.start[-1] - track.start[0] + track.duration[-1]) + 1
        few = Merger(len(track.start), extent, most=_MOST_BOXES).apply(track)
        left = (few.origin_ns + few.start * few.ns_per_unit) * scale
        right = left + few.duration * few.ns_per_unit * scale
        low, high = place - 0.4, place + 0.4
        corners = np.stack(
            [
                np.stack([left, right, right, left], axis=1),
                np.broadcast_to([low, low, high, high], (len(left), 4)),
            ],
            axis=2,
        )
        shades = [colors.get(timeline.labels.kinds[label], "#b9c0ca") for label in few.label.tolist()]
        axes.add_collection(PolyCollection(list(corners), facecolors=shades, edgecolors="none"))
    axes.set_yticks(range(len(rows)), [_plain(f"{track.group} {track.name}") for track in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.autoscale(axis="x")
    if len(timeline.samples) > 1:
        sample = timeline.samples[timeline.shown]
        margin = (sample.end_ns - sample.start_ns) * 0.02 + 1
        axes.set_xlim((sample.start_ns - margin) * scale, (sample.end_ns + margin) * scale)
        title = f"{title}, inference {sample.name}"
    axes.set_xlabel("ms" if scale == 1e-6 else "us")
    axes.legend(
        handles=[Patch(color=color, label=_plain(kind)) for kind, color in colors.items()],
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        fontsize=8,
        frameon=False,
    )
    figure.suptitle(_plain(title))
    return _png(figure)


def _end_ns(rows: list[Track]) -> float:
    return max((track.origin_ns + float(track.start[-1]) * track.ns_per_unit for track in rows), default=0.0)


def _colors(timeline: Timeline) -> dict[str, Any]:
    """Return a color for each of the kinds that take the most time."""
    from matplotlib import colormaps

    kinds = {kind: place for place, kind in enumerate(dict.fromkeys(timeline.labels.kinds))}
    codes = np.array([kinds[kind] for kind in timeline.labels.kinds], np.int64)
    times = np.zeros(len(kinds))
    for track in timeline.working:
        times += np.bincount(codes[track.label], track.duration * track.ns_per_unit, minlength=len(kinds))
    names = list(kinds)
    ranked = [names[place] for place in np.argsort(-times)[:_MOST_KINDS] if times[place] > 0]
    palette = colormaps["tab20"](range(_MOST_KINDS))
    return dict(zip(ranked, palette, strict=False))


def _figure(size: tuple[float, float]) -> Any:
    try:
        # The class, not pyplot: no global state, no window, and half the time to import.
        from matplotlib.figure import Figure
    except ImportError as error:
        raise StateError(
            "a .png needs matplotlib, which is not installed: pip install 'openqaic[plot]', or write .html",
            code="plot.matplotlib",
        ) from error
    return Figure(figsize=size, layout="constrained")


def _plain(text: str) -> str:
    """Replace characters that matplotlib reads as a formula or that its fonts lack."""
    return text.replace("$", r"\$").encode("ascii", "replace").decode()


def _png(figure: Any) -> bytes:
    memory = io.BytesIO()
    figure.savefig(memory, format="png", dpi=120)
    return memory.getvalue()


def suffix_of(path: str | os.PathLike[str]) -> str:
    """Return ``.html`` or ``.png``. Raises OptionError if the name ends in neither."""
    suffix = Path(path).suffix.lower()
    if suffix not in {".html", ".png"}:
        raise OptionError(
            f"{Path(path)}: a picture ends in .html or .png, not in {suffix or 'nothing'!r}",
            code="plot.suffix",
        )
    return suffix


def draw_latencies(
    measured: Mapping[str, Distribution],
    path: str | os.PathLike[str],
    *,
    title: str,
    reports: Sequence[Report] = (),
) -> Path:
    """Write a picture of the latencies of named measurements; reports are shown on pages only. Blocking."""
    if suffix_of(path) == ".png":
        return write_bytes(path, latency_png(measured, title=title))

    return write_bytes(path, latency_page(measured, title=title, reports=reports).encode())


def draw_timeline(timeline: Timeline, path: str | os.PathLike[str], *, title: str) -> Path:
    """Write a picture of a timeline. Blocking."""
    if suffix_of(path) == ".png":
        return write_bytes(path, timeline_png(timeline, title=title))

    return write_bytes(path, trace_page(timeline, title=title).encode())
