"""Contents of a stats buffer (facts about the run, and records), and layouts that users register.

A layout is an object with a name, a guess and a decoder. It is registered by :func:`register_layout`, or by
an installed package under the entry point group ``qaic.stats_layouts``.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from qaic import _core
from qaic._core import stats_record_fields
from qaic.errors import StatsError, StatsFormatError
from qaic.stats.descriptor import Descriptor

_SECTIONS = ("CORE", "THREAD", "PORT", "RING", "PMU_EVENTS", "PMU", "OP", "OP_PMU")


def _dtype(section: str) -> np.dtype[Any]:
    fields: list[Any] = [
        (name, code) if count == 1 else (name, code, (count,))
        for name, code, count in stats_record_fields(section)
    ]
    return np.dtype(fields)


#: section -> type of its records: little-endian, no padding
RECORDS: Final[Mapping[str, np.dtype[Any]]] = MappingProxyType({name: _dtype(name) for name in _SECTIONS})

#: bits of `Run.flags`
_COMPLETE: Final = 1
_OPS_TRUNCATED: Final = 2
_PCYCLES_ESTIMATED: Final = 4
_PCYCLES_ABSENT: Final = 8
_COARSE_CLOCK: Final = 16
_DDR_IS_TENSOR_BYTES: Final = 32
_INSTRUMENTED: Final = 64


@dataclass(frozen=True, slots=True)
class Run:
    """Properties of a measured inference."""

    stats_level: int
    op_stats_level: int
    cores: int
    threads_per_core: int
    batch_size: int
    """Number of samples in an inference, for rates."""
    ucycle_hz: int
    """Number of ticks in a second."""
    epoch_utc_ns: int
    """UTC time of tick 0 in nanoseconds; 0 if unknown."""
    inference: int
    program: int
    activation: int
    flags: int
    device: int
    """Kind of device: 1 CPU, 2 AI 100, 65535 test."""
    device_name: str
    specialization: int

    @property
    def complete(self) -> bool:
        """True if the buffer contains the whole inference."""
        return bool(self.flags & _COMPLETE)

    @property
    def ops_truncated(self) -> bool:
        """True if the buffer had no room for some operations."""
        return bool(self.flags & _OPS_TRUNCATED)

    @property
    def pcycles_estimated(self) -> bool:
        """True if processor cycles are estimates."""
        return bool(self.flags & _PCYCLES_ESTIMATED)

    @property
    def pcycles_absent(self) -> bool:
        """True if processor cycles were not measured."""
        return bool(self.flags & _PCYCLES_ABSENT)

    @property
    def coarse_clock(self) -> bool:
        """True if the clock has a resolution of a microsecond or more."""
        return bool(self.flags & _COARSE_CLOCK)

    @property
    def ddr_is_tensor_bytes(self) -> bool:
        """True if DDR traffic was computed from the sizes of tensors."""
        return bool(self.flags & _DDR_IS_TENSOR_BYTES)

    @property
    def instrumented(self) -> bool:
        """True if times include the cost of measuring."""
        return bool(self.flags & _INSTRUMENTED)

    def microseconds(self, ticks: float) -> float:
        """Convert ticks to microseconds."""
        return ticks * 1e6 / self.ucycle_hz


#: the layout of the `cpu` device, which is compiled in
OPEN_LAYOUT: Final = "oqstats"
ENTRY_POINTS: Final = "qaic.stats_layouts"


@runtime_checkable
class StatsLayout(Protocol):
    """Interface of a layout."""

    name: str
    """Unique name, for the argument ``layout``."""

    def probe(
        self, buffer: NDArray[np.uint8], descriptor: Descriptor | None
    ) -> Literal["no", "maybe", "yes"]:
        """Return how well a buffer matches; ``"maybe"`` counts only if the layout is requested by name."""
        ...

    def decode(
        self, buffer: NDArray[np.uint8], descriptor: Descriptor | None
    ) -> tuple[Mapping[str, int], Mapping[str, Any]]:
        """Return two dictionaries: properties of the inference, and records by section.

        Properties are integer fields of :class:`qaic.stats.Run`; missing fields are 0. Records are structured
        arrays with the dtypes of :data:`qaic.stats.RECORDS`, or with some of their fields; missing fields are
        0. The section ``"META"`` is JSON as ``bytes``. An exception means that the buffer cannot be read.
        """
        ...


_registered: dict[str, StatsLayout] = {}
_loaded_entry_points = False


def register_layout(layout: StatsLayout) -> None:
    """Register a layout in this process; it replaces a registered layout of the same name.

    Raises
    ------
    qaic.errors.StatsError
        The object is not a :class:`StatsLayout`, or has the name of the built-in layout.
    """
    if not (isinstance(layout, StatsLayout) and isinstance(layout.name, str)):
        message = f"{layout!r} is not a layout: name, probe and decode are required"
        raise StatsError(message, code="stats.not_a_layout")
    if layout.name == OPEN_LAYOUT:
        message = f"{OPEN_LAYOUT!r} is the built-in layout; a layout of your own needs another name"
        raise StatsError(message, code="stats.not_a_layout", context={"name": layout.name})
    _registered[layout.name] = layout


def registered() -> Mapping[str, StatsLayout]:
    """Return the layouts by name, in the order in which they are tried; entry points come first.

    Warns
    -----
    UserWarning
        A package's layout cannot be loaded.
    """
    global _loaded_entry_points  # noqa: PLW0603 - entry points are loaded once in a process
    if not _loaded_entry_points:
        _loaded_entry_points = True
        explicit = dict(_registered)
        _registered.clear()
        _load_entry_points()
        _registered.update(explicit)
    return _registered


def _load_entry_points() -> None:
    from importlib.metadata import entry_points

    for entry in entry_points(group=ENTRY_POINTS):
        try:
            layout = entry.load()
            register_layout(layout() if isinstance(layout, type) else layout)
        except Exception as error:  # noqa: BLE001 - a broken package must not keep others from being read
            warnings.warn(f"stats layout {entry.name} of {entry.value} is skipped: {error}", stacklevel=2)


def find(name: str) -> StatsLayout:
    """Return the layout of this name. Raises StatsError if there is none."""
    layouts = registered()
    if name not in layouts:
        known = [OPEN_LAYOUT, *layouts]
        message = f"unknown layout {name!r}; known: {', '.join(known)}"
        raise StatsError(message, code="stats.unknown_layout_name", context={"name": name, "known": known})
    return layouts[name]


def sure_of(buffer: NDArray[np.uint8], descriptor: Descriptor | None) -> StatsLayout | None:
    """Return the first layout that fits."""
    for layout in registered().values():
        try:
            if layout.probe(buffer, descriptor) == "yes":
                return layout
        except Exception as error:  # noqa: BLE001 - as for entry points
            warnings.warn(f"stats layout {layout.name} failed to probe: {error}", stacklevel=2)
    return None


def decode(
    layout: StatsLayout, buffer: NDArray[np.uint8], descriptor: Descriptor | None, *, force: bool
) -> _core.StatsBuffer:
    """Decode a buffer in a layout that a user registered.

    Raises StatsFormatError if the layout cannot read the buffer, or returns invalid records.
    """
    try:
        run, sections = layout.decode(buffer, descriptor)
        arrays = {name: _records(name, records) for name, records in sections.items()}
        return _core.StatsBuffer.of_sections(
            dict(run), arrays, None if descriptor is None else descriptor.compiled, any_program=force
        )
    except StatsFormatError:
        raise
    except Exception as error:
        message = f"layout {layout.name}: {type(error).__name__}: {error}"
        raise StatsFormatError(message, code="stats.layout", context={"layout": layout.name}) from error


def _records(section: str, given: Any) -> NDArray[Any] | bytes:
    """Return records with exactly the type of the section."""
    if section == "META":
        return bytes(given)
    dtype = RECORDS[section]
    array = np.asarray(given)
    if array.ndim != 1:
        raise ValueError(f"section {section} has shape {array.shape}; one dimension is expected")
    if array.dtype == dtype:
        return np.ascontiguousarray(array)
    if array.dtype.names is None:
        raise TypeError(f"section {section} has type {array.dtype}; a structured array is expected")
    unknown = [name for name in array.dtype.names if name not in (dtype.names or ())]
    if unknown:
        message = (
            f"section {section} has no field {unknown[0]!r}; its fields are {', '.join(dtype.names or ())}"
        )
        raise ValueError(message)
    records = np.zeros(len(array), dtype)
    for name in array.dtype.names:
        given = array[name]
        with np.errstate(invalid="ignore"):
            records[name] = given
        if not np.can_cast(given.dtype, records[name].dtype) and (
            given.dtype.kind not in "biuf" or np.any(records[name] != given)
        ):
            message = (
                f"field {name} of section {section} has type {given.dtype} with values that "
                f"are not numbers of type {records[name].dtype}"
            )
            raise ValueError(message)
    return records
