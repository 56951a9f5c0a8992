"""Measurements of one inference: a stats buffer as read-only numpy views, and as cores and engines."""

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
from qaic.support.atomic_io import replace_bytes, write_replacing
from qaic.support.text import counted

if TYPE_CHECKING:
    from typing_extensions import Buffer
else:
    Buffer = bytes | bytearray | memoryview


_ENGINES: Final = {0: "HVX", 1: "HMX", 2: "DMAIssue", 3: "Scalar", 16: "CPU"}
# Flags of the records.
_ACTIVATION_VALID: Final = 1
THREAD_PCYCLES_VALID: Final = 2
_DDR_VALID, _MULTICAST_VALID, _CORE_PCYCLES_VALID = 1, 2, 4


def engine_name(code: int) -> str:
    """Return the name of an engine if no descriptor names its thread group."""
    return _ENGINES.get(code, f"engine{code}")


class StatsBuffer:
    """Stats buffer of one inference; :func:`qaic.stats.open` returns it.

    Each section is a read-only structured array with a dtype of :data:`qaic.stats.RECORDS`. The arrays are
    views, and keep the bytes of the buffer alive. A section that the device did not write is an empty array;
    :meth:`has` distinguishes it from a section without records. Times are in ticks; ``run.microseconds``
    converts them.

    Opening a buffer checks the header, the directory, cores and threads. :meth:`check` also checks the
    records of operations; summaries, traces and reports call it first.
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
                # The stub of numpy does not declare the buffer protocol.
                view = np.ndarray((count,), dtype, memory, strides=(stride,))  # type: ignore[arg-type]
            self._views[section] = view
        return view

    # --- facts ----------------------------------------------------------------------------------------------

    @cached_property
    def run(self) -> Run:
        """Properties of the inference."""
        return Run(**self.compiled.run)

    @property
    def layout(self) -> str:
        """Name of the layout of the buffer."""
        return self._layout

    @property
    def path(self) -> str | None:
        """File of the buffer; ``None`` if it was opened from bytes."""
        return self.compiled.path

    @property
    def descriptor(self) -> Descriptor | None:
        """Operations of the program; ``None`` if the buffer was opened without a program."""
        return self._descriptor

    @cached_property
    def meta(self) -> dict[str, Any]:
        """Metadata of the device that wrote the buffer; empty if they are missing or not a JSON object."""
        try:
            value = json.loads(self.compiled.meta or "{}")
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Irregularities that are not errors; complete after :meth:`check`."""
        return tuple(self.compiled.warnings)

    def has(self, section: str) -> bool:
        """Return True if the device wrote a section. Names are the keys of :data:`qaic.stats.RECORDS`.

        Raises
        ------
        KeyError
            The name is not the name of a section.
        """
        return self.compiled.section(section) is not None

    def advise_unneeded(self, section: str, start: int, stop: int) -> None:
        """State that records are not needed soon.

        The pages of a large mapped file then no longer count as memory of the process. They can still be
        read.
        """
        self.compiled.advise_unneeded(section, start, stop)

    def check(self) -> None:
        """Read and check every record. Blocking; later calls return the stored result.

        Raises
        ------
        qaic.errors.StatsError
            A record is damaged; the message describes the first defect.
        """
        self.compiled.check()

    # --- texts and traces -----------------------------------------------------------------------------------

    def summary(self, *, cores: Sequence[int] | None = None) -> str:
        """Return the summary as text: kinds of operations, threads and ports of each core.

        Blocking; releases the GIL. Checks the records first.

        Parameters
        ----------
        cores
            Numbers of the cores to include; by default, all. Lines about the whole network are always
            included.

        Raises
        ------
        qaic.errors.StatsError
            A record is damaged.
        """
        return _core.stats_summary(self.compiled, self._compiled_descriptor, cores=cores)

    def write_summary(self, path: str | PathLike[str], *, cores: Sequence[int] | None = None) -> None:
        """Write the result of :meth:`summary` to a file atomically; parameters and errors are the same."""
        replace_bytes(Path(path), self.summary(cores=cores).encode())

    def write_trace(
        self,
        path: str | PathLike[str],
        *,
        format: str = "json",  # noqa: A002 - as the option of qaic-opstats
        merge_thread_groups: bool = True,
        flow_events: bool = False,
        barrier_events: bool = False,
        cores: Sequence[int] | None = None,
        host_trace: "Buffer | None" = None,
    ) -> None:
        """Write a trace of the device, for ``chrome://tracing`` and Perfetto.

        Blocking; releases the GIL. Checks the records first, and writes the file atomically.

        Parameters
        ----------
        path
            File to write.
        format
            ``"json"``: a Chrome trace. ``"perfetto"``: Perfetto's format, about a quarter of the size.
        merge_thread_groups
            True for one track for all threads of a group, false for one track for each thread.
        flow_events
            True to draw arrows for dependencies.
        barrier_events
            True to add tracks for the waits after operations.
        cores
            Numbers of the cores to include; by default, all.
        host_trace
            Chrome trace of the host in JSON; it is added on the same clock.

        Raises
        ------
        qaic.errors.StatsError
            A record, or the trace of the host, is damaged.
        """
        network = self._descriptor.network if self._descriptor else "network"
        write_replacing(
            Path(path),
            lambda aside: _core.stats_trace(
                [(self.compiled, self._compiled_descriptor, network, None)],
                path=aside,
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
    def model(self) -> "Model":
        """Cores, engines and threads as objects; their executions are views, which are not checked."""
        return Model(self.run, tuple(_core_of(self, record) for record in self.cores))

    def columns(
        self, section: str, names: Sequence[str] | None = None, start: int = 0, stop: int | None = None
    ) -> dict[str, NDArray[Any]]:
        """Copy fields of records to contiguous arrays: name -> array. Blocking; releases the GIL.

        Sums and histograms over many records are faster on these arrays than on the fields of a view.

        Parameters
        ----------
        section
            Name of a section, such as ``"OP"``.
        names
            Names of fields; by default, all.
        start, stop
            Range of records, as in a slice. Large buffers can be read in parts.

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
        """Waits of threads for input and output ports."""
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
    """Thread of an engine. Times are in ticks; ``buffer.run.microseconds`` converts them."""

    number: int
    engine: str
    start_u: int
    end_u: int
    pcycles: int | None
    """Processor cycles; ``None`` if they were not measured."""
    activation_u: tuple[int, int] | None
    """Start and end of the activation; ``None`` if it was not measured."""
    ops: NDArray[Any]
    """View of the executions of the thread, in the order of their starts."""
    columns: OpColumns | None
    """Operations of the core; ``None`` without a descriptor."""

    @property
    def names(self) -> NDArray[np.object_]:
        """Name of the operation of each execution; its number without a descriptor."""
        return _of_executions(self.columns, "name", self.ops)

    @property
    def kinds(self) -> NDArray[np.object_]:
        """Kind of the operation of each execution; its number without a descriptor."""
        return _of_executions(self.columns, "kind", self.ops)


@dataclass(frozen=True, eq=False, slots=True)
class Engine:
    """Threads of a core that issue to the same engine."""

    name: str
    threads: tuple[Thread, ...]

    @property
    def ops(self) -> NDArray[Any]:
        """Executions of all threads, one thread after the other: a view for one thread, else a copy."""
        if len(self.threads) == 1:
            return self.threads[0].ops
        return np.concatenate([thread.ops for thread in self.threads])


@dataclass(frozen=True, slots=True)
class CoreTimes:
    """Measurements of one core of a device."""

    number: int
    slice: int
    """Index of the device, in the order of the program."""
    start_u: int
    end_u: int
    pcycles: int | None
    ddr_bytes: tuple[int, int] | None
    """Bytes read and written; ``None`` if they were not measured."""
    multicast_bytes: tuple[int, int] | None

    @property
    def span_u(self) -> int:
        """Time from start to end, in ticks."""
        return max(0, self.end_u - self.start_u)


@dataclass(frozen=True, slots=True)
class Core(CoreTimes):
    """One core of a device, with its engines."""

    engines: tuple[Engine, ...]

    def engine(self, name: str) -> Engine:
        """Return the engine with a name.

        Raises
        ------
        KeyError
            The core has no such engine.
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
        """Return the core with a number.

        Raises
        ------
        KeyError
            The core was not measured.
        """
        for core in self.cores:
            if core.number == number:
                return core
        raise KeyError(number)


def core_facts(record: NDArray[Any]) -> dict[str, Any]:
    """Return the fields of `CoreTimes` from a record of a core."""
    flags = int(record["flags"])

    def pair(flag: int, prefix: str) -> tuple[int, int] | None:
        if not flags & flag:
            return None
        return int(record[f"{prefix}_read_bytes"]), int(record[f"{prefix}_write_bytes"])

    return {
        "number": int(record["core"]),
        **{name: int(record[name]) for name in ("slice", "start_u", "end_u")},
        "pcycles": int(record["pcycles"]) if flags & _CORE_PCYCLES_VALID else None,
        "ddr_bytes": pair(_DDR_VALID, "ddr"),
        "multicast_bytes": pair(_MULTICAST_VALID, "mc"),
    }


def _core_of(buffer: StatsBuffer, record: NDArray[Any]) -> Core:
    number = int(record["core"])
    threads = [_thread_of(buffer, thread) for thread in buffer.threads if int(thread["core"]) == number]
    names = dict.fromkeys(thread.engine for thread in threads)
    engines = tuple(Engine(name, tuple(one for one in threads if one.engine == name)) for name in names)
    return Core(**core_facts(record), engines=engines)


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
        int(record["pcycles"]) if flags & THREAD_PCYCLES_VALID else None,
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
