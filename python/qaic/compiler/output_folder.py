"""Folders that receive results: known to be writable before any work, gone if nothing comes of it."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def writable_folder(folder: Path | None) -> Iterator[None]:
    """Make a folder for the length of a block; if the block fails, what was made of it is removed.

    Parameters
    ----------
    folder : Path or None
        Folder, made with its parents where they are missing; with None nothing is done.

    Raises
    ------
    OSError
        It cannot be made, or nothing can be written there; the block is not entered.
    """
    created = [] if folder is None else _prepare(folder)
    try:
        yield
    except BaseException:
        for made in created:
            try:
                made.rmdir()
            except OSError:
                # Something else is in it by now.
                break
        raise


def _prepare(folder: Path) -> list[Path]:
    """Make sure that `folder` exists and can be written; returns the folders created, the innermost first."""
    missing = [at for at in (folder, *folder.parents) if not at.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        for made in missing:
            made.rmdir()
        raise
    return missing
