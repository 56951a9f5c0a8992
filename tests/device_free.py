"""Folders whose tests open no device, which `make test-kmd` skips.

These tests check options, graphs, containers, reports and pages, which do not depend on a device, so their
results on a card would be the same. In these folders, the variable that selects devices names none, so a test
that opens a device fails: it belongs to another folder.
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

#: Value of ``QAIC_DEVICE`` in these folders.
NO_DEVICE = "none-here-see-tests/device_free.py"

_ROOT = Path(__file__).parents[1]


def holds(path: Path) -> bool:
    """Return True if a test file is in one of these folders."""
    return any(path.is_relative_to(_ROOT / folder) for folder in FOLDERS)
