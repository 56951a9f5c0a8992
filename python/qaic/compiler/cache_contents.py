"""Contents of the compile cache: programs with their sizes, locks, and the programs that processes use.

A process locks its work folders and the list of programs that it uses. The system releases these locks when
the process ends for any reason, so unlocked work folders and lists belong to no process and are removed.
"""

import atexit
import contextlib
import fcntl
import logging
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from qaic.errors import OptionError
from qaic.support.atomic_io import remove_abandoned
from qaic.support.program_names import QPC_FILE_NAME

_log = logging.getLogger("qaic.compiler")

LOCK_NAME: Final = ".lock"

_USES_PREFIX: Final = ".in-use-"
#: seconds to wait for a lock whose holder does not write a program
_PATIENCE_S: Final = 10.0
_POLL_S: Final = 0.05
_SIZE_SUFFIXES: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True)
class Entry:
    """A program in the cache."""

    path: Path
    #: size in bytes
    nbytes: int
    #: time of the last use, in nanoseconds since the epoch
    used_ns: int


def entries(folder: Path) -> list[Entry]:
    """List the programs in a cache, the most recently requested first.

    Returns no entries for a folder in which another user may write, because that user could replace folders
    by links. A time in the future counts as the oldest; it precedes a correction of the system's clock.
    """
    found: list[Entry] = []
    if not is_own(folder):
        return found
    for path in folder.glob(f"*/{QPC_FILE_NAME}"):
        with contextlib.suppress(OSError):
            stat = path.stat()
            used_ns = max(0, stat.st_atime_ns, stat.st_mtime_ns)
            # Another process may have used the program since the list was made.
            is_past = used_ns <= time.time_ns()
            found.append(Entry(path, stat.st_blocks * 512, used_ns if is_past else 0))
    return sorted(found, key=lambda entry: entry.used_ns, reverse=True)


def size_limit() -> int | None:
    """Read the limit for the total size of a cache's programs, in bytes; None without a limit.

    Raises OptionError if ``QAIC_CACHE_LIMIT`` is not a size.
    """
    given = os.environ.get("QAIC_CACHE_LIMIT", "").strip()
    if not given:
        return None
    limit = parse_size(given)
    if limit is None:
        message = f"QAIC_CACHE_LIMIT is {given!r}; a size such as 500M or 20G is expected"
        raise OptionError(message, code="option.cache_limit", context={"found": given})
    return limit


def parse_size(text: str) -> int | None:
    """Parse bytes, as ``500M`` or ``20G``, by powers of 1024; None if the text is not a size."""
    match = re.fullmatch(r"(\d{1,18})\s*([KMGT]?)(?:i?B)?", text, re.IGNORECASE | re.ASCII)
    return None if match is None else int(match[1]) * _SIZE_SUFFIXES[match[2].upper()]


def shrink(folder: Path, limit: int) -> int:
    """Remove the least recently requested programs until the others are within a limit.

    Programs in use by a live process stay, whatever their size. Returns the number of freed bytes.
    """
    found = entries(folder)
    used = _used(folder) if found else set()
    listed = sorted(found, key=lambda entry: entry.path.parent.name not in used)
    total = freed = 0
    for entry in listed:
        total += entry.nbytes
        if total > limit and entry.path.parent.name not in used and _remove_program(entry.path):
            total -= entry.nbytes
            freed += entry.nbytes
    return freed


def _remove_program(path: Path) -> bool:
    """Remove a program that no process is writing; its lock file stays, because others may wait for it."""
    with locked(path.with_name(LOCK_NAME)) as alone, contextlib.suppress(OSError):
        # Another process may have started to use the program while others were removed.
        if not alone or path.parent.name in _used(path.parent.parent):
            return False
        import shutil

        with os.scandir(path.parent) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                elif entry.name != LOCK_NAME:
                    with contextlib.suppress(OSError):
                        Path(entry.path).unlink(missing_ok=True)
    return not path.exists()


