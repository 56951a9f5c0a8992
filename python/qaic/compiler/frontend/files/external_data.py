"""Tensors whose data is in a file next to the model."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qaic.compiler.diagnostics.compile_error import refuse
from qaic.compiler.ir.constants.weights import FileRange

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qaic.compiler.frontend.files.data_files import DataFiles


@dataclass(frozen=True, slots=True)
class ExternalData:
    """Permitted folders of a model's external data.

    Parameters
    ----------
    folders : tuple of Path
        Resolved folders that may hold external files, the first being the one locations are relative to.
        The second, if any, is where the model file really lies when the given path is a symbolic link. Empty
        for a model in memory.
    data : DataFiles
        The files of the model; those found here are added.
    """

    folders: tuple[Path, ...]
    data: DataFiles

    def range(self, entries: Mapping[str, str], tensor: str, size: int) -> FileRange:
        """Check the place of an external payload, and open its file.

        Parameters
        ----------
        entries : Mapping[str, str]
            The entries ``location``, ``offset`` and ``length``.
        tensor : str
            Words for the tensor in messages, as ``initializer 'w'``.
        size : int
            Bytes that the tensor takes; the length where none is given.

        Raises
        ------
        CompileError
            The file lies outside the folder, or the range outside the file.
        OSError
            There is no such file, or it cannot be opened.
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
                fix="the data file belongs to another model or was cut off",
            )
        return FileRange(file, numbers["offset"], numbers["length"])

    def _resolved(self, location: str, what: str) -> Path:
        """Turn a location into a path inside the model's folder."""
        relative = Path(location)
        if not self.folders:
            raise refuse(
                what,
                code="external_data",
                found=f"location {location!r} in a model that is not a file",
                expected="all data inside the model",
                fix="pass the path of the model instead of its content",
            )
        if not location or relative.is_absolute() or ".." in relative.parts or "\0" in location:
            raise refuse(
                what,
                code="external_data",
                found=f"location {location!r}",
                expected="a relative path inside the model's folder",
                fix="put the data file into the folder of the model and store its name only",
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
                found=f"location {location!r}, a link that leads out of the model's folder",
                expected="a file inside the model's folder",
                fix="copy the data file into the folder of the model",
            )
        return real
