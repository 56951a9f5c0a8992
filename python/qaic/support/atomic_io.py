"""Files as a whole.

The one place where they are written aside, then renamed, for a reader of a file that is being replaced must
get the old one or the new one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def write_replacing(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file beside `path` and rename it. Blocking.

    Parameters
    ----------
    path
        Where it goes; what is there is replaced. On failure it is as before, and nothing else is left.
    write
        Writes to the path it is given, which does not exist.

    Raises
    ------
    OSError
        The folder cannot be written to, or what ``write`` raises.
    """
    # Two processes, or two threads of one, may write the same file.
    aside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        write(aside)
        aside.replace(path)
    except BaseException:
        # What went wrong is of interest, not that there is nothing to remove.
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise


def replace_bytes(path: Path, content: bytes) -> None:
    """Write a file of bytes that are there, as :func:`write_replacing`."""
    write_replacing(path, lambda aside: aside.write_bytes(content))


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """Read a file that has an end. Blocking.

    Raises
    ------
    OSError
        The file cannot be read, or is a pipe or a device, which have no known end.
    """
    # A pipe without a writer would not even be opened.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "No regular file", os.fspath(path))
        return file.read()
