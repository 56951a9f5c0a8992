"""Pictures of measurements: one HTML file that needs no network, and PNG if matplotlib is installed.

Pages are hand-written (the styles and scripts are next to this file) and hold their data; they can be sent by
mail and opened years later. matplotlib is imported while a PNG is drawn and at no other time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from qaic.support.lazy_module import LazyModule

if TYPE_CHECKING:
    from qaic.page import graph as drawn
    from qaic.stats import reports as made
else:
    drawn = LazyModule("qaic.page.graph")
    made = LazyModule("qaic.stats.reports")

__all__ = ["write", "write_latency", "write_trace"]


def write(
    capture: made.Capture,
    reports: Sequence[made.Report],
    path: str | os.PathLike[str],
    *,
    graphs: Sequence[drawn.DrawnGraph] = (),
) -> Path:
    """Write one HTML page: the reports with their verdicts, a timeline of every operation, and graphs.

    Blocking: reads all buffers of the capture.

    Parameters
    ----------
    capture
        What was measured.
    reports
        Reports of it, in the order in which the page shows them; one called ``overview`` comes first.
    path
        File to write. It appears complete or not at all.
    graphs
        Graphs of the program, which the timeline and the tables lead to and back.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    from qaic.page.document import write_bytes
    from qaic.page.timeline.capture_page import capture_page

    return write_bytes(path, capture_page(capture, reports, graphs).encode())


def write_latency(
    latencies: ArrayLike, path: str | os.PathLike[str], *, title: str = "Latency", what: str = "run"
) -> Path:
    """Write a picture of latencies: histogram, percentiles, and the curve over time. Blocking.

    Parameters
    ----------
    latencies
        Seconds, in the order in which they were measured.
    path
        File to write: ``.html``, or ``.png`` where matplotlib is installed. It appears complete or not at
        all.
    title
        Title of the picture.
    what
        What each latency is of, as ``run`` or ``inference``.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    InputError
        There are no latencies, or one is no number or negative.
    OptionError
        The name of the file ends in something else.
    StateError
        matplotlib is not installed.
    OSError
        The file cannot be written.
    """
    from qaic.page.drawing import draw_latencies, suffix_of
    from qaic.page.latency import Distribution

    suffix_of(path)
    return draw_latencies(Distribution.of(latencies, what=what), path, title=title)


def write_trace(
    trace: str | os.PathLike[str], path: str | os.PathLike[str], *, title: str | None = None
) -> Path:
    """Write a picture of a Chrome trace, as ``qaic-opstats`` and the runtime write it. Blocking.

    Parameters
    ----------
    trace
        The trace.
    path
        File to write: ``.html``, or ``.png`` where matplotlib is installed. It appears complete or not at
        all.
    title
        Title of the picture; the name of the trace without one.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    InputError
        The trace is none.
    OptionError
        The name of the file ends in something else.
    StateError
        matplotlib is not installed.
    OSError
        A file cannot be read or written.
    """
    from qaic.page.drawing import draw_timeline, suffix_of
    from qaic.page.timeline.trace_tracks import timeline_of_trace

    suffix_of(path)
    source = Path(trace)
    return draw_timeline(timeline_of_trace(source), path, title=source.name if title is None else title)
