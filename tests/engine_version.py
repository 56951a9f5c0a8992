"""Features of the installed engine that differ between its releases."""

from functools import cache

from qaic import _core


@cache
def minor() -> int:
    """Return n of version 1.n. Loads the engine at the first use."""
    _, version = _core.engine_info()
    return int(version.split(".")[1])


def profiles_runs() -> bool:
    """Return True if it can profile single runs, the source of operations in a stats buffer."""
    return minor() >= 25


def is_newest() -> bool:
    """Return True if it is as new as the engine of ``tests/conformance/exceptions.json``."""
    return minor() >= 26
