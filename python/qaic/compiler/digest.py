"""The identity of a model's content, and an index that saves hashing it again.

Safety of the index: an entry speaks for a file only while path, device, inode, size, modification time and
change time are all the same. The change time is set by the kernel at every write and cannot be set back. A
file that was modified in the last two seconds gets no entry, for a second write within the resolution of
the clock would go unseen.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from qaic.compiler.weights import InputFile

#: nanoseconds a file must have been at rest before its digest is remembered
_SETTLED_NS: Final = 2_000_000_000


def content_digest(content: bytes) -> str:
    """Hash a model in memory; equals `files_digest` of a file with the same content."""
    return _combine([hashlib.sha256(content).digest()])


def files_digest(files: Sequence[InputFile]) -> str:
    """Hash the model file and its external data files, in the order the model names them."""
    digests = []
    for file in files:
        with os.fdopen(os.dup(file.fd), "rb", buffering=0) as stream:
            stream.seek(0)
            digests.append(hashlib.file_digest(stream, "sha256").digest())
    return _combine(digests)


def _combine(digests: list[bytes]) -> str:
    return hashlib.sha256(b"".join(digests)).hexdigest()


@dataclass(frozen=True, slots=True)
class DigestIndex:
    """Remembered digests, one small file per model path."""

    folder: Path

    def lookup(self, path: Path) -> str | None:
        """Return the digest of the model at `path` if none of its files was touched since it was stored."""
        try:
            entry = json.loads(self._entry(path).read_bytes())
            unchanged = all(_fingerprint(os.stat(name)) == stored for name, stored in entry["files"])  # noqa: PTH116
            digest = entry["digest"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return digest if unchanged and entry["files"] and isinstance(digest, str) else None

    def store(self, path: Path, files: Sequence[InputFile], digest: str) -> None:
        """Remember a digest; does nothing where a file is too young or the index cannot be written."""
        newest = max(max(file.stat.st_mtime_ns, file.stat.st_ctime_ns) for file in files)
        if time.time_ns() - newest < _SETTLED_NS:
            return
        record = {
            "digest": digest,
            "files": [[str(file.path.absolute()), _fingerprint(file.stat)] for file in files],
        }
        entry = self._entry(path)
        temporary = entry.with_name(f"{entry.name}.{os.getpid()}.{time.monotonic_ns()}.tmp")
        with contextlib.suppress(OSError):
            entry.parent.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_text(json.dumps(record))
                temporary.replace(entry)
            finally:
                temporary.unlink(missing_ok=True)

    def _entry(self, path: Path) -> Path:
        name = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:32]
        return self.folder / f"{name}.json"


def _fingerprint(found: os.stat_result) -> list[int]:
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
