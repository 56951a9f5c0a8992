"""Options whose value is the content of a file that a later stage reads.

The container and its place in the cache depend on what the file holds and not on where it lies, so the file
is digested when the options are resolved.
"""

from __future__ import annotations

import hashlib
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from qaic.options.codecs.scalars import Codec, FilePath, Json, ValueMismatchError


@dataclass(frozen=True, slots=True)
class InputFileContent:
    """A file and the SHA-256 digest, in hexadecimal, of what it held when the options were resolved."""

    path: Path
    sha256: str


class FileContent(Codec[InputFileContent]):
    """The path of a file that exists.

    Between `parse` and `load` a value is the path that was given; only the code that resolves options sees
    it.

    Parameters
    ----------
    noun
        What kind of file it is, for messages.
    """

    def __init__(self, noun: str) -> None:
        self.noun = noun

    @property
    def expected(self) -> str:
        """See `Codec.expected`."""
        return f"the path of a {self.noun}"

    def parse(self, value: object) -> InputFileContent:
        """See `Codec.parse`."""
        if isinstance(value, InputFileContent):
            return value
        return cast("InputFileContent", FilePath(self.noun).parse(value))

    def rebase(self, value: InputFileContent, directory: Path) -> InputFileContent:
        """See `Codec.rebase`."""
        return cast("InputFileContent", directory / value) if isinstance(value, Path) else value

    def load(self, value: InputFileContent) -> InputFileContent:
        """See `Codec.load`."""
        if not isinstance(value, Path):
            return value
        try:
            # A pipe or a device could be read only once, or without end.
            if not stat.S_ISREG(value.stat().st_mode):
                raise ValueMismatchError(self.expected, f"{str(value)!r}, which is no regular file")
            with value.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256")
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise ValueMismatchError(
                f"a readable {self.noun}", f"{str(value)!r} with the error {reason!r}"
            ) from error
        return InputFileContent(value, digest.hexdigest())

    def to_texts(self, value: InputFileContent) -> tuple[str, ...]:
        """See `Codec.to_texts`. The path, also before the file was read."""
        return (str(value if isinstance(value, Path) else value.path),)

    def to_json(self, value: InputFileContent) -> Json:
        """See `Codec.to_json`. The digest stands for the content."""
        return value.sha256
