"""Atomic writing of files, and their folders.

A reader of a file that is being replaced gets the old or the new content. Work in progress is in folders of
one form, so the next process removes the folders of killed processes.
"""

import contextlib
import fcntl
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PREFIX: Final = ".openqaic-"
_SUFFIX: Final = ".tmp"
#: number of work folders with fixed names; processes reuse the folders of killed processes
_NUMBERED: Final = 8
#: bytes that are copied at a time; the system keeps such a block of a file in one large page
_BLOCK_BYTES: Final = 2 << 20


def is_work_folder(name: str) -> bool:
    """Return True if the name is that of a folder of :func:`work_folder`."""
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


@contextlib.contextmanager
def work_folder(parent: Path) -> Iterator[Path]:
    """Create a private folder in `parent` for work in progress; the end of the block removes it.

    The folder is locked while its process lives. Folders of killed processes are reused or removed.

    `parent` is an existing folder on the file system of the results. Raises OSError if it is not writable.
    """
    held: list[int] = []
    path = None
    try:
        path = _enter(parent, held)
        yield path
    finally:
        if path is not None:
            _remove_tree(path)
        for handle in held:
            os.close(handle)
        if path is None:
            # Ctrl-C may have created a folder that has no name here. Its lock ended with its descriptor.
            remove_abandoned(parent)


def check_writable(folder: Path) -> None:
    """Raise OSError with the name of the folder if no file can be created in it."""
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except OSError:
        # Some file systems have no files without a name.
        import tempfile

        try:
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(folder)) from error


def remove_abandoned(parent: Path) -> bool:
    """Remove work folders of killed processes; returns True if another process of this user works there."""
    is_in_use = False
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            # Another process may remove the folder first.
            with contextlib.suppress(FileNotFoundError):
                if is_work_folder(entry.name) and entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                    is_in_use |= not _remove_abandoned(Path(entry.path))
    return is_in_use


def _enter(parent: Path, held: list[int]) -> Path:
    """Return the first unused folder, empty and locked; `held` gets the descriptors that are to be closed."""
    numbered = range(_NUMBERED)
    for number in numbered:
        _remove_abandoned(_folder(parent, number))
    for name in itertools.chain(numbered, iter(lambda: os.urandom(8).hex(), None)):
        path = _folder(parent, name)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            if _lock(path, held, is_new=True):
                break
    return path


def _folder(parent: Path, name: object) -> Path:
    return parent / f"{_PREFIX}{name}{_SUFFIX}"


def _lock(path: Path, held: list[int], *, is_new: bool = False) -> bool:
    """Lock a work folder of this user; returns False if another process has it.

    `held` gets the descriptor before it is locked, so Ctrl-C leaves no locked folder. If the file system has
    no locks, only a new folder is used.
    """
    try:
        held.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))
    except OSError:
        return False
    try:
        fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        if not is_new:
            return False
    # Another process may have removed the folder before it was locked.
    return _is_at(path, os.fstat(held[-1]))


def _remove_tree(path: Path) -> None:
    # A cache hit does not need this import, which loads libraries for compression.
    from shutil import rmtree

    rmtree(path, ignore_errors=True)


def _is_at(path: Path, found: os.stat_result) -> bool:
    try:
        return found.st_uid == os.geteuid() and os.path.samestat(path.lstat(), found)
    except FileNotFoundError:
        return False


def _remove_abandoned(path: Path) -> bool:
    held: list[int] = []
    try:
        is_abandoned = _lock(path, held)
        if is_abandoned:
            _remove_tree(path)
    finally:
        for handle in held:
            os.close(handle)
    return is_abandoned


def copy_replacing(source: Path, path: Path) -> None:
    """Copy a file aside and rename the copy to `path`, as :func:`write_replacing` does. Blocking."""
    from shutil import copyfileobj

    def write(aside: Path) -> None:
        with source.open("rb", buffering=0) as read, aside.open("wb") as written:
            copyfileobj(read, written, _BLOCK_BYTES)

    write_replacing(path, write)


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


def replace_bytes(path: Path, content: "Buffer") -> None:
    """Write a file with the given content, as :func:`write_replacing`."""
    write_replacing(path, lambda aside: aside.write_bytes(content))
