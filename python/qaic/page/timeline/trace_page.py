"""The page of a trace: the timeline, and the time by row and by kind."""

import numpy as np
from numpy.typing import NDArray

from qaic.page.document import document
from qaic.page.timeline import Timeline, Track, pack, timeline_html
from qaic.report import Cell, Report, Table, columns_of
from qaic.report.html import report_html
from qaic.support.text import counted


def _counts(track: Track) -> NDArray[np.int64]:
    """Return the number of events in each box."""
    return np.ones(len(track.start), np.int64) if track.members is None else track.members.astype(np.int64)


def _track_rows(timeline: Timeline) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []
    for track in timeline.tracks:
        if not len(track.start):
            continue
        scale = track.ns_per_unit / 1e3
        origin = track.origin_ns / 1e3
        end = (track.start + track.duration).max()
        rows.append(
            (
                f"{track.group} {track.name}",
                int(_counts(track).sum()),
                float(track.duration.sum()) * scale,
                origin + float(track.start[0]) * scale,
                origin + float(end) * scale,
            )
        )
    return rows


def _kind_rows(timeline: Timeline) -> list[tuple[Cell, ...]]:
    kinds = {kind: place for place, kind in enumerate(dict.fromkeys(timeline.labels.kinds))}
    codes = np.array([kinds[kind] for kind in timeline.labels.kinds], np.int64)
    times, counts = np.zeros(len(kinds)), np.zeros(len(kinds))
    for track in timeline.working:
        places = codes[track.label]
        times += np.bincount(places, track.duration * track.ns_per_unit / 1e3, minlength=len(kinds))
        counts += np.bincount(places, _counts(track), minlength=len(kinds))
    total = float(times.sum()) or 1.0
    return [
        (name, int(counts[place]), float(times[place]), 100 * float(times[place]) / total)
        for name, place in sorted(kinds.items(), key=lambda item: -times[item[1]])
        if counts[place]
    ]


_ROWS = columns_of("row | events:int | busy:float us | from:float us | to:float us")
_KINDS = columns_of("kind | events:int | time:float us | share:percent")


def trace_figures(timeline: Timeline) -> Report:
    """Return the time of the kinds of operations, most first, and of the rows."""
    note = "Sums over all rows, which run in parallel; nested events count in both."
    return Report(
        "figures",
        "Figures",
        [],
        [
            Table("kinds", "Kinds", _KINDS, _kind_rows(timeline), note),
            Table("rows", "Rows", _ROWS, _track_rows(timeline)),
        ],
    )


def trace_page(timeline: Timeline, *, title: str) -> str:
    """Return the page as HTML."""
    figures = trace_figures(timeline)
    parts = [
        ("timeline", "Timeline", timeline_html(timeline)),
        (figures.name, figures.title, report_html(figures)),
    ]
    subtitle = f"{counted(timeline.operations, 'event')} in {counted(len(timeline.tracks), 'row')}"
    return document(title, subtitle, parts, data=pack(timeline))
