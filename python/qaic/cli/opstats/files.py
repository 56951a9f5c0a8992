"""Which stats buffers a directory holds, what belongs together, and what outputs are called."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qaic.errors import QaicError, StatsError
from qaic.stats.opening import FILE_NAME, FILE_PATTERN
from qaic.support.program_names import STATS_OUTPUT

_SLICE: Final = re.compile(r"(?P<network>.+)_slice(?P<slice>\d+)", re.DOTALL)
#: more devices than a program can have
_MOST_SLICES: Final = 1 << 16
_BUFFER_NAME: Final = f"-{STATS_OUTPUT}"


@dataclass(frozen=True)
class StatsFile:
    """The stats buffer that one device wrote for one inference."""

    path: Path
    sample: tuple[str, int, int, int]
    """Prefix, program, activation (-1 where the name has none) and inference."""
    network: str
    """Without the slice."""
    slice: int | None
    """Device of the program, in program order; ``None`` where there is one."""

    @property
    def buffer(self) -> str:
        """The prefix of output names: the file name before the name of the binding."""
        return self.path.name[: self.path.name.rindex(_BUFFER_NAME)]


def hints_of(error: QaicError | OSError, option: str = "--qpc") -> tuple[str, ...]:
    """Return what helps, in the words of the command line.

    Parameters
    ----------
    error : QaicError or OSError
        What is wrong with a buffer.
    option : str
        The option that takes the container of the buffer.
    """
    if not isinstance(error, QaicError):
        return ()
    if error.code == "stats.other_program":
        return (f"{option} takes the container of the buffers; --force reads the buffers anyway",)
    return tuple(error.hints)


def stats_file(path: Path) -> StatsFile | None:
    """Return the facts in a file name; ``None`` if it is not that of a stats buffer."""
    match = FILE_NAME.fullmatch(path.name)
    if match is None:
        return None
    network = match["network"]
    sliced = _SLICE.fullmatch(network)
    number = int(sliced["slice"]) if sliced else _MOST_SLICES
    sample = (
        match["prefix"],
        int(match["program"]),
        int(match["activation"] or -1),
        int(match["inference"]),
    )
    if sliced is None or number >= _MOST_SLICES:
        return StatsFile(path, sample, network, None)
    return StatsFile(path, sample, sliced["network"], number)


def files_in(directory: Path) -> list[StatsFile]:
    """Return the stats buffers of a directory in the order of their names.

    Raises
    ------
    StatsError
        There are none.
    OSError
        The directory cannot be read.
    """
    found = [file for path in sorted(directory.iterdir()) if (file := stats_file(path)) is not None]
    if not found:
        raise StatsError(
            f"{directory}: no file is named {FILE_PATTERN}",
            code="stats.no_buffers",
            hints=("such files come from qaic-runner with --aic-profiling-type=raw_device_stats",),
        )
    return found


def samples(directory: Path) -> list[list[StatsFile]]:
    """Return the stats buffers of a directory: per inference those of its devices. Errors as `files_in`."""
    found = files_in(directory)
    by_sample: dict[tuple[str, int, int, int], list[StatsFile]] = {}
    for file in sorted(found, key=lambda file: (file.sample, file.slice or 0, file.path.name)):
        by_sample.setdefault(file.sample, []).append(file)
    return list(by_sample.values())


def devices(files: Iterable[StatsFile]) -> list[int]:
    """Return the numbers of the devices that wrote these, each once."""
    return sorted({file.slice or 0 for file in files})


def summary_name(file: StatsFile) -> str:
    """Return the name of a summary."""
    return f"{file.buffer}.qaic-opstats.summary.txt"


def trace_name(files: list[StatsFile], form: str) -> str:
    """Return the name of a trace of one device, or of several in one file."""
    merged = "-merged" if len(files) > 1 else ""
    ending = {"json": "json", "perfetto": "pftrace"}[form]
    return f"{files[0].buffer}{merged}.qaic-opstats.trace.{ending}"
