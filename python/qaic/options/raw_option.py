"""Options as the user gave them: key, raw value and origin.

The origin stays with the value until the last check, so that errors show the option in the user's spelling.
"""

import enum
from dataclasses import dataclass
from pathlib import Path


class OptionSource(enum.Enum):
    """Kind of place of a given option."""

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
        return self.spelling if self.file is None else f"{self.spelling} ({self.file}, line {self.line})"


@dataclass(frozen=True, slots=True)
class RawOption:
    """One given option."""

    #: Place and spelling of the option.
    origin: Origin
    #: Raw value. In a YAML file every scalar is text; None is an empty or null value.
    value: object
    #: Directory for relative paths in the value; None is the current directory.
    base: Path | None = None
    #: Canonical name, if the reader knows it; some flags, such as ``-m``, are not names of options.
    name: str | None = None

    @property
    def key(self) -> str:
        """Name for the lookup of the option."""
        return self.origin.spelling if self.name is None else self.name
