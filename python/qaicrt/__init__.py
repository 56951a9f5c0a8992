"""Low-level interface to Cloud AI 100 devices, with the names of the vendor's binding.

Calls answer with a :class:`QStatus`, or with a tuple that begins with one; constructors raise. What failed,
and why, is in the log of the :class:`Context`. Everything here is that of :mod:`qaic.rt`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qaic import rt
from qaic.rt import __all__

if TYPE_CHECKING:
    from qaic.rt import *  # noqa: F403 (the names of `__all__`, which are loaded on first use)


def __getattr__(name: str) -> object:
    """Load a public name on first use."""
    if name not in __all__:
        message = f"module 'qaicrt' has no attribute {name!r}"
        raise AttributeError(message)
    value: object = getattr(rt, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Public names, loaded or not."""
    return sorted(__all__)
