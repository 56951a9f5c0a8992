"""What the command line of ``qaic-runner`` says about profiling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from qaic.support.profiling_types import REPORTING_RATES_MS, SAMPLING_RATES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

#: types that a number of inferences ends
COUNTED = ("stats", "trace", "latency", "raw_device_stats")
#: types that a duration ends
STREAMED = ("trace_stream", "latency_stream")

_COUNTED_ONLY = ("start_iter", "num_samples")
_STREAMED_ONLY = ("duration", "sampling_rate", "reporting_rate")


class Profiling(NamedTuple):
    """What is recorded of a run, and where it goes."""

    #: each type once, in the order of the command line
    types: tuple[str, ...]
    folder: str
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


def add_arguments(made: argparse.ArgumentParser, whole: Callable[[int], Callable[[str], int]]) -> None:
    """Declare the options. ``whole`` makes the type of whole numbers from a least one on."""
    types = (*COUNTED, *STREAMED)
    made.add_argument(
        "--aic-profiling-type",
        "--aic-profiling-format",
        action="append",
        choices=types,
        metavar="TYPE",
        help=f"record inferences; repeatable: {', '.join(types)} (the second name is deprecated)",
    )
    options: dict[str, dict[str, Any]] = {
        "--aic-profiling-start-iter": {
            "type": whole(0),
            "metavar": "N",
            "help": "first inference that is recorded (default 0)",
        },
        "--aic-profiling-start-delay": {
            "type": whole(0),
            "metavar": "MS",
            "help": "record nothing until this long after the begin (default 0)",
        },
        "--aic-profiling-num-samples": {
            "type": whole(1),
            "metavar": "N",
            "help": "inferences of each activation that are recorded, at most (default 1)",
        },
        "--aic-profiling-duration": {
            "type": whole(1),
            "metavar": "MS",
            "help": "how long a stream lasts (default: as long as the run)",
        },
        "--aic-profiling-sampling-rate": {
            "choices": tuple(SAMPLING_RATES),
            "help": "part of the inferences that a stream records (default full)",
        },
        "--aic-profiling-reporting-rate": {
            "type": int,
            "choices": REPORTING_RATES_MS,
            "help": f"milliseconds between reports of a stream (default {REPORTING_RATES_MS[0]})",
        },
        "--aic-profiling-out-dir": {
            "metavar": "DIR",
            "help": "where to write; made if needed (default .)",
        },
    }
    for name, details in options.items():
        made.add_argument(name, **details)


def contradiction(options: argparse.Namespace) -> str | None:
    """Say which types would write the same file."""
    types = options.aic_profiling_type or ()
    for stream in STREAMED:
        counted = stream.removesuffix("_stream")
        if stream in types and counted in types:
            return f"--aic-profiling-type {counted} and {stream} write the same file; give one of them"
    return None


def without_effect(options: argparse.Namespace) -> list[str]:
    """Options that were given and that no recorded type makes use of."""
    types = options.aic_profiling_type or ()
    used = {"start_delay", "out_dir"} if types else set()
    if set(types) & set(COUNTED):
        used |= set(_COUNTED_ONLY)
    if set(types) & set(STREAMED):
        used |= set(_STREAMED_ONLY)
    details = {*_COUNTED_ONLY, *_STREAMED_ONLY, "start_delay", "out_dir"}
    return [
        f"--{name.replace('_', '-')}"
        for name, value in vars(options).items()
        if value is not None
        and (detail := name.removeprefix("aic_profiling_")) in details
        and name != detail
        and detail not in used
    ]


def profiling_of(options: argparse.Namespace) -> Profiling | None:
    """Read what is to be recorded; ``None`` for nothing."""
    if not options.aic_profiling_type:
        return None
    duration_ms = options.aic_profiling_duration
    return Profiling(
        types=tuple(dict.fromkeys(options.aic_profiling_type)),
        folder=options.aic_profiling_out_dir or ".",
        first=options.aic_profiling_start_iter or 0,
        samples=options.aic_profiling_num_samples or 1,
        delay_s=(options.aic_profiling_start_delay or 0) / 1e3,
        duration_s=None if duration_ms is None else duration_ms / 1e3,
        sampling=SAMPLING_RATES[options.aic_profiling_sampling_rate or "full"],
        period_s=(options.aic_profiling_reporting_rate or REPORTING_RATES_MS[0]) / 1e3,
    )
