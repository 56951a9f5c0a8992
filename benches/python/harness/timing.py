"""Times of calls in this process: in turns, in batches, without the garbage collector."""

from __future__ import annotations

import gc
import time
from itertools import repeat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Pause before each batch: helper threads of the previous subject can spin for tens of milliseconds after its
#: last call, and would take a core from the next subject.
REST_S = 0.2
#: Calls before each batch, without timing, to fill caches.
_SETTLE_S = 0.02


def in_turns(
    subjects: Mapping[str, Callable[[], object]],
    batches: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Time the subjects batch by batch (A B A B ...); return seconds per call, by subject and batch.

    With `time.process_time` as `clock`, other processes have little effect.
    """
    counts = {}
    for name, call in subjects.items():
        call()
        counts[name] = max(1, round(seconds / max(_seconds(call, 3) / 3, 1e-7)))
    results: dict[str, list[float]] = {name: [] for name in subjects}
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for _ in range(batches):
            for name, call in subjects.items():
                time.sleep(REST_S)
                until = time.perf_counter() + _SETTLE_S
                while time.perf_counter() < until:
                    call()
                results[name].append(_seconds(call, counts[name], clock) / counts[name])
    finally:
        if enabled:
            gc.enable()
    return results


def _seconds(call: Callable[[], object], count: int, clock: Callable[[], float] = time.perf_counter) -> float:
    started = clock()
    for _ in repeat(None, count):
        call()
    return clock() - started
