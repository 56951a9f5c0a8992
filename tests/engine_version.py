"""What the installed engine can do, where its releases differ."""

from functools import cache

from qaic import _core


@cache
def minor() -> int:
    """Return n of version 1.n. Loads the engine on first use."""
    _, version = _core.engine_info()
    return int(version.split(".")[1])


def profiles_runs() -> bool:
    """Whether it can profile single runs, which is where the operations of a stats buffer come from."""
    return minor() >= 25


def is_newest() -> bool:
    """Whether it is as new as the one that the lists of ONNX's tests are of."""
    return minor() >= 26


def refuses_to_divide_by_zero() -> bool:
    """Whether a division of integers by zero is an error; before, it ended the process."""
    return minor() > 22
