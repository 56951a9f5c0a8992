"""Measurements of one inference: a stats buffer as read-only numpy views, and as cores and engines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from qaic import _core
from qaic.stats.descriptor import Descriptor, OpColumns
from qaic.stats.layouts import RECORDS, Run
from qaic.support.atomic_io import write_replacing
from qaic.support.text import counted

if TYPE_CHECKING:
    from typing_extensions import Buffer
else:
    Buffer = bytes | bytearray | memoryview


_ENGINES: Final = {0: "HVX", 1: "HMX", 2: "DMAIssue", 3: "Scalar", 16: "CPU"}
# Flags of the records.
_ACTIVATION_VALID: Final = 1
_THREAD_PCYCLES_VALID: Final = 2
_DDR_VALID: Final = 1
_MULTICAST_VALID: Final = 2
_CORE_PCYCLES_VALID: Final = 4


def engine_name(code: int) -> str:
    """Name of an engine where no descriptor names its thread group."""
    return _ENGINES.get(code, f"engine{code}")


class StatsBuffer:
    """The stats buffer of one inference; :func:`qaic.stats.open` makes it.

    Each section is a structured array of :data:`qaic.stats.RECORDS`, read-only, without a copy, and keeps the
    bytes by itself. A section that the device did not write is empty; :meth:`has` shows the difference to one
    without records.

    Header, directory, cores and threads were checked when the buffer was opened. The records of operations
    are not until :meth:`check`, which summary, trace and reports call: it reads every record.
    """

    def __init__(self, compiled: _core.StatsBuffer, descriptor: Descriptor | None, layout: str) -> None:
        self.compiled = compiled
        self._descriptor = descriptor
        self._layout = layout
        self._views: dict[str, NDArray[Any]] = {}

    def _view(self, section: str) -> NDArray[Any]:
        view = self._views.get(section)
        if view is None:
            dtype = RECORDS[section]
            found = self.compiled.section(section)
            if found is None or not found[2]:
                view = np.zeros(0, dtype)
                view.flags.writeable = False
            else:
                memory, stride, count = found
                # The stub of numpy knows no buffer protocol.
                view = np.ndarray((count,), dtype, memory, strides=(stride,))  # type: ignore[arg-type]
            self._views[section] = view
        return view

    # --- facts ----------------------------------------------------------------------------------------------

    @cached_property
    def run(self) -> Run:
        """Facts about the whole inference."""
        return Run(**self.compiled.run)

    @property
    def layout(self) -> str:
        """Name of the layout that the bytes have."""
        return self._layout

    @property
    def path(self) -> str | None:
        """The file, if it came from one."""
        return self.compiled.path

    @property
    def descriptor(self) -> Descriptor | None:
        """The operations of the program; ``None`` when it was opened without one."""
        return self._descriptor

    @cached_property
    def meta(self) -> dict[str, Any]:
        """The producer's facts about itself; empty if there are none, or they are no JSON object."""
        try:
            value = json.loads(self.compiled.meta or "{}")
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Oddities that are no reason to refuse the buffer; complete after :meth:`check`."""
        return tuple(self.compiled.warnings)

    def has(self, section: str) -> bool:
        """Return whether the device wrote a section: ``"OP"`` and the other names of sections.

        Raises
        ------
        KeyError
            There is no section of this name.
        """
        return self.compiled.section(section) is not None

    def advise_unneeded(self, section: str, start: int, stop: int) -> None:
        """Mark records as not needed soon.

        Of a large mapped file, their pages stop counting as memory of the process; they can be read again.
        """
        self.compiled.advise_unneeded(section, start, stop)

    def check(self) -> None:
        """Read every record and check it. Blocking; the answer is kept.

        Raises
        ------
        qaic.errors.StatsError
            The first defect.
        """
        self.compiled.check()

    # --- texts and traces -----------------------------------------------------------------------------------

    def summary(self, *, cores: Sequence[int] | None = None) -> str:
        """Return the summary: per core its kinds of operations, threads and ports.

        Blocking, without the interpreter lock; the records are checked first.

        Parameters
        ----------
        cores
            Only these; lines about the whole network stay.

        Raises
        ------
        qaic.errors.StatsError
            The first defect of the records.
        """
        return _core.stats_summary(self.compiled, self._compiled_descriptor, cores=cores)

    def write_summary(self, path: str | PathLike[str], *, cores: Sequence[int] | None = None) -> None:
        """Write the summary to a file, which is replaced when it is complete; as :meth:`summary` else."""
        write_replacing(
            Path(path),
            lambda aside: _core.write_stats_summary(
                aside, self.compiled, self._compiled_descriptor, cores=cores
            ),
        )

    def write_trace(
        self,
        path: str | PathLike[str],
        *,
        format: str = "json",  # noqa: A002 - as the option of qaic-opstats
        merge_thread_groups: bool = True,
        flow_events: bool = False,
        barrier_events: bool = False,
        cores: Sequence[int] | None = None,
        host_trace: Buffer | None = None,
    ) -> None:
        """Write what the device did over time, for ``chrome://tracing`` and Perfetto.

        Blocking, without the interpreter lock; the records are checked first, and the file is replaced when
        it is complete.

        Parameters
        ----------
        format
            ``"json"``: a Chrome trace. ``"perfetto"``: Perfetto's own, a fraction of the size.
        merge_thread_groups
            One track for all threads of a group, else one for each.
        flow_events
            Arrows for dependencies.
        barrier_events
            Tracks with the waits after operations.
        cores
            Only these.
        host_trace
            A Chrome trace of the host in JSON, shown next to the device on the wall clock.

        Raises
        ------
        qaic.errors.StatsError
            The first defect of the records, or of the host's trace.
        """
        network = self._descriptor.network if self._descriptor else "network"
        write_replacing(
            Path(path),
            lambda aside: _core.write_stats_trace(
                aside,
                [(self.compiled, self._compiled_descriptor, network, None)],
                format=format,
                merge_thread_groups=merge_thread_groups,
                flow_events=flow_events,
                barrier_events=barrier_events,
                cores=cores,
                host_trace=host_trace,
            ),
        )

    @property
    def _compiled_descriptor(self) -> _core.StatsDescriptor | None:
        return None if self._descriptor is None else self._descriptor.compiled

    def __repr__(self) -> str:
        run = self.run
        return (
            f"<StatsBuffer {self._layout}: {run.device_name}, program {run.program} "
            f"activation {run.activation} inference {run.inference}, {counted(run.cores, 'core')}, "
            f"{counted(len(self.ops), 'operation')}>"
        )

    @cached_property
    def model(self) -> Model:
        """Cores, engines, threads and their operations as objects; executions stay views, not checked."""
        return Model(self.run, tuple(_core_of(self, record) for record in self.cores))

    def columns(
        self, section: str, names: Sequence[str] | None = None, start: int = 0, stop: int | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return fields of records as contiguous arrays of their own, read in one pass.

        For sums and histograms over many records, which read a field of a view slowly: the records lie
        between its values. Blocking, without the interpreter lock.

        Parameters
        ----------
        section
            ``"OP"`` and the other names of sections.
        names
            Fields; all when not given.
        start, stop
            Which records, as of a slice without a step. Large buffers can be read piece by piece.

        Raises
        ------
        KeyError
            There is no such section or field.
        """
        dtype = RECORDS[section]
        wanted = list(dtype.names or ()) if names is None else list(names)
        types = [dtype[name] for name in wanted]
        first, last, _ = slice(start, stop).indices(len(self._view(section)))
        filled = self.compiled.columns(section, wanted, first, max(first, last))
        return {
            name: np.frombuffer(memoryview(column), kind.base).reshape(-1, *kind.shape)
            for name, kind, column in zip(wanted, types, filled, strict=True)
        }

    # --- records --------------------------------------------------------------------------------------------

    @property
    def cores(self) -> NDArray[Any]:
        """Measurements of each core."""
        return self._view("CORE")

    @property
    def threads(self) -> NDArray[Any]:
        """Measurements of each thread; ``ops[first_op : first_op + op_count]`` are its operations."""
        return self._view("THREAD")

    @property
    def ports(self) -> NDArray[Any]:
        """How long threads waited for input and output ports."""
        return self._view("PORT")

    @property
    def rings(self) -> NDArray[Any]:
        """Rings of pipelined inputs."""
        return self._view("RING")

    @cached_property
    def pmu_events(self) -> NDArray[np.uint32]:
        """Ids of the events that the PMU values count."""
        events = self._view("PMU_EVENTS")
        ids: NDArray[np.uint32] = events["event"].reshape(-1)
        used: NDArray[np.uint32] = ids[ids != 0]
        return used

    @property
    def pmu(self) -> NDArray[Any]:
        """PMU values of threads."""
        return self._view("PMU")

    @property
    def ops(self) -> NDArray[Any]:
        """Executions of operations, by thread."""
        return self._view("OP")

    @property
    def op_pmu(self) -> NDArray[Any]:
        """PMU values of operations."""
        return self._view("OP_PMU")


