"""Custom operators, and the engine libraries that implement them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Library:
    """An engine library with custom operators, as the container describes it."""

    path: Path
    size: int
    crc32: int

    def to_json(self) -> dict[str, object]:
        """Return the JSON for the container, without folders of this machine."""
        return {"name": self.path.name, "size": self.size, "crc32": self.crc32}


@dataclass(frozen=True, slots=True)
class CustomOps:
    """Contents of the descriptions."""

    #: the library of each operator; None if the description has none for the interpreter
    operators: Mapping[str, Library | None]

    @property
    def libraries(self) -> list[Library]:
        """Each library once, in the order of the descriptions."""
        return list(dict.fromkeys(library for library in self.operators.values() if library is not None))

    @property
    def implemented(self) -> frozenset[str]:
        """Operators that a library implements."""
        return frozenset(name for name, library in self.operators.items() if library is not None)
