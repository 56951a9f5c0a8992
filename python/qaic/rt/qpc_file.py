"""``QpcFile``: the bytes of a container file."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

from qaic.rt.exceptions import ExceptionInit
from qaic.rt.module_name import of_qaicrt
from qaic.support.program_names import QPC_FILE_NAME


@of_qaicrt
class QpcFile:
    """A container file that is read when asked for.

    Parameters
    ----------
    basePath
        Directory of the file.
    qpcFilename
        Name of the file.
    """

    __slots__ = ("__weakref__", "_data", "_path")

    def __init__(self, basePath: str | PathLike[str], qpcFilename: str = QPC_FILE_NAME) -> None:
        self._path = Path(basePath, qpcFilename)
        self._data = b""

    def load(self) -> bool:
        """Read the file. Blocking.

        Raises
        ------
        ExceptionInit
            It cannot be read.
        """
        try:
            if self._path.exists() and not self._path.is_file():
                # Reading a pipe would wait for a writer.
                raise ExceptionInit(
                    f"Initialization Exception: in object: QpcFile {self._path} is no regular file",
                    code="file.io",
                )
            self._data = self._path.read_bytes()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ExceptionInit(
                f"Initialization Exception: in object: QpcFile {self._path} cannot be read: {reason}",
                code="file.io",
            ) from error
        return True

    def getBuffer(self) -> memoryview:
        """View of the bytes, read-only; empty before :meth:`load`."""
        return memoryview(self._data)

    def data(self) -> memoryview:
        """View of the bytes, read-only; empty before :meth:`load`."""
        return self.getBuffer()

    def size(self) -> int:
        """Count of the bytes; 0 before :meth:`load`."""
        return len(self._data)

    def __copy__(self) -> NoReturn:
        raise TypeError("a QpcFile cannot be copied; make another one from the path")

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        self.__copy__()
