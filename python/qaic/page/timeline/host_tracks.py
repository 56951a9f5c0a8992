"""The host's view of inferences as rows of a timeline: one for each activation, a box for each stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from qaic.page.timeline import Labels, Track, lanes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

# Stages that follow one another; waiting in the queue comes before and is drawn as a wait.
_STAGES: Final = (
    ("pre-processing", "begun_ns", "inputs_ready_ns"),
    ("execution", "inputs_ready_ns", "executed_ns"),
    ("post-processing", "executed_ns", "outputs_ready_ns"),
    # TraceReader what the device measured, if it was to, and telling the caller.
    ("completion", "outputs_ready_ns", "completed_ns"),
)
# Inferences up to which each has a name of its own.
_MOST_NAMED: Final = 50_000


def host_tracks(times: NDArray[Any], origin_ns: float, labels: Labels) -> Iterator[Track]:
    """Yield the rows of the host.

    Parameters
    ----------
    times
        Samples of a profiler, in nanoseconds of its clock.
    origin_ns
        Where the begin of the first sample is on the time of the page.
    labels
        Names of the timeline; those of the inferences are added.
    """
    named = len(times) <= _MOST_NAMED
    first = int(times["enqueued_ns"].min()) if len(times) else 0
    programs = np.unique(times["program"])
    for program in programs.tolist():
        mine = times[times["program"] == program]
        for activation in np.unique(mine["activation"]).tolist():
            samples = mine[mine["activation"] == activation]
            name = f"activation {activation}" + (f" of program {program}" if len(programs) > 1 else "")
            yield from lanes(_track(name, samples, first, origin_ns, labels, named=named))


def _track(
    name: str, samples: NDArray[Any], first: int, origin_ns: float, labels: Labels, *, named: bool
) -> Track:
    starts, durations, numbers, waits = [], [], [], []
    for place, (stage, begin, end) in enumerate(_STAGES):
        start = samples[begin].astype(np.int64)
        # A stage that was not passed has the time of the one before.
        durations.append(np.maximum(samples[end].astype(np.int64) - start, 0))
        starts.append(start - first)
        waited = start - samples["enqueued_ns"].astype(np.int64) if place == 0 else np.zeros_like(start)
        waits.append(np.maximum(waited, 0))
        if named:
            added = [labels.add(f"inference {number}", stage) for number in samples["inference"].tolist()]
            numbers.append(np.array(added, np.int64))
        else:
            numbers.append(np.full(len(samples), labels.add(stage, stage), np.int64))
    start, duration = np.concatenate(starts), np.concatenate(durations)
    order = np.argsort(start, kind="stable")
    order = order[duration[order] > 0]
    return Track(
        "host",
        name,
        start[order],
        duration[order],
        np.concatenate(numbers)[order],
        role="host",
        origin_ns=origin_ns,
        before=np.concatenate(waits)[order],
    )
