"""Measurements of a program, and the size of the stats buffer.

The level determines the measurements. If the level was *requested*, callers get a binding for the buffer. The
default level has a buffer without a binding, so callers need not pass memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from qaic import _core
from qaic.compiler.ir.model import OPERATIONS_LEVEL, OpsTable
from qaic.options.table import CompileOptions

#: levels; each includes the levels below it
INFERENCES: Final = 40
PORTS: Final = 50
OPS: Final = OPERATIONS_LEVEL
EXTENDED_PMU: Final = 100

#: ticks per millisecond
_UCYCLES_PER_MS: Final = 19_200
#: room for the device's description of itself, in bytes of JSON
_META_BYTES: Final = 4096
#: one input and one output port, because the device waits for all inputs and for all outputs
_PORTS: Final = 2

#: options that request statistics in addition to a level
_REQUESTS: Final = ("ddr_stats", "aic_pmu_recipe", "aic_pmu_events", "aic_profiling_type")


@dataclass(frozen=True, slots=True)
class StatsSettings:
    """Instrumentation of a program."""

    #: stats level, at least 40
    level: int
    #: true if statistics were requested, so that callers get a binding for them
    is_asked: bool
    #: samples of one inference, for rates
    batch: int
    #: true to count DDR traffic
    counts_ddr: bool = False
    #: events to count; empty for the events of a recipe, which are not public
    pmu_events: Sequence[int] = ()
    #: true to count hardware events
    has_pmu: bool = False
    #: the operations, from level 70 on
    table: OpsTable | None = field(default=None, repr=False)

    @property
    def op_level(self) -> int:
        """Level of the statistics of operations; 0 without these."""
        return self.level if self.level >= OPS else 0

    def capacity(self) -> dict[str, int]:
        """Return the capacity in records, by section.

        There are none for rings, because no input is pipelined. There are none for the events of individual
        operations, because the engine does not report these.
        """
        counts = {"CORE": 1, "THREAD": 1, "META": _META_BYTES}
        if self.level >= PORTS:
            counts["PORT"] = _PORTS
        if self.has_pmu:
            counts |= {"PMU_EVENTS": 1, "PMU": 1}
        if self.table is not None:
            counts["OP"] = self.table.executions
        return counts

    def buffer_bytes(self) -> int:
        """Return the size of the stats buffer."""
        return _core.stats_capacity(self.capacity())

    def message(self, buffer: int) -> dict[str, object]:
        """Return ``Stats`` of the network descriptor; zero values may be omitted."""
        message: dict[str, object] = {
            "buff_num": buffer,
            "stats_level": self.level,
            "op_stats_level": self.op_level,
            "batch_size": self.batch,
            "count_ddr_bw": self.counts_ddr,
            "utimer_freq_ms": _UCYCLES_PER_MS,
            # The field is signed, but event numbers are unsigned.
            "pmu_events": [(event + 2**31) % 2**32 - 2**31 for event in self.pmu_events],
            "pmu_stats_level": self.level if self.has_pmu and self.level >= EXTENDED_PMU else 0,
        }
        if self.table is not None:
            kinds = [_name_kind(op) for op in self.table.ops]
            message["ops_per_core"] = [len(kinds)]
            message["core_op_name_kinds"] = [{"tg_op_name_kinds": [{"op_name_kinds": kinds}]}]
        return message

    def operations(self, network: str) -> dict[str, object] | None:
        """Return the content of segment ``opstatsdesc.open``; None without a table."""
        if self.table is None:
            return None
        return {
            "version": 1,
            "network": network,
            "batch_size": self.batch,
            "ucycles_per_ms": _UCYCLES_PER_MS,
            "stats_level": self.level,
            "op_stats_level": self.op_level,
            "pmu_events": list(self.pmu_events),
            "groups": ["CPU"],
            "thread_groups": [0],
            "cores": [{"slice": 0, "ops": list(self.table.ops)}],
        }


def settings_of(options: CompileOptions, set_options: Mapping[str, object]) -> StatsSettings | None:
    """Return the instrumentation of a program; None if nothing is measured.

    The default level counts as requested if the option was set.
    """
    if options.stats_level < INFERENCES:
        return None
    asks = options.stats_level != INFERENCES or "stats_level" in set_options
    return StatsSettings(
        level=options.stats_level,
        is_asked=asks or any(set_options.get(name) or getattr(options, name, None) for name in _REQUESTS),
        batch=options.stats_batchsize,
        counts_ddr=options.ddr_stats,
        pmu_events=options.aic_pmu_events,
        has_pmu=bool(options.aic_pmu_events) or options.aic_pmu_recipe is not None,
    )


def _name_kind(op: Mapping[str, Any]) -> dict[str, object]:
    """Return ``OpNameKind`` of an entry, which is longer than a message can be."""
    return {
        "name": op["name"],
        "kind": op["kind"],
        "type": op["types"],
        "memory": op["memory"],
        "shape": op.get("shape", ""),
        "output_size": op["output_bytes"],
        "attributes": op.get("attributes", ""),
        "operands": list(op.get("operands", ())),
    }
