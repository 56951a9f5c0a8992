"""Measurements of one inference: read-only numpy views of a stats buffer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qaic import _core
from qaic.stats.descriptor import Descriptor
from qaic.stats.layouts import RECORDS, Run
from qaic.support.atomic_io import write_replacing
from qaic.support.lazy_module import LazyModule
from qaic.support.text import counted

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from qaic.stats import model as models
else:
    Buffer = bytes | bytearray | memoryview
    models = LazyModule("qaic.stats.model")


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
    def model(self) -> models.Model:
        """Cores, engines, threads and their operations as objects."""
        from qaic.stats.model import model_of

        return model_of(self)

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
