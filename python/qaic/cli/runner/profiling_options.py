"""Profiling options on the command line of ``qaic-runner``."""

from pathlib import Path
from typing import NamedTuple

from qaic.options.rows.runner import COUNTED, STREAMED, RunnerOptions
from qaic.support.program_names import REPORTING_RATES_MS, SAMPLING_RATES

_COUNTED_ONLY = ("start_iter", "num_samples")
_STREAMED_ONLY = ("duration", "sampling_rate", "reporting_rate")


class Profiling(NamedTuple):
    """The recordings of a run, and their files."""

    #: each type once, in the order of the command line
    types: tuple[str, ...]
    folder: Path
    #: first inference of the program that a counted type records
    first: int
    #: inferences of each activation that a counted type records
    samples: int
    delay_s: float
    #: None until the run ends
    duration_s: float | None
    #: every how many inferences a streamed type records one
    sampling: int
    period_s: float


def contradiction(options: RunnerOptions) -> str | None:
    """Return an error if two types would write the same file."""
    types = options.aic_profiling_type
    for stream in STREAMED:
        counted = stream.removesuffix("_stream")
        if stream in types and counted in types:
            return f"--aic-profiling-type {counted} and {stream} write the same file; give one of them"
    return None


def without_effect(options: RunnerOptions) -> tuple[str, ...]:
    """Options that were given and that no recorded type makes use of."""
    types = options.aic_profiling_type
    used = {"start_delay", "out_dir"} if types else set()
    if set(types) & set(COUNTED):
        used |= set(_COUNTED_ONLY)
    if set(types) & set(STREAMED):
        used |= set(_STREAMED_ONLY)
    details = {*_COUNTED_ONLY, *_STREAMED_ONLY, "start_delay", "out_dir"}
    return tuple(
        f"--aic-profiling-{detail.replace('_', '-')}"
        for name, value in vars(options).items()
        if value is not None
        and (detail := name.removeprefix("aic_profiling_")) in details
        and name != detail
        and detail not in used
    )


def profiling_of(options: RunnerOptions) -> Profiling | None:
    """Read what is to be recorded; ``None`` for nothing."""
    if not options.aic_profiling_type:
        return None
    duration_ms = options.aic_profiling_duration
    return Profiling(
        types=tuple(dict.fromkeys(options.aic_profiling_type)),
        folder=options.aic_profiling_out_dir or Path(),
        first=options.aic_profiling_start_iter or 0,
        samples=options.aic_profiling_num_samples or 1,
        delay_s=(options.aic_profiling_start_delay or 0) / 1e3,
        duration_s=None if duration_ms is None else duration_ms / 1e3,
        sampling=SAMPLING_RATES[options.aic_profiling_sampling_rate or "full"],
        period_s=int(options.aic_profiling_reporting_rate or REPORTING_RATES_MS[0]) / 1e3,
    )
