"""Folders for results: write access is checked before any work, and other files in a folder are kept.

Every compilation uses these checks. A container is replaced if it is a program that openqaic compiled. Other
files are replaced if the record in their folder names them.
"""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from qaic import _core
from qaic.errors import OptionError, QpcError
from qaic.support.atomic_io import check_writable, is_work_folder, replace_bytes
from qaic.support.program_names import PLAN_SECTION, QPC_FILE_NAME

#: file that lists the files of its folder that openqaic wrote
RECORD_NAME: Final = ".openqaic.json"
_KEY: Final = "written by openqaic"
#: folder in the output directory for the files of `enable_debug`
DEBUG_FOLDER: Final = "compiler-debug"


@contextmanager
def writable_folder(folder: Path | None) -> Iterator[None]:
    """Create a folder for a block; if the block fails, the created folders are removed.

    Missing parents are created too. None creates nothing. Raises OSError before the block if the folder
    cannot be created or written to.
    """
    created = [] if folder is None else _prepare(folder)
    try:
        yield
    except BaseException:
        for made in created:
            try:
                made.rmdir()
            except OSError:
                # Other files are in it by now.
                break
        raise


def _prepare(folder: Path) -> list[Path]:
    """Ensure that `folder` exists and is writable; returns the created folders, the innermost first."""
    missing = [at for at in (folder, *folder.parents) if not at.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        check_writable(folder)
    except OSError:
        for made in missing:
            made.rmdir()
        raise
    return missing


def check_container(path: Path, option: str = "output_dir", target: str = "cpu") -> None:
    """Refuse to replace a file that openqaic did not compile.

    `option` names the file or its folder in messages. A program for the CPU device does not replace one that
    was compiled for a card. Raises OptionError if `path` exists and is not a program that openqaic compiled,
    or its folder is a file.
    """
    if os.path.lexists(path.parent) and not path.parent.is_dir():
        raise refused(path.parent, option, "it is a file")
    if not os.path.lexists(path) or (target == "card" and path.name in recorded(path.parent)):
        return
    try:
        if path.is_file() and _core.Qpc(str(path)).elf_section(PLAN_SECTION) is not None:
            return
    except (OSError, QpcError):
        pass
    raise refused(path.parent, option, f"its {path.name} was not created by openqaic")


def check_alone(folder: Path, option: str, target: str) -> None:
    """Refuse a folder that holds more than the results of an earlier compilation.

    Raises OptionError if it contains something else, or is not a folder.
    """
    check_container(folder / QPC_FILE_NAME, option, target)
    if not folder.exists():
        return
    ours = {RECORD_NAME, DEBUG_FOLDER, *recorded(folder)}
    held = sorted(
        path.name for path in folder.iterdir() if path.name not in ours and not is_work_folder(path.name)
    )
    if held and QPC_FILE_NAME not in {*held, *ours}:
        raise refused(folder, option, f"it contains {held[0]}" + (" and more" if len(held) > 1 else ""))


def move_results(made: Path, folder: Path) -> None:
    """Move the files of one folder into another, the container last, so that its files exist before it.

    Raises OptionError before any move if a file of the same name exists and is not in the record. Raises
    OSError if a file cannot be moved.
    """
    found = [path for path in made.rglob("*") if path.is_symlink() or not path.is_dir()]
    names = sorted((str(path.relative_to(made)) for path in found), key=lambda name: name == QPC_FILE_NAME)
    record(folder, names)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).replace(folder / name)


def record(folder: Path, names: Iterable[str]) -> None:
    """Record files that will be written to a folder.

    Raises OptionError if a file of the same name exists and is not in the record, and OSError if the record
    cannot be written.
    """
    known = recorded(folder)
    for name in names:
        if name not in known and os.path.lexists(folder / name):
            if name == QPC_FILE_NAME:
                check_container(folder / name, target="card")
            else:
                raise refused(folder, "output_dir", f"its {name} was not created by openqaic")
    _write_record(folder, known.union(names))


def _write_record(folder: Path, names: set[str]) -> None:
    replace_bytes(folder / RECORD_NAME, json.dumps({_KEY: sorted(names)}, indent=1).encode() + b"\n")


def recorded(folder: Path) -> set[str]:
    """Return the paths, relative to a folder, of the files in its record."""
    try:
        names = json.loads((folder / RECORD_NAME).read_bytes())[_KEY]
        return {name for name in names if not (name.startswith("/") or ".." in name.split("/"))}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return set()


def debug_folder(output_dir: Path) -> Path:
    """Create the folder for the files of `enable_debug`, without those of an earlier compilation.

    Raises OptionError if the name belongs to something that openqaic did not create, and OSError if the
    folder cannot be created.
    """
    folder = output_dir / DEBUG_FOLDER
    if os.path.lexists(folder) and not (folder / RECORD_NAME).is_file():
        raise refused(output_dir, "output_dir", f"its {DEBUG_FOLDER} was not created by openqaic")
    folder.mkdir(exist_ok=True)
    for name in recorded(folder):
        (folder / name).unlink(missing_ok=True)
    _write_record(folder, set())
    return folder


def refused(folder: Path, option: str, reason: str) -> OptionError:
    """Return the error about a folder with files that a compilation would overwrite."""
    return OptionError(
        f"{option}: {str(folder)!r} cannot be used: {reason}; expected a missing or empty directory, "
        f"or one with a container of openqaic, which is replaced",
        code="option.output_dir",
        context={"options": ["output_dir"], "path": str(folder)},
        hints=("give another directory",),
    )
