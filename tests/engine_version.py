"""What the installed engine can do, where its releases differ."""

from functools import cache

from qaic import _core


@cache
def minor() -> int:
    """Return n of version 1.n. Loads the engine on first use."""
    _, version = _core.engine_info()
    return int(version.split(".")[1])


def profiles_runs() -> bool:
    """Return whether it can profile single runs, which operations of a stats buffer come from."""
    return minor() >= 25


def is_newest() -> bool:
    """Return whether it is as new as the engine of ``tests/conformance/exceptions.json``."""
    return minor() >= 26
