"""The bottleneck of a run: computing, memory, data layout, or the time around the work."""

from collections.abc import Iterable
from dataclasses import asdict, astuple, dataclass
from typing import Final

import numpy as np

from qaic.stats.buffer import CoreTimes
from qaic.stats.reports.capture import Capture
from qaic.stats.reports.capture.op_info import (
    COMPUTE,
    CONTROL,
    CONVERT,
    DEQUANTIZE,
    ELEMENTWISE,
    MOVEMENT,
    NORMALIZE,
    OTHER,
)
from qaic.stats.reports.capture.trace_reader import TraceReader
from qaic.stats.reports.engines import utilization
from qaic.stats.reports.time.overhead import at_floor
from qaic.stats.reports.time.timeline import activity

_ARITHMETIC: Final = (COMPUTE, DEQUANTIZE, NORMALIZE, ELEMENTWISE)
#: smallest percentage of the time at which a part is the bottleneck
_STANDS_OUT: Final = 25.0


@dataclass(frozen=True)
class Bottleneck:
    """Percentages of the cores' time; engines work at the same time, so they do not add up to 100.

    ``compute`` is the busier of the matrix and vector engines, ``memory`` the transfers or the operations
    that move data, and ``layout`` the conversions of formats. ``overhead`` is the time in which no engine
    works; on the CPU device, it includes operations that take no longer than their measurement.
    """

    compute: float
    memory: float
    layout: float
    overhead: float
    other: float

    @property
    def name(self) -> str:
        """Name of the bottleneck; empty if no part dominates."""
        parts = self.parts
        first = max(parts, key=lambda name: parts[name])
        return first if parts[first] >= _STANDS_OUT else ""

    @property
    def parts(self) -> dict[str, float]:
        """The four candidates."""
        return {name: part for name, part in asdict(self).items() if name != "other"}


def bottleneck_of(capture: Capture, floor_us: float | None) -> Bottleneck | None:
    """Return the means over cores of the typical inference; None where operations were not measured."""
    found = [
        _of_core(reader, core, floor_us)
        for reader in capture.typical.each()
        for core in reader.cores
        if core.span_u and any(thread.ops for thread in reader.threads if thread.core == core.number)
    ]
    return Bottleneck(*np.mean([astuple(one) for one in found], axis=0).tolist()) if found else None


def _of_core(reader: TraceReader, core: CoreTimes, floor_us: float | None) -> Bottleneck:
    threads = [thread for thread in reader.threads if thread.core == core.number]
    span = core.span_u
    idle = 100 * activity(reader, core).idle_u / span
    by_category = _by_category(reader, core)

    engines = {thread.engine for thread in threads}

    small = {} if "HMX" in engines else _at_floor(reader, core, floor_us)

    def part(categories: Iterable[str], *names: str) -> float:
        """Return the share of the busiest engine, minus the share of small operations."""
        sums = (sum(by_category.get((name, one), 0.0) for one in categories) for name in names or engines)
        kept = max(sums) - sum(small.get(one, 0.0) for one in categories)
        return min(max(100 * kept / span, 0.0), 100.0)

    if "HMX" not in engines:
        return Bottleneck(
            part(_ARITHMETIC),
            part((MOVEMENT,)),
            part((CONVERT,)),
            min(idle + 100 * sum(small.values()) / span, 100.0),
            part((OTHER, CONTROL)),
        )
    matrix = [utilization(thread) or 0.0 for thread in threads if thread.engine == "HMX"]
    moved = 100 * active_transfers(reader, core) / span
    return Bottleneck(
        max(100 * max(matrix, default=0.0), part(_ARITHMETIC, "HVX")),
        max(moved, part((MOVEMENT,), "HVX"), part((MOVEMENT,), "DMAIssue")),
        part((CONVERT,), "HVX"),
        idle,
        part((OTHER, CONTROL)),
    )


def active_transfers(reader: TraceReader, core: CoreTimes) -> int:
    """Return the number of ticks with at least one active transfer of a core."""
    if not any(thread.transfer_count for thread in reader.threads if thread.core == core.number):
        return 0
    return activity(reader, core, transfers=True).busy_u


def _by_category(reader: TraceReader, core: CoreTimes) -> dict[tuple[str, str], float]:
    facts = reader.facts
    place = facts.of_core(core.number)
    engines, categories = facts.engines, facts.categories
    width = len(categories.values)
    codes = engines.codes[place] * width + categories.codes[place]
    sums = np.bincount(codes, reader.ops.dur_u[place], minlength=width * len(engines.values))
    return {
        (engines.values[code // width], categories.values[code % width]): float(sums[code])
        for code in np.flatnonzero(sums).tolist()
    }


def _at_floor(reader: TraceReader, core: CoreTimes, floor_us: float | None) -> dict[str, float]:
    """Ticks by category of operations whose measured time is that of measuring."""
    if floor_us is None:
        return {}
    place = reader.facts.of_core(core.number)
    categories = reader.facts.categories
    times = reader.ops.dur_u[place]
    low = at_floor(times * (1e6 / reader.hz), reader.ops.count[place], floor_us)
    sums = np.bincount(categories.codes[place][low], times[low], minlength=len(categories.values))
    return {categories.values[code]: float(sums[code]) for code in np.flatnonzero(sums).tolist()}
