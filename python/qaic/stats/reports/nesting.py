"""Operations inside operations: bodies of loops and branches run within the node that has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
        work: NDArray[Any],
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """Operations that had others inside, each with the time of one that ran directly inside.

        Parameters
        ----------
        ocs, start, dur, nested
            Of the next executions.
        work
            Those that can hold others: transfers go on beside the operations.
        """
        ocs = np.concatenate([self._ocs, ocs[work]])
        start = np.concatenate([self._start, start[work]])
        dur = np.concatenate([self._dur, dur[work]])
        old = len(self._nested)
        nested = np.concatenate([self._nested, nested[work]])
        if nested[old:].any():
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
                    lasted = np.minimum(dur[inner[held]], end[holder[held]] - start[inner[held]])
                    yield ocs[holder[held]], lasted
        if len(start):
            kept = (start + dur) > start[-1]
            self._ocs, self._start, self._dur, self._nested = ocs[kept], start[kept], dur[kept], nested[kept]
