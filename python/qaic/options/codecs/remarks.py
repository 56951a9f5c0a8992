"""Remarks of codecs about values that they accept, such as a key of a file without a meaning."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_COLLECTED: ContextVar[list[str] | None] = ContextVar("collected_remarks", default=None)


@contextmanager
def collecting() -> Iterator[list[str]]:
    """Collect the remarks of codecs that work inside the block, each once, in their order."""
    collected: list[str] = []
    token = _COLLECTED.set(collected)
    try:
        yield collected
    finally:
        _COLLECTED.reset(token)


def remark(texts: Iterable[str], place: str = "") -> None:
    """Make remarks about the value that is being converted.

    Parameters
    ----------
    texts
        Sentences without the name of the option, which the collector knows.
    place
        Where in the value; goes in front of each.
    """
    collected = _COLLECTED.get()
    if collected is None:
        return
    for text in texts:
        placed = f"{place}: {text}" if place else text
        if placed not in collected:
            collected.append(placed)
