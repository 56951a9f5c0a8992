"""Errors of the stats buffers that ``qaic-opstats`` reads."""

from pathlib import Path

from qaic.cli.console import print_message
from qaic.errors import QaicError
from qaic.support.text import counted


class Refusals:
    """Files that could not be read; files with the same defect, such as a wrong program, share one error."""

    def __init__(self, option: str = "--qpc") -> None:
        self._option = option
        self._hints: dict[str, None] = {}
        #: error, without the path of its file -> the files
        self.files: dict[str, list[Path]] = {}

    def add(self, path: Path, error: QaicError | OSError) -> None:
        """Note the error of a file."""
        if isinstance(error, QaicError):
            text = f"{error.message.replace(f'{path}: ', '')} [{error.code}]"
            self._hints.update(dict.fromkeys(_hints_of(error, self._option)))
        else:
            text = error.strerror or str(error)
        self.files.setdefault(text, []).append(path)

    def show(self) -> None:
        """Print the errors, then their hints."""
        for text, (first, *others) in self.files.items():
            more = f" and {counted(len(others), 'other file')}" if others else ""
            print_message("error", f"{first}{more}: {text}", verbatim=True)
        for hint in self._hints:
            print_message("hint", hint)


def _hints_of(error: QaicError, option: str) -> tuple[str, ...]:
    """Return hints in terms of the command line.

    `error` is the defect of a buffer; `option` is the option that takes the container of the buffer.
    """
    if error.code == "stats.other_program":
        return (f"{option} expects the container of the buffers; --force reads the buffers anyway",)
    return tuple(error.hints)