def remove_leftovers(folder: Path) -> None:
    """Remove the unfinished work of killed processes, where permissions allow it."""
    # One process at a time is enough.
    if not is_own(folder):
        return
    with locked(folder / LOCK_NAME) as alone, contextlib.suppress(OSError):
        if not alone:
            return
        remove_abandoned(folder)
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    remove_abandoned(Path(entry.path))


@dataclass(slots=True)
class _Uses:
    """The programs that this process uses in one cache, listed in a file that it locks."""

    handle: int
    keys: set[str] = field(default_factory=set)


_uses: dict[Path, _Uses] = {}


def note_use(program: Path) -> None:
    """Record a request for a program, and keep the program until this process ends."""
    with contextlib.suppress(OSError):
        # The file system may not record access times.
        os.utime(program, ns=(time.time_ns(), program.stat().st_mtime_ns))
    folder, key = program.parent.parent, program.parent.name
    with contextlib.suppress(OSError):
        # Concurrent threads may each create a list, which is harmless.
        if folder not in _uses:
            _uses[folder] = _Uses(_new_list(folder))
        if key not in _uses[folder].keys:
            os.write(_uses[folder].handle, f"{key}\n".encode())
            _uses[folder].keys.add(key)


def _new_list(folder: Path) -> int:
    while True:
        path = folder / f"{_USES_PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        # Another process may have removed the list before this one locked it.
        if path.exists():
            atexit.register(_remove_list, path, os.getpid())
            return handle
        os.close(handle)


def _remove_list(path: Path, owner: int) -> None:
    # A forked process inherits the list and the exit handlers.
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _used(folder: Path) -> set[str]:
    """Return the keys of the programs that live processes use."""
    used: set[str] = set()
    for path in folder.glob(f"{_USES_PREFIX}*"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                used.update(file.read().decode("ascii", "replace").split())
            else:
                path.unlink(missing_ok=True)
    return used


def is_trusted(found: os.stat_result) -> bool:
    """Return True if only this user and the administrator can have written a file or folder."""
    return found.st_uid in {0, os.geteuid()} and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def is_own(folder: Path) -> bool:
    """Return True if only this user can write in a folder; a link of another user is not followed."""
    with contextlib.suppress(OSError):
        return folder.lstat().st_uid in {0, os.geteuid()} and is_trusted(folder.stat())
    return False


@contextlib.contextmanager
def locked(path: Path, *, workplace: Path | None = None) -> Iterator[bool]:
    """Hold a lock file that only this user can lock; yields True if it was locked.

    Waits as long as a process of this user has a work folder in `workplace`, and otherwise for 10 s. Does not
    wait without `workplace`.
    """
    handle = _open_lock(path)
    if handle is None:
        yield False
        return
    try:
        yield _acquired(handle, path, workplace)
    finally:
        os.close(handle)


def _open_lock(path: Path) -> int | None:
    """Open a lock file; replaces a file of another user."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    for _ in range(2):
        handle = None
        with contextlib.suppress(OSError):
            handle = os.open(path, flags, 0o600)
        if handle is not None:
            found = os.fstat(handle)
            if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
                # Read permission is enough to lock a file.
                os.fchmod(handle, 0o600)
                return handle
            os.close(handle)
        with contextlib.suppress(OSError):
            path.unlink()
    _log.debug("no lock at %s", path)
    return None


def _acquired(handle: int, path: Path, workplace: Path | None) -> bool:
    waited_s = 0.0
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if workplace is not None:
                waited_s = 0.0 if remove_abandoned(workplace) else waited_s + _POLL_S
            if workplace is None or waited_s > _PATIENCE_S:
                _log.debug("the lock %s is held by another process", path)
                return False
            time.sleep(_POLL_S)
        except OSError as error:
            _log.debug("no lock at %s: %s", path, error)
            return False
        else:
            return True
