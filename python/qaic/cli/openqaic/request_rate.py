"""Requests at a fixed rate, as clients send them: a slow inference delays those behind it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

T = TypeVar("T")


class RequestRate(Generic[T]):
    """Yields one value again and again, evenly spaced in time.

    A value that is taken too late does not move those after it, so the delay of a program that does not keep
    up grows from request to request.

    Parameters
    ----------
    value
        The value.
    rate
        Values per second.
    seconds
        Time until the last value.
    count
        Number of values, in place of a time.
    """

    def __init__(self, value: T, rate: float, *, seconds: float, count: int | None) -> None:
        self._value = value
        self._rate = rate
        self._seconds = seconds
        self._count = count
        #: seconds by which each value was taken too late
        self.late_s: list[float] = []

    def __iter__(self) -> Iterator[T]:
        began = time.perf_counter()
        for number in itertools.count() if self._count is None else range(self._count):
            elapsed_s, due_s = time.perf_counter() - began, number / self._rate
            if self._count is None and number and max(elapsed_s, due_s) >= self._seconds:
                return
            late_s = elapsed_s - due_s
            if late_s < 0:
                time.sleep(-late_s)
            self.late_s.append(max(late_s, 0.0))
            yield self._value

    def latencies_s(self, samples: NDArray[np.void]) -> NDArray[np.float64]:
        """Return the seconds from the moment that each request was due to its end.

        Parameters
        ----------
        samples
            Recorded inferences (`qaic.profile.Profile.samples`).
        """
        import numpy as np

        ordered = np.sort(samples, order="enqueued_ns")
        late_s = np.array(self.late_s[: len(ordered)])
        latencies_s: NDArray[np.float64] = (ordered["completed_ns"] - ordered["enqueued_ns"]) / 1e9 + late_s
        return latencies_s
