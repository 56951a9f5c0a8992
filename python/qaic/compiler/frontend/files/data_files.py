"""The files that the data of a model is in, and how they were found.

A file is opened once, whatever number of tensors it holds. What was looked for is remembered, because the
same names may stand for other files tomorrow: a link changes, or a file appears in a folder that comes first.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qaic.compiler.ir.constants.weights import InputFile


@dataclass(slots=True)
class DataFiles:
    """The open files of one model.

    Parameters
    ----------
    files : list of InputFile
        The model file first where there is one, then the others in order of first use.
    """

    files: list[InputFile] = field(default_factory=list)
    #: path that was looked for -> where it really lies; None where there was nothing
    looked_up: dict[str, str | None] = field(default_factory=dict)
    #: variable of the environment that folders came from -> its value
    variables: dict[str, str] = field(default_factory=dict)
    #: the working folder, where paths were relative to it
    working_folder: str | None = None
    _by_path: dict[Path, InputFile] = field(default_factory=dict)

    def find(self, path: Path) -> Path | None:
        """Resolve all links of a path.

        Returns
        -------
        Path or None
            None where there is nothing, or links that lead in a circle.

        Raises
        ------
        OSError
            A folder on the way cannot be searched.
        """
        real = _real(path)
        self.looked_up[str(path)] = None if real is None else str(real)
        return real

    def opened(self, real: Path) -> InputFile:
        """Open a file that `find` has found.

        Raises
        ------
        OSError
            It cannot be opened.
        CompileError
            It is not a regular file.
        """
        file = self._by_path.get(real)
        if file is None:
            file = self._by_path[real] = InputFile(real)
            self.files.append(file)
        return file

    def variable(self, name: str) -> str:
        """Read a variable of the environment; empty where it is not set."""
        value = self.variables[name] = os.environ.get(name, "")
        return value

    def absolute(self, path: Path) -> Path:
        """Complete a relative path by the working folder."""
        if not path.is_absolute():
            self.working_folder = str(Path.cwd())
        return path.absolute()

    def search(self) -> dict[str, Any]:
        """Describe what was looked for, as values that JSON has."""
        found: dict[str, Any] = {"looked_up": self.looked_up, "variables": self.variables}
        if self.working_folder is not None:
            found["working_folder"] = self.working_folder
        return found


def finds_the_same(search: dict[str, Any]) -> bool:
    """Return whether the search that `DataFiles.search` described would find the same files now.

    Raises
    ------
    KeyError, TypeError, ValueError, AttributeError
        It is no such description.
    OSError
        A folder cannot be searched.
    """
    return (
        all(os.environ.get(name, "") == value for name, value in search["variables"].items())
        and ("working_folder" not in search or search["working_folder"] == str(Path.cwd()))
        and all(
            (None if (real := _real(Path(name))) is None else str(real)) == known
            for name, known in search["looked_up"].items()
        )
    )


def _real(path: Path) -> Path | None:
    try:
        return path.resolve(strict=True)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        # ValueError: JSON can write halves of characters, which no name of a file has.
        return None
    except RuntimeError:
        # Links in a circle, as pathlib says it before Python 3.13.
        return None
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENAMETOOLONG}:
            return None
        raise
