"""The compiler's description of a program's operations, as columns."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qaic import _core
from qaic.support.text import counted


@dataclass(frozen=True, slots=True, eq=False)
class OpColumns:
    """Operations of one core: one array for each property, indexed by the number ``oc`` of an operation.

    For example, ``columns.kind[buffer.ops["oc"]]`` is the kind of each execution. Texts are object arrays of
    ``str``.
    """

    name: NDArray[np.object_]
    """Path of the node that the operation computes, with the suffix ``/__<number>``."""
    engine_name: NDArray[np.object_]
    """Name in the engine; empty if it equals ``name``."""
    kind: NDArray[np.object_]
    group: NDArray[np.uint32]
    """Index into :attr:`Descriptor.groups`."""
    memory: NDArray[np.object_]
    types: NDArray[np.object_]
    """Distinct types of the operands, separated by a comma and a space."""
    shape: NDArray[np.object_]
    output_bytes: NDArray[np.uint64]
    """Bytes of the results; 0 if the shapes are known only at run time."""
    macs: NDArray[np.uint64]
    """Number of multiply-accumulates; 0 if unknown."""
    constant_bytes: NDArray[np.uint64]
    attributes: NDArray[np.object_]
    nodes: NDArray[np.object_]
    """Tuples of the nodes of the user's model that the operation computes."""
    outputs: NDArray[np.object_]
    """Tuples of the results that are values of the program; values of the engine alone are omitted."""
    operands: NDArray[np.object_]
    """Tuples of the names of the operands."""
    deps: NDArray[np.object_]
    """Tuples of (core, oc, data): an operation that must end first; ``data``: its result is read."""

    def __len__(self) -> int:
        return len(self.name)


class Descriptor:
    """Describes the operations of a program.

    Parameters
    ----------
    compiled
        Object of the compiled module.
    """

    def __init__(self, compiled: _core.StatsDescriptor) -> None:
        self.compiled = compiled
        self._columns: dict[int, OpColumns] = {}

    @classmethod
    def from_json(cls, text: str | bytes) -> "Descriptor":
        """Parse the JSON of the segment ``opstatsdesc.open``.

        Raises
        ------
        qaic.errors.StatsFormatError
            The text is not such a description, or has another version.
        """
        return cls(_core.StatsDescriptor.from_json(text.encode() if isinstance(text, str) else text))

    @cached_property
    def _facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(self.compiled.to_json())
        return facts

    @property
    def network(self) -> str:
        """Name of the network."""
        return self.compiled.network

    @property
    def fingerprint(self) -> bytes:
        """Digest of the program (16 bytes); its buffers contain the same bytes."""
        return self.compiled.fingerprint

    @property
    def stats_level(self) -> int:
        """Stats level of the compilation."""
        return self.compiled.stats_level

    @property
    def op_stats_level(self) -> int:
        """Level of the statistics of operations."""
        return int(self._facts["op_stats_level"])

    @property
    def batch_size(self) -> int:
        """Number of samples in an inference, for rates."""
        return int(self._facts["batch_size"])

    @property
    def ucycles_per_ms(self) -> int:
        """Number of ticks in a millisecond."""
        return int(self._facts["ucycles_per_ms"])

    @property
    def pmu_events(self) -> tuple[int, ...]:
        """Ids of the counted hardware events."""
        return tuple(self._facts["pmu_events"])

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the thread groups."""
        return tuple(self._facts["groups"])

    @property
    def thread_groups(self) -> tuple[int, ...]:
        """Index of the group of each thread of a core."""
        return tuple(self._facts["thread_groups"])

    @property
    def cores(self) -> int:
        """Number of cores with operations."""
        return len(self._facts["cores"])

    def ops(self, core: int) -> OpColumns:
        """Return the operations of a core.

        Raises
        ------
        IndexError
            The program has no such core.
        """
        if not 0 <= core < self.cores:
            raise IndexError(f"core {core} of a program with {counted(self.cores, 'core')}")
        if core not in self._columns:
            self._columns[core] = _columns(self._facts["cores"][core]["ops"])
        return self._columns[core]

    def slice_of(self, core: int) -> int:
        """Return the index of the device that contains a core, in the order of the program."""
        return int(self._facts["cores"][core]["slice"])

    def __repr__(self) -> str:
        ops = [len(core["ops"]) for core in self._facts["cores"]]
        return f"<Descriptor {self.network!r}: stats level {self.stats_level}, operations per core {ops}>"


def _columns(ops: list[dict[str, Any]]) -> OpColumns:
    def texts(field: str) -> NDArray[np.object_]:
        return _objects(op.get(field, "") for op in ops)

    def lists(field: str) -> NDArray[np.object_]:
        return _objects(tuple(op.get(field, ())) for op in ops)

    def bytes_of(field: str) -> NDArray[np.uint64]:
        return _frozen(np.array([op.get(field, 0) for op in ops], np.uint64))

    return OpColumns(
        name=texts("name"),
        engine_name=texts("engine_name"),
        kind=texts("kind"),
        group=_frozen(np.array([op["group"] for op in ops], np.uint32)),
        memory=texts("memory"),
        types=texts("types"),
        shape=texts("shape"),
        output_bytes=bytes_of("output_bytes"),
        macs=bytes_of("macs"),
        constant_bytes=bytes_of("constant_bytes"),
        attributes=texts("attributes"),
        nodes=lists("nodes"),
        outputs=lists("outputs"),
        operands=lists("operands"),
        deps=_objects(
            tuple((dep["core"], dep["oc"], dep["data"]) for dep in op.get("deps", ())) for op in ops
        ),
    )


def _objects(values: Iterable[object]) -> NDArray[np.object_]:
    """Return an array with one element for each value; tuples of equal length do not add a dimension."""
    listed = list(values)
    array = np.empty(len(listed), np.object_)
    array[:] = listed
    return _frozen(array)


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array
