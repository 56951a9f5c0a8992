"""Finds the layout and the program of a stats buffer: :func:`open`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from qaic import _core
from qaic.errors import StatsError, StatsMismatchError, UnknownStatsLayoutError
from qaic.qpc import Qpc
from qaic.stats import layouts
from qaic.stats.buffer import StatsBuffer
from qaic.stats.card_descriptor import card_descriptors
from qaic.stats.descriptor import Descriptor
from qaic.support.program_names import STATS_OUTPUT, in_file_names

if TYPE_CHECKING:
    from typing_extensions import Buffer

    BufferSource = str | os.PathLike[str] | Buffer
else:
    Buffer = bytes | bytearray | memoryview
    BufferSource = str | os.PathLike[str] | Buffer

#: names of stats files
FILE_NAME: Final = re.compile(
    r"(?P<prefix>.+)-program-(?P<program>\d+)(?:-activation-(?P<activation>\d+))?-inf-(?P<inference>\d+)"
    r"-(?P<network>.+?)-(?P<buffer>aiccyclecounts(?:_.+_)?)\.bin",
    re.DOTALL,  # a network may be called as its model, over several lines
)
#: the pattern in messages
FILE_PATTERN: Final = "<prefix>-program-<P>[-activation-<A>]-inf-<I>-<network>-aiccyclecounts[_<slice>_].bin"


def open(  # noqa: A001 - as `gzip.open`, `tarfile.open`
    source: str | os.PathLike[str] | Buffer,
    *,
    qpc: str | os.PathLike[str] | Qpc | Descriptor | Sequence[Descriptor] | None = None,
    layout: str | None = None,
    force: bool = False,
    opstats_schema: str | os.PathLike[str] | bytes | None = None,
    check: bool = False,
) -> StatsBuffer:
    """Open the stats buffer of one inference.

    Parameters
    ----------
    source
        File of the buffer, which is memory-mapped, or its bytes. ``bytes`` are used in place, other objects
        are copied. Do not truncate a mapped file: as with ``numpy.memmap``, this ends the process. Replacing
        the file by another one is safe.
    qpc
        Container of the measured program (a path or an opened container), or its descriptors, of which the
        one that fits the buffer is used. Without it, the buffer has times but no names.
    layout
        Name of the layout; by default, the layout is detected.
    force
        True to open a buffer of another program. Its operation numbers may then belong to other operations.
    opstats_schema
        ``FileDescriptorSet``, or a file that contains one, for containers of newer vendor SDKs
        (:mod:`qaic.stats.card_descriptor`).
    check
        True to read and check every record now. Otherwise, opening takes microseconds at any size, and
        :meth:`StatsBuffer.check` checks the records later; summaries, traces and reports call it.

    Returns
    -------
    StatsBuffer
        The buffer.

    Raises
    ------
    FileNotFoundError
        The file does not exist.
    qaic.errors.UnknownStatsLayoutError
        No layout fits the buffer.
    qaic.errors.StatsMismatchError
        Another program wrote the buffer, or the program was compiled without statistics.
    qaic.errors.StatsFormatError, qaic.errors.StatsVersionError
        The buffer is damaged, or has a newer version.

    Examples
    --------
    >>> buffer = qaic.stats.open("x-aiccyclecounts.bin", qpc="program/")  # doctest: +SKIP
    >>> buffer.ops["dur_u"].sum()  # doctest: +SKIP
    """
    if qpc is None:
        candidates: list[Descriptor | None] = [None]
    else:
        candidates = list(descriptors(qpc, opstats_schema=opstats_schema))
        if not candidates and not force:
            message = "the program was compiled without statistics, so it has no stats buffers"
            hints = ("compile it with a stats level of 40 or more (70 for operations)",)
            raise StatsMismatchError(message, code="stats.no_descriptor", hints=hints)
        candidates = _by_likeliness(candidates, source) or [None]
    opened = _open_one_of(source, candidates, layout, force=force)
    if check:
        opened.check()
    return opened


def descriptors(
    qpc: str | os.PathLike[str] | Qpc | Descriptor | Sequence[Descriptor],
    *,
    opstats_schema: str | os.PathLike[str] | bytes | None = None,
) -> list[Descriptor]:
    """Return one descriptor for each device's program; empty if it was compiled without statistics.

    Raises
    ------
    qaic.errors.QpcError
        The container is malformed.
    qaic.errors.StatsFormatError
        The description of the operations is malformed.
    """
    if isinstance(qpc, Descriptor):
        return [qpc]
    if isinstance(qpc, Sequence) and not isinstance(qpc, str):
        return list(qpc)
    container = qpc if isinstance(qpc, Qpc) else Qpc(qpc)
    programs = [container] if container.is_program else list(container.slices.values())
    if opstats_schema is not None:
        found = [
            descriptor for program in programs for descriptor in card_descriptors(program, opstats_schema)
        ]
        if found:
            return found
    compiled = (_core.StatsDescriptor.of_qpc(program.compiled) for program in programs)
    return [Descriptor(descriptor) for descriptor in compiled if descriptor is not None]


def _by_likeliness(candidates: list[Descriptor | None], source: BufferSource) -> list[Descriptor | None]:
    """Move the program whose network is in the file name to the front."""
    if len(candidates) < 2 or not isinstance(source, str | os.PathLike):
        return candidates
    match = FILE_NAME.fullmatch(Path(source).name)
    network = match["network"] if match else None
    return sorted(candidates, key=lambda one: one is None or in_file_names(one.network) != network)


def _open_one_of(
    source: BufferSource, candidates: list[Descriptor | None], layout: str | None, *, force: bool
) -> StatsBuffer:
    if layout is not None and layout != layouts.OPEN_LAYOUT:
        return _foreign(layouts.find(layout), _bytes_of(source), candidates[0], force=force)
    mismatches = []
    for descriptor in candidates:
        compiled = None if descriptor is None else descriptor.compiled
        try:
            opened = _core.StatsBuffer(source, compiled, layout=layout)
        except StatsMismatchError as error:
            mismatches.append(error)
        except UnknownStatsLayoutError:
            buffer = _bytes_of(source)
            other = layouts.sure_of(buffer, descriptor)
            if other is None:
                raise
            return _foreign(other, buffer, descriptor, force=force)
        else:
            return StatsBuffer(opened, descriptor, layouts.OPEN_LAYOUT)
    if not force:
        raise mismatches[0]
    likeliest = candidates[0]
    compiled = None if likeliest is None else likeliest.compiled
    opened = _core.StatsBuffer(source, compiled, layout=layout, any_program=True)
    return StatsBuffer(opened, likeliest, layouts.OPEN_LAYOUT)


def _foreign(
    layout: layouts.StatsLayout, buffer: NDArray[np.uint8], descriptor: Descriptor | None, *, force: bool
) -> StatsBuffer:
    return StatsBuffer(layouts.decode(layout, buffer, descriptor, force=force), descriptor, layout.name)


def _bytes_of(source: BufferSource) -> NDArray[Any]:
    """Return the bytes, read-only."""
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if not path.stat().st_size:
            return np.frombuffer(b"\0", np.uint8)[:0]
        return np.memmap(path, np.uint8, mode="r")
    return np.frombuffer(memoryview(source).toreadonly().cast("B"), np.uint8)


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
    """Name without the slice."""
    slice: int | None
    """Device of the program, in program order; ``None`` where there is one."""

    @property
    def buffer(self) -> str:
        """The prefix of output names: the file name before the name of the binding."""
        return self.path.name[: self.path.name.rindex(_BUFFER_NAME)]


def stats_file(path: Path) -> StatsFile | None:
    """Return the facts in a file name; ``None`` if it is not the name of a stats buffer."""
    match = FILE_NAME.fullmatch(path.name)
    if match is None:
        return None
    network = match["network"]
    sliced = _SLICE.fullmatch(network)
    number = int(sliced["slice"]) if sliced else _MOST_SLICES
    sample = (match["prefix"], int(match["program"]), int(match["activation"] or -1), int(match["inference"]))
    if sliced is None or number >= _MOST_SLICES:
        return StatsFile(path, sample, network, None)
    return StatsFile(path, sample, sliced["network"], number)


def files_in(directory: Path) -> list[StatsFile]:
    """Return the stats buffers of a directory in the order of their names.

    Raises StatsError if there are none, and OSError if the directory cannot be read.
    """
    found = [file for path in sorted(directory.iterdir()) if (file := stats_file(path)) is not None]
    if not found:
        raise StatsError(
            f"{directory}: no file is named {FILE_PATTERN}",
            code="stats.no_buffers",
            hints=("such files come from qaic-runner with --aic-profiling-type=raw_device_stats",),
        )
    return found


def samples_in(directory: Path) -> list[list[StatsFile]]:
    """Return the stats buffers of a directory: a list of devices for each inference. Errors as `files_in`."""
    found = files_in(directory)
    by_sample: dict[tuple[str, int, int, int], list[StatsFile]] = {}
    for file in sorted(found, key=lambda file: (file.sample, file.slice or 0, file.path.name)):
        by_sample.setdefault(file.sample, []).append(file)
    return list(by_sample.values())


def devices_of(files: Iterable[StatsFile]) -> list[int]:
    """Return the numbers of the devices that wrote the files, without duplicates."""
    return sorted({file.slice or 0 for file in files})
