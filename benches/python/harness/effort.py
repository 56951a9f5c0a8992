"""Duration of measurements."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """Repetitions and durations."""

    quick: bool
    #: of calls timed in turns
    batches: int
    batch_s: float
    #: of one throughput figure
    throughput_s: float
    #: fresh processes per side
    processes: int
    imports: int
    #: of the leak test
    tiny_runs: int


FULL = Effort(
    quick=False, batches=11, batch_s=0.3, throughput_s=1.0, processes=9, imports=21, tiny_runs=10_000
)
#: To see that everything works; the ranges say little.
QUICK = Effort(
    quick=True, batches=9, batch_s=0.03, throughput_s=0.2, processes=3, imports=5, tiny_runs=10_000
)
