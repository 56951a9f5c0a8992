"""Compiled programs, identified by the content of their sources.

Layout: ``<cache>/<key>/programqpc.bin``, ``<cache>/index/`` (see `digest`). The key covers the content of the
model, the options, and the versions of this package, of the plan and of the libraries that compute constants,
never a path. Programs are written atomically. A lock file per key makes other processes wait instead of
compiling the same program. Where locks do not work, the last rename wins, which is harmless because both
files are equal. A program is used only if no other user can have written it.
"""

import atexit
import contextlib
import errno
import hashlib
import logging
import os
import struct
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from qaic import _core
from qaic.compiler.cache_contents import LOCK_NAME, is_own, is_trusted, locked, note_use, shrink, size_limit
from qaic.compiler.frontend.files.content_digest import DigestIndex
from qaic.errors import QaicError, QpcError
from qaic.support.atomic_io import check_writable, work_folder, write_replacing
from qaic.support.json import canonical_json
from qaic.support.open_regular import open_regular
from qaic.support.program_names import QPC_FILE_NAME

_log = logging.getLogger("qaic.compiler")

#: changes when the meaning of cached files changes without a change of version
_FORMAT: Final = 8

#: position of the u64 container size in the header
_SIZE_AT: Final = 8


class Cache:
    """A folder of compiled programs. The folder exists and is writable."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = DigestIndex(folder / "index")

    def work_folder(self) -> AbstractContextManager[Path]:
        """Make a folder for programs that run during compilation; temporary folders may be in memory."""
        return work_folder(self.folder)

    def lookup(self, key: str) -> Path | None:
        """Return the program of a key; a damaged program or one of another user counts as absent."""
        path = self.folder / key / QPC_FILE_NAME
        if not path.exists():
            return None
        # Recording the use first keeps other processes from removing the program during the check.
        note_use(path)
        return path if _is_usable(path) else None

    def build(self, key: str, write: Callable[[Path], None], *, again: bool = False) -> Path:
        """Return the program of a key; writes it, or waits for another process that does.

        `write` gets a path that does not exist. `again` replaces an existing program.
        """
        entry = self.folder / key
        entry.mkdir(mode=0o700, parents=True, exist_ok=True)
        limit = size_limit()
        found = entry.stat()
        if found.st_uid != os.geteuid() or not is_trusted(found):
            return Cache(_private_folder(str(entry), "another user can write there")).build(key, write)
        path = entry / QPC_FILE_NAME
        with locked(entry / LOCK_NAME, workplace=self.folder):
            is_there = _is_usable(path)
            if is_there and not again:
                note_use(path)
                return path
            if not is_there and path.exists():
                _log.warning("the cached program %s is damaged or foreign; compiling the model again", path)
                path.unlink()
            # All programs are written in one folder; each writer removes the files of killed writers.
            try:
                write_replacing(path, write, work_parent=self.folder)
            except OSError as error:
                if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                    raise
                fixes = "`openqaic cache prune --limit 1G` makes room, QAIC_CACHE_DIR selects another folder"
                raise OSError(error.errno, f"{error.strerror}; {fixes}", error.filename) from error
            path.chmod(path.stat().st_mode & ~0o022)
            _mark(path)
            note_use(path)
        if limit is not None:
            shrink(self.folder, limit)
        return path


def cache_key(model_digest: str, options: Mapping[str, object]) -> str:
    """Derive the key of a compilation."""
    identity = {
        "format": _FORMAT,
        "model": model_digest,
        "options": options,
        "version": _core.__version__,
        "libraries": _library_versions(),
    }
    return hashlib.sha256(canonical_json(identity)).hexdigest()


@lru_cache(maxsize=1)
def _library_versions() -> dict[str, str]:
    """Return the versions of the libraries that influence a program."""
    versions = {name: _installed_version(name) for name in ("numpy", "onnx")}
    with contextlib.suppress(QaicError):
        versions["onnxruntime"] = _core.engine_info()[1]
    return versions


def _installed_version(name: str) -> str:
    """Find the version of a package without importing it, which takes longer than a cache hit."""
    found = find_spec(name)
    for place in (found and found.submodule_search_locations) or ():
        for installed in Path(place).parent.glob(f"{name}-*.dist-info"):
            return installed.stem.removeprefix(f"{name}-")
    return str(import_module(name).__version__)


def _is_usable(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return (
            is_trusted(path.parent.stat()) and is_trusted(path.stat()) and is_whole(path) and _survived(path)
        )
    return False


def is_whole(path: Path) -> bool:
    """Return True if a file is a container of the size in its header, with a readable table."""
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
    """Return True if the whole program reached the disk.

    Programs are not synced when they are written, because syncing would take longer than the rest of a
    compilation. Until the machine restarts, reads return the written bytes. The CRCs of a program from before
    the last restart are checked once, because a crash may have left holes in it.
    """
    if _mark_of(path).exists():
        return True
    if _core.validate_container(str(path)):
        return False
    _mark(path)
    return True


def _mark(path: Path) -> None:
    """Record that a program stays intact until the machine restarts."""
    with contextlib.suppress(OSError):
        _mark_of(path).touch()


def _mark_of(path: Path) -> Path:
    return path.with_name(f".sound-{boot_id()}")


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Identify this boot of the machine, or this process if the kernel does not report the boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return f"process-{os.getpid()}-{os.urandom(8).hex()}"


def cache_folder() -> Path:
    """Return the folder of the cache from the environment; it need not exist.

    If other users can write there, it contains a folder for each user. Raises RuntimeError if there is no
    home folder.
    """
    configured = os.environ.get("QAIC_CACHE_DIR")
    if configured:
        folder = Path(configured).absolute()
    else:
        base = os.environ.get("XDG_CACHE_HOME")
        home = Path(base) if base and Path(base).is_absolute() else Path("~/.cache").expanduser()
        folder = home / "openqaic"
    with contextlib.suppress(OSError):
        found = folder.stat()
        if found.st_uid != os.geteuid() or not is_trusted(found):
            return folder / f"user-{os.geteuid()}"
    return folder


def open_cache() -> Cache:
    """Open the cache that the environment names; if it is unusable, a cache of this process alone."""
    folder = None
    try:
        folder = cache_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_writable(folder)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return Cache(_private_folder(str(folder or "~/.cache/openqaic"), reason))
    if not is_own(folder):
        return Cache(_private_folder(str(folder), "another user can write there"))
    return Cache(folder)


@lru_cache(maxsize=1)
def _private_folder(wanted: str, reason: str) -> Path:
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="openqaic-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    text = "the compile cache %s cannot be used (%s); %s is removed when the process ends; set output_dir"
    _log.warning(text, wanted, reason, folder)
    return folder
