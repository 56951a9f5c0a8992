"""Folders whose tests open no device, which `make test-kmd` leaves out.

What they look at - options, graphs, containers, reports, pages - comes before a device or after it, so on a
card they would say again what they say without one. In them the variable that chooses devices names none,
and a test that opens one fails: it belongs into another folder.
"""

from pathlib import Path

FOLDERS = (
    "tests/cli/compile",
    "tests/cli/opstats",
    "tests/cli/qpc",
    "tests/compiler",
    "tests/configs",
    "tests/forecast",
    "tests/options",
    "tests/page",
    "tests/repository",
    "tests/stats",
    "tests/support",
)

#: what ``QAIC_DEVICE`` is there
NO_DEVICE = "none-here-see-tests/device_free.py"

_ROOT = Path(__file__).parents[1]


def holds(path: Path) -> bool:
    """Return True if a test file is in one of these folders."""
    return any(path.is_relative_to(_ROOT / folder) for folder in FOLDERS)
