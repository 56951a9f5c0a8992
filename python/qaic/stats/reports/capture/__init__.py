"""Measurements of one program: inferences, each with one stats buffer per device."""

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qaic.errors import StatsError, StatsFormatError
from qaic.stats.buffer import StatsBuffer
from qaic.stats.reports.capture.op_info import OpInfo, op_info_of
from qaic.stats.reports.capture.trace_reader import TraceReader
from qaic.support.text import counted

#: largest number of an operation without a descriptor, unless a buffer has more operations. Each number takes
#: memory, and a damaged record may have any of four billion
_UNNAMED_OPS: Final = 1 << 20


@dataclass(frozen=True)
class Sample:
    """One inference."""

    program: int
    activation: int
    inference: int
    readers: tuple[TraceReader, ...]

    @property
    def span_us(self) -> float:
        """Microseconds from the first start to the last end, over all devices.

        Each device has its own clock. If a device does not report the time of day, the result is the longest
        span of a device.
        """
        if not self.readers:
            return 0.0
        if len(self.readers) == 1 or not all(int(reader.run.epoch_utc_ns) for reader in self.readers):
            return max(reader.span_us for reader in self.readers)
        # Times are integers, because nanoseconds of the day have more digits than a double.
        starts, ends = [], []
        for reader in self.readers:
            epoch, hz = int(reader.run.epoch_utc_ns), reader.hz
            starts.append(epoch + reader.start_u * 1_000_000_000 // hz)
            ends.append(epoch + reader.end_u * 1_000_000_000 // hz)
        return (max(ends) - min(starts)) / 1000

    @property
    def op_times_us(self) -> NDArray[np.float64]:
        """Own time of each operation, one device after the other."""
        return np.concatenate(
            [np.zeros(0), *(reader.ops.dur_u * (1e6 / reader.hz) for reader in self.readers)]
        )


class Capture:
    """Stats buffers of one program.

    Parameters
    ----------
    buffers
        Buffers from ``qaic.stats.open``, in any order: samples, and devices of samples.
    host
        Latencies of the host (``host_latency.HostLatencies``), if they were recorded.
    waits
        Waits for a processor (``disturbance.ProcessorWaits``), if they were measured.
    name
        Name of the capture in a comparison.

    Raises
    ------
    StatsError
        There is no buffer, or buffers belong to different programs.
    """

    def __init__(
        self, buffers: Iterable[StatsBuffer], *, host: Any = None, waits: Any = None, name: str = ""
    ) -> None:
        self.buffers = tuple(buffers)
        self.host = host
        self.waits = waits
        self.name = name
        #: engine of the host, with its version; "" if unknown
        self.engine = ""
        if not self.buffers and host is None:
            raise StatsError(
                "no stats buffer for the report",
                code="stats.nothing_captured",
                hints=("give at least one buffer",),
            )
        self._facts: dict[str | None, OpInfo] = {}
        self._json = _Texts()
        self._samples: tuple[Sample, ...] | None = None

    @property
    def samples(self) -> tuple[Sample, ...]:
        """Inferences by number, each with its devices in program order. Reads the buffers."""
        if self._samples is None:
            self._samples = self._read()
        return self._samples

    @property
    def typical(self) -> "Capture":
        """Capture of the typical inference only; this capture if it has at most one inference.

        All reports show the parts of the time of this inference, so that the parts add up to one total.
        """
        if len(self.samples) < 2:
            return self
        sample = self.samples[self.typical_place]
        alone = copy.copy(self)
        vars(alone).update(buffers=tuple(reader.buffer for reader in sample.readers), _samples=(sample,))
        return alone

    @property
    def typical_place(self) -> int:
        """Index in `samples` of the medoid: the inference whose operations are nearest to their medians.

        The distance is the sum over all operations, so one operation that the host interrupted excludes its
        inference, even if the total is ordinary. If no operations were measured, the total is compared.
        """
        totals = np.array([sample.span_us for sample in self.samples])
        far_from_median = np.abs(totals - np.median(totals))
        times = [sample.op_times_us for sample in self.samples]
        size = Counter(len(row) for row in times).most_common(1)[0][0]
        comparable = [place for place, row in enumerate(times) if len(row) == size]
        rows = np.stack([times[place] for place in comparable])
        distances = np.abs(rows - np.median(rows, axis=0)).sum(axis=1)
        order = np.lexsort((far_from_median[comparable], distances))
        return comparable[int(order[0])]

    def _read(self) -> tuple[Sample, ...]:
        groups: dict[tuple[int, int, int, int], list[TraceReader]] = {}
        seen: Counter[tuple[Any, ...]] = Counter()
        for buffer in self.buffers:
            buffer.check()
            buffer.advise_unneeded("OP", 0, len(buffer.ops))
        for buffer in self.buffers:
            run, reader = buffer.run, TraceReader(buffer, self._facts_of(buffer))
            key = (int(run.program), int(run.activation), int(run.inference))
            device = (*key, reader.slice, reader.facts.network)
            # Inferences of two runs may have the same numbers.
            groups.setdefault((*key, seen[device]), []).append(reader)
            seen[device] += 1
        return tuple(
            Sample(*key[:3], tuple(sorted(readers, key=lambda reader: (reader.slice, reader.facts.network))))
            for key, readers in sorted(groups.items())
        )

    def _facts_of(self, buffer: StatsBuffer) -> OpInfo:
        text = self._json.of(buffer)
        facts = self._facts.get(text)
        if facts is None:
            facts = self._facts[text] = op_info_of(text, self._unnamed_ops() if text is None else ())
        return facts

    def _unnamed_ops(self) -> list[int]:
        """Return the number of operations of each core in all buffers without a descriptor."""
        counts: list[int] = []
        for buffer in self.buffers:
            if self._json.of(buffer) is None:
                pairs = zip_longest(counts, _ops_per_core(buffer), fillvalue=0)
                counts = [max(pair) for pair in pairs]
                buffer.advise_unneeded("OP", 0, len(buffer.ops))
        return counts

    @property
    def devices(self) -> int:
        """Number of measured devices of the program."""
        return max((len(sample.readers) for sample in self.samples), default=0)

    @property
    def is_cpu(self) -> bool:
        """True if the CPU device measured."""
        return any(buffer.run.device == 1 for buffer in self.buffers)

    def binaries(self) -> frozenset[str | None]:
        """Return the descriptors: equal for captures of one binary."""
        return frozenset(self._json.of(buffer) for buffer in self.buffers)

    def each(self) -> list[TraceReader]:
        """Return all readers."""
        return [reader for sample in self.samples for reader in sample.readers]

    def by_device(self) -> list[list[TraceReader]]:
        """Return the readers of each device, one for each sample with the device."""
        keys = sorted({(reader.slice, reader.facts.network) for reader in self.each()})
        found = {key: [] for key in keys}  # type: dict[tuple[int, str], list[TraceReader]]
        for reader in self.each():
            found[reader.slice, reader.facts.network].append(reader)
        return list(found.values())

    def median(self, value: Callable[[Sample], float | None]) -> float | None:
        """Return the median over the samples of a value, without samples that do not have the value."""
        return median([value(sample) for sample in self.samples])


def median(values: Sequence[float | None]) -> float | None:
    """Return the median of all values except None."""
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def median_rows(rows: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the median over samples, element by element."""
    if len(rows) == 1:
        return rows[0]
    result: NDArray[np.float64] = np.median(np.stack(rows), axis=0)
    return result


class _Texts:
    """Descriptors as JSON; buffers of one program share a text."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def of(self, buffer: StatsBuffer) -> str | None:
        """Return the descriptor of a buffer, and keep the object alive, because its identity is the key."""
        descriptor = buffer.descriptor
        if descriptor is None:
            return None
        if id(descriptor) not in self._known:
            self._known[id(descriptor)] = str(descriptor.compiled.to_json())
        return self._known[id(descriptor)]


def _ops_per_core(buffer: StatsBuffer) -> list[int]:
    """Return the number of operations of each core in a buffer without a descriptor."""
    counts: dict[int, int] = {}
    for thread in buffer.threads:
        first, count = int(thread["first_op"]), int(thread["op_count"])
        if count:
            core = int(thread["core"])
            largest = int(buffer.ops["oc"][first : first + count].max())
            counts[core] = max(counts.get(core, 0), largest + 1)
    if sum(counts.values()) > max(_UNNAMED_OPS, len(buffer.ops)):
        core = max(counts, key=counts.__getitem__)
        raise StatsFormatError(
            f"an OP record is operation {counts[core] - 1} of core {core}, too large for a "
            f"buffer of {counted(len(buffer.ops), 'operation')}",
            code="stats.unknown_op",
            hints=("give the container of the buffer, so that the numbers can be checked",),
        )
    return [counts.get(core, 0) for core in range(max(counts, default=-1) + 1)]
