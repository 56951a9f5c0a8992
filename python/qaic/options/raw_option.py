"""Options as the user gave them: key, raw value and origin.

The origin travels with the value to the last check, so that an error names the option the way the user wrote
it.
"""

import enum
from dataclasses import dataclass
from pathlib import Path


class OptionSource(enum.Enum):
    """Kind of place an option came from."""

    KEYWORD = "keyword argument"
    YAML = "options file"
    ARGV = "flag"


@dataclass(frozen=True, slots=True)
class Origin:
    """The place where an option was given, and its spelling there."""

    #: Kind of place.
    source: OptionSource
    #: The key as written.
    spelling: str
    #: Path of the options file as the user gave it.
    file: Path | None = None
    #: Line in that file, from 1.
    line: int | None = None

    def __str__(self) -> str:
        if self.file is None:
            return self.spelling
        return f"{self.spelling} ({self.file}, line {self.line})"


@dataclass(frozen=True, slots=True)
class RawOption:
    """One option as given."""

    #: Place and spelling of the option.
    origin: Origin
    #: Raw value. In a YAML file every scalar is text; None is an empty or null value.
    value: object
    #: Directory that relative paths in the value start from; None is the current one.
    base: Path | None = None
    #: Canonical name, where the reader knows it: some flags, as ``-m``, are no names elsewhere.
    name: str | None = None

    @property
    def key(self) -> str:
        """The name to look the option up by."""
        return self.origin.spelling if self.name is None else self.name
