"""Rates of profiles, and the names of the files that hold them.

Programs, activations and inferences count from 0; inferences by program.
"""

from __future__ import annotations

from typing import Final

#: word -> every how many inferences of an activation one is recorded
SAMPLING_RATES: Final = {"full": 1, "half": 2, "fourth": 4, "eighth": 8, "sixteenth": 16}

#: milliseconds between two reports of a stream; the first is the default
REPORTING_RATES_MS: Final = (500, 1000, 2000, 4000)

#: what a file name begins with where nothing else is asked for
PREFIX: Final = "aic-profiling"
#: output binding with the stats buffer, which no tensor of a model may be called as; of several devices each
#: has one, whose name goes on with an underscore
STATS_OUTPUT: Final = "aiccyclecounts"

#: of longer names of networks this much of either end is kept: a file name has room for 255 bytes, and what
#: is made of a buffer is called as it, with more behind. The end tells devices from each other
_BEGIN_BYTES: Final = 80
_END_BYTES: Final = 37


def latency_name(program: int, *, prefix: str = PREFIX) -> str:
    """Return the name of a latency report."""
    return f"{prefix}-program-{program}-latency.txt"


def trace_name(program: int, *, prefix: str = PREFIX) -> str:
    """Return the name of a trace."""
    return f"{prefix}-program-{program}-trace.json"


def metrics_name(program: int, *, prefix: str = PREFIX) -> str:
    """Return the name of a report of device metrics."""
    return f"{prefix}-program-{program}-stats.txt"


def summary_name(program: int, activation: int, inference: int, *, prefix: str = PREFIX) -> str:
    """Return the name of the summary of one inference."""
    return f"{prefix}-program-{program}-activation-{activation}-inf-{inference}.txt"


def buffer_name(program: int, activation: int, inference: int, network: str, *, prefix: str = PREFIX) -> str:
    """Return the name of the stats buffer of one inference."""
    which = f"{prefix}-program-{program}-activation-{activation}-inf-{inference}"
    return f"{which}-{in_file_names(network)}-{STATS_OUTPUT}.bin"


def in_file_names(network: str) -> str:
    """Return the name of a network as file names have it."""
    name = "".join(char if char.isprintable() and char not in "/\\" else "_" for char in network)
    content = name.encode(errors="replace")
    if len(content) <= _BEGIN_BYTES + _END_BYTES:
        return name
    begin, end = (part.decode(errors="ignore") for part in (content[:_BEGIN_BYTES], content[-_END_BYTES:]))
    return f"{begin}...{end}"