@dataclass(frozen=True, eq=False, slots=True)
class Thread:
    """One thread of an engine. Ticks are those of the buffer; ``buffer.run.microseconds`` converts them."""

    number: int
    engine: str
    start_u: int
    end_u: int
    pcycles: int | None
    """Processor cycles; ``None`` where they were not measured."""
    activation_u: tuple[int, int] | None
    """Start and end of the activation; ``None`` where it was not measured."""
    ops: NDArray[Any]
    """View of its executions, in the order of their starts."""
    columns: OpColumns | None
    """The operations of its core; ``None`` without a descriptor."""

    @property
    def names(self) -> NDArray[np.object_]:
        """Name of each execution's operation; its number where there is no descriptor."""
        return _of_executions(self.columns, "name", self.ops)

    @property
    def kinds(self) -> NDArray[np.object_]:
        """Kind of each execution's operation; its number where there is no descriptor."""
        return _of_executions(self.columns, "kind", self.ops)


@dataclass(frozen=True, eq=False, slots=True)
class Engine:
    """Threads of a core that issue to the same engine."""

    name: str
    threads: tuple[Thread, ...]

    @property
    def ops(self) -> NDArray[Any]:
        """Executions of all its threads, thread after thread: a view of one thread, a copy of several."""
        if len(self.threads) == 1:
            return self.threads[0].ops
        return np.concatenate([thread.ops for thread in self.threads])


