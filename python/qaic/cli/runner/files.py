"""Files that ``qaic-runner`` writes: it makes their folder, writes each as a whole, and prints its name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from qaic.cli.console import print_line
from qaic.support.atomic_io import write_replacing

if TYPE_CHECKING:
    from typing_extensions import Buffer


def writable_folder(folder: Path) -> Path:
    """Make a folder in one that exists, or take it as it is.

    Raises
    ------
    OSError
        It cannot be made or written.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    if not folder.is_dir():
        raise NotADirectoryError(20, "Not a directory", str(folder))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(13, "Permission denied", str(folder))
    return folder


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file that is complete or not there, and report it. Blocking.

    Parameters
    ----------
    path
        Where it goes. The lines about it are the vendor's.
    write
        Writes to the path it is given.
    """
    if path.exists():
        print_line(f"Deleting previous file: {path}")
    print_line(f"Writing file:{path}")
    write_replacing(path, write)


def replace_content(path: Path, content: Buffer) -> None:
    """Write a file of bytes that are there, as `replace`."""
    replace(path, lambda unfinished: unfinished.write_bytes(content))
