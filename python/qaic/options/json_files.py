"""Options whose value is the content of a JSON file.

The content counts, not the path: it decides about the container and its place in the cache, and it is read
once, when the options are resolved.
"""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from pathlib import Path
from typing import TypeVar, cast

from qaic.options.codecs import Codec, FilePath, ValueMismatchError, shown

T = TypeVar("T")

#: No such file that people or exporters write is this large.
_MOST_BYTES = 64 << 20


class JsonFile(Codec[T]):
    """The content of a file, or what would be its content.

    Between `parse` and `load` a value may be the path that was given; only the code that resolves options
    sees it.
    """

    @abstractmethod
    def content(self, value: object) -> T:
        """Convert what the file holds.

        Raises
        ------
        ValueMismatchError
            It is not what the option expects.
        """

    def parse(self, value: object) -> T:
        """See `Codec.parse`. Text is a path."""
        if isinstance(value, str | os.PathLike):
            try:
                return cast("T", FilePath().parse(value))
            except ValueMismatchError as error:
                raise ValueMismatchError(self.expected, error.found) from None
        return self.content(value)

    def rebase(self, value: T, directory: Path) -> T:
        """See `Codec.rebase`."""
        return cast("T", directory / value) if isinstance(value, Path) else value

    def load(self, value: T) -> T:
        """See `Codec.load`."""
        if not isinstance(value, Path):
            return value
        file = repr(str(value))
        try:
            with value.open("rb") as stream:
                data = stream.read(_MOST_BYTES + 1)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise ValueMismatchError(f"a readable file {file}", f"the error {reason!r}") from error
        if len(data) > _MOST_BYTES:
            raise ValueMismatchError(
                f"a file {file} of at most {_MOST_BYTES >> 20} MiB", "one that is larger"
            )
        try:
            held = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise ValueMismatchError(f"JSON in the file {file}", f"a mistake ({error})") from error
        try:
            return self.content(held)
        except ValueMismatchError as error:
            raise ValueMismatchError(f"{error.expected} in the file {file}", error.found) from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuse what JSON allows and every reader takes differently: one key with two values."""
    made = dict(pairs)
    if len(made) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        message = f"the key {shown(twice)} stands twice in one object"
        raise ValueError(message)
    return made
