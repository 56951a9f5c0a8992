"""Atomic writing of files, and their folders.

A reader of a file that is being replaced gets the old or the new content. Work in progress is in folders of
one form, so the next process removes the folders of killed processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PREFIX: Final = ".openqaic-"
_SUFFIX: Final = ".tmp"
#: folders with a known name; of as many processes that work in one folder at once nothing stays
_NUMBERED: Final = 8


def is_work_folder(name: str) -> bool:
    """Return true if the name is that of a folder of :func:`work_folder`."""
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


@contextlib.contextmanager
def work_folder(parent: Path) -> Iterator[Path]:
    """Create a private folder in `parent` for work in progress; the end of the block removes it.

    The folder is locked while its process lives. Folders of killed processes are reused or removed.

    `parent` is an existing folder on the file system of the results. Raises OSError if it is not writable.
    """
    path, handle = _enter(parent)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


def remove_abandoned(parent: Path) -> bool:
    """Remove work folders of killed processes; returns true if another process of this user works there."""
    is_in_use = False
    with contextlib.suppress(OSError):
        for entry in os.scandir(parent):
            if is_work_folder(entry.name) and entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                is_in_use |= not _remove_abandoned(Path(entry.path))
    return is_in_use


def _enter(parent: Path) -> tuple[Path, int]:
    """Return the first unused folder, empty and locked."""
    mine = None
    for number in range(_NUMBERED):
        path = parent / f"{_PREFIX}{number}{_SUFFIX}"
        _remove_abandoned(path)
        if mine is None:
            try:
                path.mkdir(mode=0o700)
                handle = _lock(path, is_new=True)
            except FileExistsError:
                continue
            except BaseException:
                # Ctrl-C after the folder was created.
                _remove_abandoned(path)
                raise
            mine = None if handle is None else (path, handle)
    if mine is None:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, suffix=_SUFFIX, dir=parent))
        mine = path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return mine


def _lock(path: Path, *, is_new: bool = False) -> int | None:
    """Lock a work folder of this user; returns its descriptor, or None if another process has it.

    If the file system has no locks, only a new folder is used.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with contextlib.ExitStack() as closing:
        closing.callback(os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        except OSError:
            if not is_new:
                return None
        # Another process may have removed the folder before it was locked.
        if _is_at(path, os.fstat(handle)):
            closing.pop_all()
            return handle
    return None


def _is_at(path: Path, found: os.stat_result) -> bool:
    try:
        return found.st_uid == os.geteuid() and os.path.samestat(path.lstat(), found)
    except FileNotFoundError:
        return False


def _remove_abandoned(path: Path) -> bool:
    handle = _lock(path)
    if handle is None:
        return False
    shutil.rmtree(path, ignore_errors=True)
    os.close(handle)
    return True


def write_replacing(path: Path, write: Callable[[Path], object], *, work_parent: Path | None = None) -> None:
    """Write a file aside and rename it to `path`. Blocking.

    The new file keeps permissions and owner of the replaced file. Links are followed. Devices and pipes are
    written directly.

    `write` writes to the given path, which does not exist, and raises errors of writing and closing. The work
    folder is created in `work_parent`, on the file system of `path`; by default in the folder of `path`.
    Raises OSError, which names `path`, if the folder is not writable, and the errors of ``write``. After a
    failure the file is unchanged, and nothing else is left.
    """
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    parent = target.parent if work_parent is None else work_parent
    aside = None
    try:
        before = target.stat() if target.exists() else None
        if before is not None and not stat.S_ISREG(before.st_mode) and not stat.S_ISDIR(before.st_mode):
            write(target)
            return
        with work_folder(parent) as folder:
            aside = folder / target.name
            write(aside)
            if before is not None:
                _take_over(aside, before)
            aside.replace(target)
    except OSError as error:
        # The user knows the final path; the error of a copy names its source first.
        names = {error.filename, error.filename2} - {None}
        places = (str(parent / _PREFIX), str(aside))
        if error.errno and (not names or any(str(name).startswith(places) for name in names)):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def _take_over(aside: Path, before: os.stat_result) -> None:
    """Give a new file the owner and permissions of the file that it replaces."""
    if (before.st_uid, before.st_gid) != (aside.stat().st_uid, aside.stat().st_gid):
        # Only root can give files to other users.
        with contextlib.suppress(PermissionError):
            os.chown(aside, before.st_uid, before.st_gid)
    aside.chmod(stat.S_IMODE(before.st_mode))


def replace_bytes(path: Path, content: Buffer) -> None:
    """Write a file with the given content, as :func:`write_replacing`."""
    write_replacing(path, lambda aside: aside.write_bytes(content))
