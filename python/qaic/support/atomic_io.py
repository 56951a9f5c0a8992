"""Files that are written as a whole.

The one place where they are written aside, then renamed, for a reader of a file that is being replaced must
get the old one or the new one.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from typing_extensions import Buffer


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
    except BaseException as error:
        # What went wrong is of interest, not that there is nothing to remove.
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        # The file that is to be is the one that its reader knows; a copy names its source first.
        if isinstance(error, OSError) and error.errno and str(aside) in {error.filename, error.filename2}:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def replace_bytes(path: Path, content: Buffer) -> None:
    """Write a file of bytes that are there, as :func:`write_replacing`."""

    def write(aside: Path) -> None:
        try:
            aside.write_bytes(content)
        except OSError as error:
            # A full disk is found by writing, which knows no name.
            error.filename = error.filename or str(aside)
            raise

    write_replacing(path, write)
