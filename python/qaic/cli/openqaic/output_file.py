"""The output file of a subcommand: problems with its path are reported before any work."""

import shlex
from collections.abc import Iterable
from os import PathLike
from pathlib import Path

from qaic.errors import OptionError
from qaic.support.text import bytes_text


def check_output_file(
    option: str, output: str | PathLike[str] | None, *, read: Iterable[str | PathLike[str]]
) -> None:
    """Refuse a file that cannot be written, or that the same command reads.

    Parameters
    ----------
    option
        The option as messages show it, such as ``-o``.
    output
        Its value; nothing is checked where it is None.
    read
        Files that the command reads; those that are missing count as none.

    Raises
    ------
    OptionError
        Its folder is missing, it is a folder itself, or it is one of the files that are read.
    """
    if output is None:
        return
    path = Path(output)
    if path.is_dir():
        raise OptionError(f"{option} {path}: found a folder, expected a file", code="option.output_path")
    if not path.parent.is_dir():
        raise OptionError(
            f"{option} {path}: the folder {path.parent} does not exist",
            code="option.output_path",
            hints=(f"`mkdir -p {shlex.quote(str(path.parent))}` makes it",),
        )
    if path.exists() and any(Path(other).exists() and path.samefile(other) for other in read):
        raise OptionError(
            f"{option} {path}: found a file that is read too, expected another one: it would be lost",
            code="option.output_path",
        )


def check_page(output: str | PathLike[str] | None, *, read: Iterable[str | PathLike[str]]) -> None:
    """Refuse the ``-o`` of a page, as `check_output_file`, also if its name is not that of a page."""
    if output is not None and Path(output).suffix.lower() not in {".html", ".htm"}:
        raise OptionError(
            f"-o {output}: pages are HTML; a name that ends in .html is expected", code="option.output_path"
        )
    check_output_file("-o", output, read=read)


def wrote(path: str | PathLike[str], more: str = "") -> str:
    """Return the sentence that names a file that was written, and its size."""
    return f"wrote {shlex.quote(str(path))}, {bytes_text(Path(path).stat().st_size)}{more}"


def files_of(given: Iterable[str]) -> list[str]:
    """Return the files of ``[NAME=]FILE``."""
    return [text.partition("=")[2] or text for text in given]
