"""Duration of measurements."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """Repetitions and durations."""

    quick: bool
    #: Number of calls that are timed in turns.
    batches: int
    batch_s: float
    #: Duration of one throughput figure.
    throughput_s: float
    #: New processes per side.
    processes: int
    imports: int
    #: Number of runs in the leak test.
    tiny_runs: int


FULL = Effort(
    quick=False, batches=11, batch_s=0.3, throughput_s=1.0, processes=9, imports=21, tiny_runs=10_000
)
#: A short run shows only that everything works; its ranges have little meaning.
QUICK = Effort(
    quick=True, batches=9, batch_s=0.03, throughput_s=0.2, processes=3, imports=5, tiny_runs=10_000
)