@dataclass(frozen=True, eq=False, slots=True)
class Core:
    """One core of a device."""

    number: int
    slice: int
    """Device of the program, in program order."""
    start_u: int
    end_u: int
    pcycles: int | None
    ddr_bytes: tuple[int, int] | None
    """Bytes read and written; ``None`` where they were not measured."""
    multicast_bytes: tuple[int, int] | None
    engines: tuple[Engine, ...]

    def engine(self, name: str) -> Engine:
        """Return the engine of this name.

        Raises
        ------
        KeyError
            The core has none.
        """
        for engine in self.engines:
            if engine.name == name:
                return engine
        raise KeyError(name)


@dataclass(frozen=True, eq=False, slots=True)
class Model:
    """One inference: its cores with their engines, threads and operations."""

    run: Run
    cores: tuple[Core, ...]

    def core(self, number: int) -> Core:
        """Return the core of this number.

        Raises
        ------
        KeyError
            It was not measured.
        """
        for core in self.cores:
            if core.number == number:
                return core
        raise KeyError(number)


def _core_of(buffer: StatsBuffer, record: NDArray[Any]) -> Core:
    number, flags = int(record["core"]), int(record["flags"])
    threads = [_thread_of(buffer, thread) for thread in buffer.threads if int(thread["core"]) == number]
    names = dict.fromkeys(thread.engine for thread in threads)

    def pair(flag: int, prefix: str) -> tuple[int, int] | None:
        if not flags & flag:
            return None
        return int(record[f"{prefix}_read_bytes"]), int(record[f"{prefix}_write_bytes"])

    return Core(
        number,
        int(record["slice"]),
        int(record["start_u"]),
        int(record["end_u"]),
        int(record["pcycles"]) if flags & _CORE_PCYCLES_VALID else None,
        pair(_DDR_VALID, "ddr"),
        pair(_MULTICAST_VALID, "mc"),
        tuple(Engine(name, tuple(one for one in threads if one.engine == name)) for name in names),
    )


def _thread_of(buffer: StatsBuffer, record: NDArray[Any]) -> Thread:
    number, core, flags = int(record["thread"]), int(record["core"]), int(record["flags"])
    first, count = int(record["first_op"]), int(record["op_count"])
    descriptor = buffer.descriptor
    name = engine_name(int(record["engine"]))
    columns = None
    if descriptor is not None:
        groups = descriptor.thread_groups
        if number < len(groups) and groups[number] < len(descriptor.groups):
            name = descriptor.groups[groups[number]] or name
        columns = descriptor.ops(core) if core < descriptor.cores else None
    return Thread(
        number,
        name,
        int(record["start_u"]),
        int(record["end_u"]),
        int(record["pcycles"]) if flags & _THREAD_PCYCLES_VALID else None,
        (int(record["act_start_u"]), int(record["act_end_u"])) if flags & _ACTIVATION_VALID else None,
        buffer.ops[first : first + count],
        columns,
    )


def _of_executions(columns: OpColumns | None, field: str, ops: NDArray[Any]) -> NDArray[np.object_]:
    ocs = ops["oc"]
    if columns is None:
        return ocs.astype(str).astype(np.object_)
    values: NDArray[np.object_] = getattr(columns, field)[ocs]
    return values
