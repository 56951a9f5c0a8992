"""Writes the content of a container to files.

Segment names come from the file and are not trusted: each becomes the name of one file directly under its
folder.
"""

import errno
import hashlib
import json
import re
import warnings
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import numpy as np

from qaic.errors import QpcError
from qaic.support.atomic_io import work_folder
from qaic.support.program_names import free_name, quote

#: largest size of a file name in bytes; its folder has a suffix, and file systems allow 255 bytes
_NAME_BYTES: Final = 240
#: characters that some system forbids in file names, or that have another meaning here
_RESERVED: Final = frozenset('/\\%:*?"<>|')

#: a list of integers, one per line
_NUMBERS: Final = re.compile(r"\[\n\s+(-?\d+(?:,\n\s+-?\d+)*)\n\s+\]")


def write(
    contents: Iterable[tuple[str, Callable[[], object]]], directory: Path, pattern: str, *, force: bool
) -> list[Path]:
    """Write the files whose path matches; see :meth:`qaic.Qpc.extract`.

    ``contents`` has the path of each file, relative and with slashes, and a function that reads its content:
    bytes as an array, or a value for JSON; ``None`` without one. A damaged file is skipped with a warning.
    """
    chosen: list[tuple[str, bytes | memoryview]] = []
    for path, read in contents:
        if fnmatchcase(path, pattern):
            try:
                content = read()
            except QpcError as error:
                warn_left_out(path, error)
                continue
            if content is not None:
                chosen.append(
                    (path, content.data if isinstance(content, np.ndarray) else _json_bytes(content))
                )
    if not chosen:
        return []
    directory.mkdir(parents=True, exist_ok=True)
    _check_free(directory, [path for path, _ in chosen], force=force)
    written = []
    with work_folder(directory) as aside:
        for number, (_, content) in enumerate(chosen):
            (aside / str(number)).write_bytes(content)
        for number, (path, _) in enumerate(chosen):
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            (aside / str(number)).replace(target)
            written.append(target)
    return written


def warn_left_out(path: str, error: QpcError) -> None:
    """Warn of a part that cannot be read."""
    warnings.warn(f"{path} is skipped: {error.message}", stacklevel=4)


def file_names(segments: Iterable[str]) -> dict[str, str]:
    """Return for each segment name a distinct file name that stays in the folder."""
    taken: set[str] = set()
    return {name: free_name(_file_name(name), taken) for name in segments}


def _file_name(segment: str) -> str:
    quoted = "".join(
        char if char.isprintable() and char not in _RESERVED else quote(char) for char in segment
    )
    if quoted.startswith("."):
        quoted = quote(".") + quoted[1:]
    if len(quoted.encode()) > _NAME_BYTES:
        digest = hashlib.sha256(segment.encode()).hexdigest()[:12]
        quoted = quoted.encode()[: _NAME_BYTES - 13].decode(errors="ignore") + "~" + digest
    return quoted


def _json_bytes(value: object) -> bytes:
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    # Dims and byte arrays are on one line each. Strings do not change, because their line breaks are escaped.
    text = _NUMBERS.sub(lambda match: "[" + ", ".join(match[1].split()).replace(",,", ",") + "]", text)
    # A lone surrogate is written as its JSON escape.
    return text.encode(errors="backslashreplace")


def _check_free(directory: Path, paths: Iterable[str], *, force: bool) -> None:
    """Raise an error for existing files before anything is written."""
    root = directory.resolve()
    for relative in paths:
        target = directory / relative
        folder = target.parent
        while folder != directory:
            if folder.is_symlink() and not folder.resolve().is_relative_to(root):
                raise PermissionError(errno.EPERM, "this link points outside the output folder", str(folder))
            if folder.exists() and not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "a folder is expected here", str(folder))
            folder = folder.parent
        if target.is_dir() and not target.is_symlink():
            raise IsADirectoryError(errno.EISDIR, "a file is expected here, not a folder", str(target))
        if not force and (target.exists() or target.is_symlink()):
            raise FileExistsError(errno.EEXIST, "the file exists", str(target))
