"""Options whose value is the checked content of a file.

The content, and not the path, determines the container and its cache key. It is read once, when the options
are resolved. In Python, the content may be given instead of the file.
"""

import hashlib
import os
from abc import abstractmethod
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar, cast

from qaic.options.codecs.scalars import Codec, FilePath, Json, ValueMismatchError, collecting, remark
from qaic.options.names import unknown_keys
from qaic.support.json import parse_json
from qaic.support.open_regular import NotRegularError, open_regular, read_regular
from qaic.support.text import format_value
from qaic.support.yaml import PlainValues, YamlFormError, YamlMistakeError, compose, is_null

T = TypeVar("T")

_Object = Mapping[object, object]

#: most bytes of a file with a digest, and number of bytes that are read at a time
_MOST_BYTES: Final = 512 << 20
_PIECE_BYTES: Final = 1 << 20


class ParsedFile(Codec[T]):
    """The content of a file, or the equivalent Python value.

    Between `parse` and `load`, a value may be the given path; only the code that resolves options reads it.
    """

    placeholder = "FILE"

    #: Larger files are not read.
    most_bytes: int

    @abstractmethod
    def content(self, value: object) -> T:
        """Convert a value that was given instead of a file.

        Raises ValueMismatchError if the option does not accept the value.
        """

    @abstractmethod
    def decode(self, data: bytes) -> T:
        """Convert the content of a file.

        Raises ValueMismatchError if the option does not accept the content. The caller adds the file name.
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
        return cast("T", directory / value) if isinstance(value, Path) else value

    def load(self, value: T) -> T:
        if not isinstance(value, Path):
            return value
        file = repr(str(value))
        try:
            data = read_regular(value, self.most_bytes)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise ValueMismatchError(f"a readable file {file}", f"the error {reason!r}") from error
        if len(data) > self.most_bytes:
            raise ValueMismatchError(
                f"a file {file} of at most {self.most_bytes >> 20} MiB", "one that is larger"
            )
        try:
            with collecting() as texts:
                content = self.decode(data)
        except ValueMismatchError as error:
            raise ValueMismatchError(f"{error.expected} in the file {file}", error.found) from None
        remark(texts, str(value))
        return content


class JsonFile(ParsedFile[T]):
    """A JSON file; in Python, its content consists of the same lists and mappings."""

    #: Most bytes of a file; files of users and exporters are smaller.
    most_bytes = 64 << 20

    def decode(self, data: bytes) -> T:
        try:
            held = parse_json(data)
        except ValueError as error:
            raise ValueMismatchError("JSON", f"a mistake ({error})") from error
        return self.content(held)


def object_of(value: object, needed: Collection[str], allowed: Collection[str], what: str) -> _Object:
    """Return an object of a file; `what` is its name. Unknown keys add a remark.

    Raises ValueMismatchError if the value is not an object, or a required key is missing.
    """
    if not isinstance(value, Mapping):
        raise ValueMismatchError(f"an object as {what}", format_value(value))
    missing = sorted(needed - value.keys())
    if missing:
        raise ValueMismatchError(f"the key {format_value(missing[0])} in {what}", "none")
    remark(unknown_keys(value, sorted({*needed, *allowed})), what)
    return value


def list_of(value: object, what: str) -> Sequence[object]:
    """Return a list of a file; `what` is its name. Raises ValueMismatchError for other values."""
    items = Codec.items(value)
    if items is None:
        raise ValueMismatchError(f"a list as {what}", format_value(value))
    return items


def parse_yaml(data: bytes, known: Container[str]) -> object:
    """Return the lists, mappings and texts of a YAML file, for `ParsedFile.decode`; None if it is empty.

    The values of keys that are not `known` are None. Raises ValueMismatchError if the file is not YAML, has
    too many values or levels, or has a known key twice.
    """
    try:
        root = compose(data)
        return None if root is None or is_null(root) else PlainValues(len(data), known).of(root)
    except YamlFormError as error:
        raise ValueMismatchError(error.expected, f"{error.found} on line {error.line}") from None
    except YamlMistakeError as error:
        place = "" if error.line is None else f" on line {error.line}"
        raise ValueMismatchError("YAML", f"a mistake{place} ({error.problem})") from error


@dataclass(frozen=True, slots=True)
class InputFileContent:
    """A file, and the hexadecimal SHA-256 digest of its content when the options were resolved."""

    path: Path
    sha256: str


class FileContent(Codec[InputFileContent]):
    """The path of a file that exists.

    Between `parse` and `load`, a value is the given path; only the code that resolves options reads it.

    `noun` names the kind of file in messages.
    """

    placeholder = "FILE"

    def __init__(self, noun: str) -> None:
        self.noun = noun
        self.expected = f"the path of a {self.noun}"

    def parse(self, value: object) -> InputFileContent:
        if isinstance(value, InputFileContent):
            return value
        return cast("InputFileContent", FilePath(self.noun).parse(value))

    def rebase(self, value: InputFileContent, directory: Path) -> InputFileContent:
        return cast("InputFileContent", directory / value) if isinstance(value, Path) else value

    def load(self, value: InputFileContent) -> InputFileContent:
        if not isinstance(value, Path):
            return value
        try:
            with open_regular(value) as stream:
                # Files of the kernel report no size, so bytes are also counted.
                digest, size = hashlib.sha256(), 0
                stated = os.fstat(stream.fileno()).st_size
                while max(size, stated) <= _MOST_BYTES and (piece := stream.read(_PIECE_BYTES)):
                    digest.update(piece)
                    size += len(piece)
                if max(size, stated) > _MOST_BYTES:
                    expected = f"a {self.noun} of at most {_MOST_BYTES >> 20} MiB"
                    raise ValueMismatchError(expected, f"{str(value)!r}, which is larger")
        except (NotRegularError, IsADirectoryError):
            raise ValueMismatchError(self.expected, f"{str(value)!r}, which is not a regular file") from None
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise ValueMismatchError(
                f"a readable {self.noun}", f"{str(value)!r} with the error {reason!r}"
            ) from error
        return InputFileContent(value, digest.hexdigest())

    def to_texts(self, value: InputFileContent) -> tuple[str, ...]:
        """See `Codec.to_texts`. Returns the path, even before the file is read."""
        return (str(value if isinstance(value, Path) else value.path),)

    def to_json(self, value: InputFileContent) -> Json:
        """See `Codec.to_json`. Returns the digest instead of the content."""
        return value.sha256
