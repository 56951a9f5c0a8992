"""The identity of a model's content, and an index that avoids hashing it again.

Safety of the index: an entry is valid for a file only while path, device, inode, size, modification time and
change time are all the same. The kernel sets the change time at every write, and it cannot be set back. A
file that was modified in the last two seconds gets no entry, because a second write within the resolution of
the clock would not be detected. If files are found by links or in several folders, an entry also describes
the search.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qaic.compiler.frontend.files.external_data import finds_the_same
from qaic.compiler.ir.constants.weights import FileRange, InputFile
from qaic.support.atomic_io import replace_bytes

#: bytes hashed as one unit; a file's digest is that of its block digests, so that threads can share the work
_BLOCK: Final = 16 << 20

#: nanoseconds without a change of a file before its digest is stored
SETTLED_NS: Final = 2_000_000_000


def content_digest(content: bytes) -> str:
    """Hash a model in memory; equals `files_digest` of a file with the same content."""
    view = memoryview(content)
    starts = range(0, len(view), _BLOCK)
    return _combine([[hashlib.sha256(view[start : start + _BLOCK]).digest() for start in starts]])


def files_digest(files: Sequence[InputFile]) -> str:
    """Hash the model file and its external data files, in the order in which the model names them."""
    blocks = [(file, start) for file in files for start in range(0, file.size, _BLOCK)]
    if len(blocks) > len(files):
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(4, len(os.sched_getaffinity(0)))) as pool:
            found = list(pool.map(lambda block: _block_digest(*block), blocks))
    else:
        found = [_block_digest(*block) for block in blocks]
    digests: dict[int, list[bytes]] = {id(file): [] for file in files}
    for (file, _), digest in zip(blocks, found, strict=True):
        digests[id(file)].append(digest)
    return _combine(list(digests.values()))


def _block_digest(file: InputFile, start: int) -> bytes:
    """Hash one block; reading and hashing release the interpreter lock."""
    digest = hashlib.sha256()
    for piece in FileRange(file, start, min(_BLOCK, file.size - start)).chunks():
        digest.update(piece)
    return digest.digest()


def _combine(digests: list[list[bytes]]) -> str:
    """Hash the block digests of all files; a count before each file marks its boundary."""
    whole = hashlib.sha256()
    for blocks in digests:
        whole.update(len(blocks).to_bytes(8, "little"))
        whole.update(b"".join(blocks))
    return whole.hexdigest()


@dataclass(frozen=True, slots=True)
class DigestIndex:
    """Stored digests, one small file per model path."""

    folder: Path

    def lookup(self, path: Path) -> str | None:
        """Return the digest of the model at `path` if none of its files has changed since it was stored."""
        try:
            entry = json.loads(self._entry(path).read_bytes())
            unchanged = all(_fingerprint(os.stat(name)) == stored for name, stored in entry["files"])  # noqa: PTH116
            unchanged = unchanged and finds_the_same(entry["search"])
            digest = entry["digest"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return digest if unchanged and entry["files"] and isinstance(digest, str) else None

    def store(
        self,
        path: Path,
        files: Mapping[Path, os.stat_result],
        digest: str,
        search: Mapping[str, object] | None = None,
    ) -> None:
        """Store a digest; does nothing if a file is too new or the index cannot be written.

        `path` is the key of the digest. `files` are the files that it covers, each with its metadata from
        before it was read. `search` describes how the files were found (`DataFiles.search`), if their paths
        are not sufficient.
        """
        newest = max(max(found.st_mtime_ns, found.st_ctime_ns) for found in files.values())
        if time.time_ns() - newest < SETTLED_NS:
            return
        record = {
            "digest": digest,
            "search": dict(search or {"looked_up": {}, "variables": {}}),
            "files": [[str(file.absolute()), _fingerprint(found)] for file, found in files.items()],
        }
        entry = self._entry(path)
        with contextlib.suppress(OSError):
            entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_bytes(entry, json.dumps(record).encode())

    def _entry(self, path: Path) -> Path:
        name = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:32]
        return self.folder / f"{name}.json"


def _fingerprint(found: os.stat_result) -> list[int]:
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
