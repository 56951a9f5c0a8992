"""Compiled programs by the content they were made from.

Layout: ``<cache>/<key>/programqpc.bin``, ``<cache>/index/`` (see `digest`). The key covers the model's
content, the options, the version of this package and of the plan, never a path. A program is written to a
temporary file and renamed, so a reader sees a whole program or none; a lock file per key makes others wait
instead of compiling the same twice, and where locks do not work the loser's rename is harmless because both
files are equal.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import logging
import os
import shutil
import struct
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qaic import _core
from qaic.compiler.backend.cpu.qpc_writer import canonical_json
from qaic.compiler.cache_contents import (
    LOCK_NAME,
    locked,
    note_use,
    remove_leftovers,
    shrink,
    size_limit,
)
from qaic.compiler.frontend.files.content_digest import DigestIndex
from qaic.errors import QpcError
from qaic.support.atomic_io import write_replacing
from qaic.support.open_regular import open_regular
from qaic.support.program_names import QPC_FILE_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_log = logging.getLogger("qaic.compiler")

#: changes when the meaning of cached files changes without a change of version
_FORMAT: Final = 6

#: position of the u64 container size in the header
_SIZE_AT: Final = 8


class Cache:
    """A folder of compiled programs.

    Parameters
    ----------
    folder : Path
        Existing, writable folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = DigestIndex(folder / "index")

    def lookup(self, key: str) -> Path | None:
        """Return the program of a key; a damaged one counts as absent."""
        path = self.folder / key / QPC_FILE_NAME
        if not (is_whole(path) and _survived(path)):
            return None
        note_use(path)
        return path

    def build(self, key: str, write: Callable[[Path], None], *, anew: bool = False) -> Path:
        """Return the program of a key, writing it if no other process did so meanwhile; may wait for that.

        Parameters
        ----------
        key : str
            Cache key.
        write : callable
            Writes the program to the path it is given, which does not exist.
        anew : bool
            Write it even if it is there.
        """
        entry = self.folder / key
        entry.mkdir(parents=True, exist_ok=True)
        path = entry / QPC_FILE_NAME
        limit = size_limit()
        remove_leftovers(self.folder)
        with locked(entry / LOCK_NAME) as alone:
            is_there = is_whole(path) and _survived(path)
            if is_there and not anew:
                return path
            if not is_there and path.exists():
                _log.warning("the cached program %s is damaged; it is compiled again", path)
            if alone:
                for leftover in entry.glob("*.tmp"):
                    leftover.unlink(missing_ok=True)
            write_replacing(path, write)
            _mark(path)
        if limit is not None:
            shrink(self.folder, limit, keep=path)
        return path


def cache_key(model_digest: str, options: Mapping[str, object]) -> str:
    """Derive the key of a compilation."""
    identity = {"format": _FORMAT, "model": model_digest, "options": options, "version": _core.__version__}
    return hashlib.sha256(canonical_json(identity)).hexdigest()


def is_whole(path: Path) -> bool:
    """Whether a file is a container of the size it states, with a table that can be read."""
    try:
        with open_regular(path) as file:
            header = file.read(_SIZE_AT + 8)
            size = os.fstat(file.fileno()).st_size
        if len(header) < _SIZE_AT + 8 or struct.unpack_from("<Q", header, _SIZE_AT)[0] != size:
            return False
        _core.Qpc(str(path))
    except (OSError, QpcError):
        return False
    return True


def _survived(path: Path) -> bool:
    """Whether all of a program reached the disk.

    Programs are not forced to disk when they are written, for that would cost more than the rest of a
    compilation. While the machine runs, what was written is what is read; a program from before the machine
    was started is checked by its CRCs once, because a crash may have left holes in it.
    """
    if _mark_of(path).exists():
        return True
    if _core.validate_container(str(path)):
        return False
    _mark(path)
    return True


def _mark(path: Path) -> None:
    """Remember that a program is sound for as long as the machine runs."""
    with contextlib.suppress(OSError):
        _mark_of(path).touch()


def _mark_of(path: Path) -> Path:
    return path.with_name(f".sound-{boot_id()}")


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Identify this run of the machine; where the kernel does not tell, this process."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return f"process-{os.getpid()}-{os.urandom(8).hex()}"


def cache_folder() -> Path:
    """Folder of the cache that the environment names; it need not exist.

    Raises
    ------
    RuntimeError
        There is no home folder.
    """
    configured = os.environ.get("QAIC_CACHE_DIR")
    if configured:
        return Path(configured).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    folder = Path(base) if base and Path(base).is_absolute() else Path("~/.cache").expanduser()
    return folder / "openqaic"


def open_cache() -> Cache:
    """Open the cache that the environment names; where it cannot be written, one of this process alone."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, RuntimeError) as error:
        return Cache(_private_folder(str(folder), str(error)))
    return Cache(folder)


@lru_cache(maxsize=1)
def _private_folder(wanted: str, reason: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="openqaic-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _log.warning("the compile cache %s cannot be written (%s); this process uses %s", wanted, reason, folder)
    return folder
