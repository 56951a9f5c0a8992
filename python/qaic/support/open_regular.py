"""Reads regular files; refuses pipes and devices, which may be endless."""

import errno
import io
import os
import stat

from qaic.support.text import bytes_text


class NotRegularError(OSError):
    """The file is a pipe or a device."""


def open_regular(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a regular file for reading. Blocking.

    Raises NotRegularError for a pipe or a device, and OSError if the file cannot be read or is a folder.
    """
    # O_NONBLOCK, because opening a pipe waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _refuse_others(os.fstat(descriptor).st_mode, os.fspath(path))
        return open(descriptor, "rb")  # noqa: PTH123 (a descriptor, which the caller closes)
    except BaseException:
        os.close(descriptor)
        raise


def _refuse_others(mode: int, path: str) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
    if not stat.S_ISREG(mode):
        raise NotRegularError(errno.EINVAL, "Not a regular file", path)


def read_text(path: str | os.PathLike[str], most_bytes: int = 64 << 20) -> str:
    """Read a regular file of UTF-8 text, with or without a byte order mark. Blocking.

    Raises OSError as `open_regular`, and ValueError, which begins with ``found``, if the file has more bytes
    than `most_bytes` or is not UTF-8.
    """
    content = read_regular(path, most_bytes)
    if len(content) > most_bytes:
        raise ValueError(f"found more than {bytes_text(most_bytes)}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"found bytes that are not UTF-8 at {error.start}") from error


def read_regular(path: str | os.PathLike[str], most_bytes: int | None = None) -> bytes:
    """Read a regular file, at most one byte more than `most_bytes`; errors as for :func:`open_regular`."""
    with open_regular(path) as file:
        # The kernel log is a regular file that may have no data yet.
        return file.read(-1 if most_bytes is None else most_bytes + 1) or b""
