"""Tensors whose data is in a file next to the model."""

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qaic.compiler.diagnostics.messages import not_inside, refuse
from qaic.compiler.ir.constants.weights import FileRange, InputFile


@dataclass(slots=True)
class DataFiles:
    """The open files of one model.

    The model file is first if there is one, then the others in order of first use.
    """

    files: list[InputFile] = field(default_factory=list)
    #: requested path -> its real path; None if there was no file
    looked_up: dict[str, str | None] = field(default_factory=dict)
    #: environment variable with folders -> its value
    variables: dict[str, str] = field(default_factory=dict)
    #: the working folder, if paths were relative to it
    working_folder: str | None = None
    _by_path: dict[Path, InputFile] = field(default_factory=dict)

    def find(self, path: Path) -> Path | None:
        """Resolve all links of a path.

        Returns None for a missing file or a cycle of links. Raises OSError if a folder in the path cannot be
        searched.
        """
        real = _real(path)
        self.looked_up[str(path)] = None if real is None else str(real)
        return real

    def opened(self, real: Path) -> InputFile:
        """Open a file that `find` has found.

        Raises OSError if it cannot be opened, and CompileError if it is not a regular file.
        """
        file = self._by_path.get(real)
        if file is None:
            file = self._by_path[real] = InputFile(real)
            self.files.append(file)
        return file

    def variable(self, name: str) -> str:
        """Read an environment variable; empty if it is not set."""
        value = self.variables[name] = os.environ.get(name, "")
        return value

    def absolute(self, path: Path) -> Path:
        """Complete a relative path by the working folder."""
        if not path.is_absolute():
            self.working_folder = str(Path.cwd())
        return path.absolute()

    def search(self) -> dict[str, Any]:
        """Describe the search as JSON values."""
        found: dict[str, Any] = {"looked_up": self.looked_up, "variables": self.variables}
        if self.working_folder is not None:
            found["working_folder"] = self.working_folder
        return found


def finds_the_same(search: dict[str, Any]) -> bool:
    """Return True if the search that `DataFiles.search` described would find the same files now.

    Raises KeyError, TypeError, ValueError or AttributeError if it is not such a description, and OSError if a
    folder cannot be searched.
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
        # JSON can contain lone surrogates, which no file name has; then Python raises ValueError.
        return None
    except RuntimeError:
        # pathlib raises this for circles of links before Python 3.13.
        return None
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENAMETOOLONG}:
            return None
        raise


@dataclass(frozen=True, slots=True)
class ExternalData:
    """Permitted folders of a model's external data.

    Locations are relative to the first of the resolved `folders`. The second, if any, is the folder of the
    model file behind a symbolic link. A model in memory has no folders. Files that are found are added to
    `data`.
    """

    folders: tuple[Path, ...]
    data: DataFiles

    def range(self, entries: Mapping[str, str], tensor: str, size: int) -> FileRange:
        """Check the location of an external payload, and open its file.

        `entries` are ``location``, ``offset`` and ``length``. `tensor` is text for messages, as ``initializer
        'w'``, and `size` is the length if no length is given. Raises CompileError if the file is outside the
        folder, or the range is outside the file, and OSError if the file cannot be opened.
        """
        what = f"external data of {tensor}"
        location = entries.get("location", "")
        file = self.data.opened(self._resolved(location, what))
        numbers: dict[str, int] = {}
        for key, default in (("offset", 0), ("length", size)):
            text = entries.get(key, str(default))
            if not (text.isascii() and text.isdigit() and len(text) < 20):
                raise refuse(
                    what, code="external_data", found=f"{key} {text!r}", expected="a number of bytes"
                )
            numbers[key] = int(text)
        if numbers["offset"] + numbers["length"] > file.size:
            raise refuse(
                what,
                code="external_data",
                found=f"bytes {numbers['offset']} to {numbers['offset'] + numbers['length']} of {location!r}",
                expected=f"a range inside its {file.size} bytes",
                fix="the data file belongs to another model or is truncated",
            )
        return FileRange(file, numbers["offset"], numbers["length"])

    def _resolved(self, location: str, what: str) -> Path:
        """Convert a location to a path inside the model's folder."""
        relative = Path(location)
        if not self.folders:
            raise not_inside(what, f"location {location!r} in a model that is not a file")
        if not location or relative.is_absolute() or ".." in relative.parts or "\0" in location:
            raise refuse(
                what,
                code="external_data",
                found=f"location {location!r}",
                expected="a relative path inside the model's folder",
                fix="move the data file to the folder of the model, and store only its name",
            )
        path = self.folders[0] / relative
        real = self.data.find(path)
        if real is None:
            model = self.data.files[0].path
            missing = f"{os.strerror(errno.ENOENT)}; {model} needs it for {what}: copy it next to the model"
            raise FileNotFoundError(errno.ENOENT, missing, str(path))
        if not any(real.is_relative_to(folder) for folder in self.folders):
            raise refuse(
                what,
                code="external_data",
                found=f"location {location!r}, a link to a file outside the model's folder",
                expected="a file inside the model's folder",
                fix="copy the data file into the folder of the model",
            )
        return real
