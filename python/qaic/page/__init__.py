"""Pictures of what was measured: one HTML file that needs no network, and PNG where matplotlib is installed.

Pages are hand-written (the styles and scripts lie beside this file) and hold their data; they can be sent by
mail and opened years later. matplotlib is imported while a PNG is drawn and at no other time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from qaic.stats.reports import Capture, Report

__all__ = ["write"]


def write(capture: Capture, reports: Sequence[Report], path: str | os.PathLike[str]) -> Path:
    """Write one HTML page: the reports with their verdicts, and a timeline of every operation.

    Blocking: reads all buffers of the capture.

    Parameters
    ----------
    capture
        What was measured.
    reports
        Reports of it, in the order in which the page shows them; one called ``overview`` comes first.
    path
        File to write. It appears complete or not at all.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    from qaic.page.capture_page import capture_page
    from qaic.page.document import write_text

    return write_text(path, capture_page(capture, reports))
