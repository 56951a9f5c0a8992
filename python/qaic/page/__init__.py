"""Pictures of measurements: one HTML file that needs no network, and PNG if matplotlib is installed.

A page contains its data, styles and scripts, so it can be sent by mail and opened years later. matplotlib is
imported only when a PNG is drawn.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from numpy.typing import ArrayLike

from qaic.page.document import write_bytes
from qaic.page.drawing import draw_latencies, draw_timeline, suffix_of
from qaic.page.graph import DrawnGraph
from qaic.page.latency import Distribution
from qaic.page.timeline.capture_page import capture_page
from qaic.page.timeline.trace_tracks import timeline_of_trace
from qaic.stats.reports import Capture, Report

__all__ = ["write", "write_latency", "write_trace"]


def write(
    capture: Capture,
    reports: Sequence[Report],
    path: str | os.PathLike[str],
    *,
    graphs: Sequence[DrawnGraph] = (),
) -> Path:
    """Write one HTML page: the reports with their verdicts, a timeline of every operation, and graphs.

    Blocking: reads all buffers of the capture.

    Parameters
    ----------
    capture
        The measurements.
    reports
        Reports of the capture, in the order of the page; the report ``overview`` comes first.
    path
        File to write; it is written atomically.
    graphs
        Graphs of the program; the timeline and the tables are linked with them.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    OSError
        The file cannot be written.
    """
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
        File to write, atomically: ``.html``, or ``.png`` if matplotlib is installed.
    title
        Title of the picture.
    what
        Name of what was measured, such as ``run`` or ``inference``.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    InputError
        There are no latencies, or one is negative or not a number.
    OptionError
        The file name has another suffix.
    StateError
        matplotlib is not installed.
    OSError
        The file cannot be written.
    """
    suffix_of(path)
    return draw_latencies({"": Distribution.of(latencies, what=what)}, path, title=title)


def write_trace(
    trace: str | os.PathLike[str], path: str | os.PathLike[str], *, title: str | None = None
) -> Path:
    """Write a picture of a Chrome trace, for example of ``qaic-opstats`` or the runtime. Blocking.

    Parameters
    ----------
    trace
        The trace.
    path
        File to write, atomically: ``.html``, or ``.png`` if matplotlib is installed.
    title
        Title of the picture; by default the name of the trace.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    InputError
        The file is not a trace.
    OptionError
        The file name has another suffix.
    StateError
        matplotlib is not installed.
    OSError
        A file cannot be read or written.
    """
    suffix_of(path)
    source = Path(trace)
    return draw_timeline(timeline_of_trace(source), path, title=source.name if title is None else title)
