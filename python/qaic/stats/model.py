"""Cores, engines and operations of a stats buffer as objects."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qaic.stats.buffer import StatsBuffer
from qaic.stats.descriptor import OpColumns
from qaic.stats.layouts import Run

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


def model_of(buffer: StatsBuffer) -> Model:
    """Return the objects of a buffer. Executions stay views; they are not checked (``StatsBuffer.check``)."""
    return Model(buffer.run, tuple(_core(buffer, record) for record in buffer.cores))


def _core(buffer: StatsBuffer, record: NDArray[Any]) -> Core:
    number, flags = int(record["core"]), int(record["flags"])
    threads = [_thread(buffer, thread) for thread in buffer.threads if int(thread["core"]) == number]
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


def _thread(buffer: StatsBuffer, record: NDArray[Any]) -> Thread:
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
