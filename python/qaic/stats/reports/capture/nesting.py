"""Operations inside operations: bodies of loops and branches run within the node that has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


class OpenOps:
    """The executions of one thread, given in the order of their starts, piece by piece."""

    def __init__(self) -> None:
        self._ocs: NDArray[np.int64] = np.empty(0, np.int64)
        self._start: NDArray[np.float64] = np.empty(0)
        self._dur: NDArray[np.float64] = np.empty(0)
        self._nested: NDArray[np.bool_] = np.empty(0, np.bool_)

    def inside(
        self,
        ocs: NDArray[np.int64],
        start: NDArray[np.float64],
        dur: NDArray[np.float64],
        nested: NDArray[np.bool_],
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """Yield operations that had others inside, each with the time of one that ran directly inside.

        Parameters
        ----------
        ocs, start, dur, nested
            Of the next executions, transfers left out: they run at the same time as the operations.
        """
        old = len(self._nested)
        is_nested = bool(nested.any())
        if is_nested:
            ocs = np.concatenate([self._ocs, ocs])
            start = np.concatenate([self._start, start])
            dur = np.concatenate([self._dur, dur])
            nested = np.concatenate([self._nested, nested])
            yield from _held(ocs, start, dur, nested, old)
        if len(start):
            kept = (start + dur) > start[-1]
            columns = (ocs[kept], start[kept], dur[kept], nested[kept])
            if not is_nested:
                still = (self._start + self._dur) > start[-1]
                before = (self._ocs[still], self._start[still], self._dur[still], self._nested[still])
                ocs, start, dur, nested = (np.concatenate(pair) for pair in zip(before, columns, strict=True))
                columns = (ocs, start, dur, nested)
            self._ocs, self._start, self._dur, self._nested = columns


def _held(
    ocs: NDArray[np.int64],
    start: NDArray[np.float64],
    dur: NDArray[np.float64],
    nested: NDArray[np.bool_],
    old: int,
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Yield per level what holds the executions from ``old`` on, and how long those lasted."""
    end = start + dur
    places = np.arange(len(ocs))
    # All that began before and has not ended holds this one.
    depth = places - np.searchsorted(np.sort(end), start, side="right")
    depth = np.where(nested, np.maximum(depth, 1), 0)
    for level in range(1, int(depth.max()) + 1):
        outer = np.maximum.accumulate(np.where(depth == level - 1, places, -1))
        inner = places[(depth == level) & (places >= old)]
        holder = outer[inner]
        held = (holder >= 0) & (end[holder] > start[inner])
        if held.any():
            # Ticks are whole, so an end may be rounded past that of its holder.
            yield (
                ocs[holder[held]],
                np.minimum(dur[inner[held]], end[holder[held]] - start[inner[held]]),
            )
