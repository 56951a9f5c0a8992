"""Contents of a stats buffer: facts about the run, and records, whose numpy types come from one table."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from qaic._core import stats_record_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    """Facts about the whole inference."""

    stats_level: int
    op_stats_level: int
    cores: int
    threads_per_core: int
    batch_size: int
    """Samples of an inference, which rates are counted in."""
    ucycle_hz: int
    """Ticks a second."""
    epoch_utc_ns: int
    """UTC nanoseconds at tick 0; 0 where it is not known."""
    inference: int
    program: int
    activation: int
    flags: int
    device: int
    """What measured: 1 CPU, 2 AI 100, 65535 a test."""
    device_name: str
    specialization: int

    @property
    def complete(self) -> bool:
        """Everything was recorded."""
        return bool(self.flags & _COMPLETE)

    @property
    def ops_truncated(self) -> bool:
        """There were more operations than room."""
        return bool(self.flags & _OPS_TRUNCATED)

    @property
    def pcycles_estimated(self) -> bool:
        """Processor cycles are estimated."""
        return bool(self.flags & _PCYCLES_ESTIMATED)

    @property
    def pcycles_absent(self) -> bool:
        """There are no processor cycles."""
        return bool(self.flags & _PCYCLES_ABSENT)

    @property
    def coarse_clock(self) -> bool:
        """The clock behind the ticks steps by a microsecond or more."""
        return bool(self.flags & _COARSE_CLOCK)

    @property
    def ddr_is_tensor_bytes(self) -> bool:
        """DDR figures are the bytes of tensors."""
        return bool(self.flags & _DDR_IS_TENSOR_BYTES)

    @property
    def instrumented(self) -> bool:
        """Times contain the cost of measuring."""
        return bool(self.flags & _INSTRUMENTED)

    def microseconds(self, ticks: float) -> float:
        """Return ticks as microseconds."""
        return ticks * 1e6 / self.ucycle_hz
