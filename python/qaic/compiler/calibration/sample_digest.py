"""The identity of the samples that an input list names: its content and that of every file in it.

Calibrating is the longest part of a compilation, so a second one with the same samples has to find its
result in the cache. Digests are remembered as those of models are
(`qaic.compiler.frontend.files.content_digest`): by the facts of the system about the files, so that they are
read once.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qaic.compiler.calibration.dataset import read_list
from qaic.compiler.frontend.files.content_digest import DigestIndex
from qaic.support.open_regular import open_regular

#: size above that of any sample; the digest of such a file uses only its metadata, because its content may be
#: endless
_MOST_BYTES: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class _Seen:
    """A file as it was found, with the attributes that `DigestIndex` needs."""

    path: Path
    stat: os.stat_result


@dataclass(frozen=True, slots=True)
class SampleFiles:
    """The files of an input list."""

    #: digest of all contents, in the order of the list
    digest: str
    #: the list and its files, with the facts of the system about them; empty if known from before
    files: Sequence[_Seen] = ()

    def changed(self) -> Path | None:
        """Return a file that was written to since it was digested."""
        for file in self.files:
            try:
                now = file.path.stat()
            except OSError:
                return file.path
            if (now.st_ino, now.st_size, now.st_mtime_ns) != (
                file.stat.st_ino,
                file.stat.st_size,
                file.stat.st_mtime_ns,
            ):
                return file.path
        return None


def digest_samples(path: Path, index: DigestIndex) -> SampleFiles:
    """Digest an input list and its files, with stored digests of unchanged files.

    An unreadable file also gets a digest; the reader of the samples then reports the error.
    """
    # Names in a list are relative to the current directory, so the two together name the files.
    place = path.absolute() / Path.cwd().relative_to("/")
    known = index.lookup(place)
    if known is not None:
        return SampleFiles(known)
    whole = hashlib.sha256()
    seen: dict[Path, tuple[_Seen, bytes]] = {}
    complete = True
    listed = [name.split(":=", 1)[-1].strip() for _, names in read_list(path) for name in names]
    for file in (path, *map(Path, listed)):
        if file not in seen:
            read = _read(file)
            if read is None:
                complete = False
                whole.update(b"?")
                continue
            seen[file] = read
        whole.update(seen[file][1])
    digest = whole.hexdigest()
    files = [entry for entry, _ in seen.values()]
    if complete:
        index.store(place, files, digest)
    return SampleFiles(digest, files)


def _read(file: Path) -> tuple[_Seen, bytes] | None:
    """Return the digest of one file; None if it cannot be read."""
    try:
        with open_regular(file) as stream:
            found = os.fstat(stream.fileno())
            if found.st_size > _MOST_BYTES:
                return _Seen(file, found), repr((found.st_ino, found.st_size, found.st_mtime_ns)).encode()
            return _Seen(file, found), hashlib.file_digest(stream, "sha256").digest()
    except (OSError, ValueError):
        return None
