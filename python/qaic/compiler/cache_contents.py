"""What lies in the compile cache: programs with their sizes, and what processes that ended early left behind.

A folder that a process works in is locked by it, for as long as it lives and however it ends. So what is not
locked belongs to no process and is removed by the next one that writes to the cache.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qaic.errors import OptionError
from qaic.support.program_names import QPC_FILE_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger("qaic.compiler")

LOCK_NAME: Final = ".lock"

#: suffix of everything that is not yet, or no longer, of use
_UNFINISHED: Final = ".tmp"
#: longer than a file of the index takes to be written
_INDEX_WRITE_S: Final = 3600
_SIZE_SUFFIXES: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True)
class Entry:
    """A program in the cache.

    Parameters
    ----------
    path : Path
        The program.
    nbytes : int
        Bytes of it.
    used_ns : int
        When it was last wanted, in nanoseconds since the epoch.
    """

    path: Path
    nbytes: int
    used_ns: int


def entries(folder: Path) -> list[Entry]:
    """List the programs in a cache, the one that was last wanted first."""
    found = []
    for path in folder.glob(f"*/{QPC_FILE_NAME}"):
        with contextlib.suppress(OSError):
            stat = path.stat()
            found.append(Entry(path, stat.st_blocks * 512, max(stat.st_atime_ns, stat.st_mtime_ns)))
    return sorted(found, key=lambda entry: entry.used_ns, reverse=True)


def note_use(program: Path) -> None:
    """Remember that a program was wanted now, whatever the file system does about times of access."""
    with contextlib.suppress(OSError):
        os.utime(program, ns=(time.time_ns(), program.stat().st_mtime_ns))


def size_limit() -> int | None:
    """Read the bytes that the programs of a cache may have together; None without a limit.

    Raises
    ------
    OptionError
        ``QAIC_CACHE_LIMIT`` is no size.
    """
    given = os.environ.get("QAIC_CACHE_LIMIT", "").strip()
    if not given:
        return None
    limit = parse_size(given)
    if limit is None:
        message = f"QAIC_CACHE_LIMIT is {given!r}; bytes are expected, as 500M or 20G"
        raise OptionError(message, code="option.cache_limit", context={"found": given})
    return limit


def parse_size(text: str) -> int | None:
    """Read bytes, as ``500M`` or ``20G``, by powers of 1024; None when it is no size."""
    match = re.fullmatch(r"(\d{1,18})\s*([KMGT]?)(?:i?B)?", text, re.IGNORECASE | re.ASCII)
    return None if match is None else int(match[1]) * _SIZE_SUFFIXES[match[2].upper()]


def shrink(folder: Path, limit: int, *, keep: Path | None = None) -> int:
    """Remove the programs that were not wanted for the longest time, until the others are within a limit.

    Parameters
    ----------
    folder : Path
        The cache.
    limit : int
        Bytes that may stay.
    keep : Path or None
        A program that stays whatever its size.

    Returns
    -------
    int
        Bytes that are free again.
    """
    listed = sorted(entries(folder), key=lambda entry: entry.path != keep)
    total = freed = 0
    for entry in listed:
        total += entry.nbytes
        if total > limit and entry.path != keep and _remove_program(entry.path):
            total -= entry.nbytes
            freed += entry.nbytes
    return freed


def _remove_program(path: Path) -> bool:
    """Remove a program that no process is making; its lock stays, for another may wait for it."""
    with locked(path.with_name(LOCK_NAME), wait=False) as alone:
        if not alone:
            return False
        for file in path.parent.iterdir():
            if file.name != LOCK_NAME:
                file.unlink(missing_ok=True)
    return True


def remove_leftovers(folder: Path) -> None:
    """Remove what processes that are gone began and did not finish. What cannot be removed stays."""
    with contextlib.suppress(OSError):
        # Its owner locks a new folder before it lets this lock go.
        with locked(folder / LOCK_NAME) as alone:
            if alone:
                for path in folder.glob(f"*{_UNFINISHED}"):
                    _remove_work_folder(path)
        for path in folder.glob(f"*/.*{_UNFINISHED}"):
            with locked(path.with_name(LOCK_NAME), wait=False) as alone:
                if alone:
                    path.unlink(missing_ok=True)
        for path in folder.glob(f"index/*{_UNFINISHED}"):
            if time.time_ns() - path.stat().st_mtime_ns > _INDEX_WRITE_S * 1_000_000_000:
                path.unlink(missing_ok=True)


def _remove_work_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    else:
        _log.info("removed %s, which a process that ended early left behind", path)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(handle)


@contextlib.contextmanager
def work_folder(folder: Path, purpose: str) -> Iterator[Path]:
    """Make a folder in a cache for what is of no use afterwards; that of a killed process is removed later.

    Parameters
    ----------
    folder : Path
        The cache.
    purpose : str
        What its name begins with.
    """
    remove_leftovers(folder)
    with contextlib.ExitStack() as stack:
        with locked(folder / LOCK_NAME):
            made = stack.enter_context(
                tempfile.TemporaryDirectory(prefix=f"{purpose}-", suffix=_UNFINISHED, dir=folder)
            )
            handle = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, handle)
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield Path(made)


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock file; yields whether it could be locked. Blocks until it is free, if it is to wait."""
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            _log.debug("no lock at %s: %s", path, error)
            yield False
            return
        yield True
