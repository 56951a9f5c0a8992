"""Custom operators: the location of each implementation (`register_custom_op`).

A description names implementations for several targets. This module uses the one for the interpreter, an
engine library with custom operators. If there is none, a function of the model with the operator's name is
used.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from qaic import _core
from qaic.compiler.ir.interface import CustomOps, Library
from qaic.errors import OptionError
from qaic.options.files.parsed_file import InputFileContent
from qaic.support.open_regular import open_regular, read_regular
from qaic.support.yaml import PlainValues, YamlMistakeError, compose

_OPTION: Final = "register_custom_op"

#: most bytes of a description, which is usually a page of text
_MOST_BYTES: Final = 1 << 20

#: deepest level of a document that is searched for an operator
_DEPTH: Final = 4


def read(files: Sequence[InputFileContent]) -> CustomOps:
    """Read descriptions of custom operators, and allow this process to load their libraries.

    Raises OptionError if a file is not a description, defines an operator twice, or its library cannot be
    read.
    """
    operators: dict[str, Library | None] = {}
    for file in files:
        for name, place in _operators(file.path):
            if name in operators:
                raise _error(file.path, f"operator {name!r} is described twice; remove one description")
            operators[name] = None if place is None else _measured(file.path, place)
    found = CustomOps(operators)
    for library in found.libraries:
        _core.allow_custom_op_library(library.path)
    return found


def _operators(path: Path) -> Iterator[tuple[str, Path | None]]:
    """Yield the operators of one description, each with its library for the interpreter."""
    document = _document(path)
    count = 0
    for entry in _entries(document, _DEPTH):
        name = _name_of(entry)
        if name is None:
            raise _error(path, "an operator has implementations but no name; add the key name")
        count += 1
        yield name, _library_of(path, name, entry["implementations"])
    if not count:
        raise _error(path, "found no operator; a mapping with name and implementations is expected")


def _document(path: Path) -> object:
    data = read_regular(path, _MOST_BYTES)
    if len(data) > _MOST_BYTES:
        raise _error(path, f"the file is larger than {_MOST_BYTES >> 20} MiB")
    try:
        root = compose(data)
        return None if root is None else PlainValues().of(root)
    except YamlMistakeError as error:
        raise _error(path, f"the file is not a YAML description: {error}") from error


def _entries(value: object, depth: int) -> Iterator[Mapping[str, object]]:
    if isinstance(value, Mapping):
        if "implementations" in value:
            yield value
        elif depth:
            for item in value.values():
                yield from _entries(item, depth - 1)
    elif isinstance(value, Sequence) and not isinstance(value, str) and depth:
        for item in value:
            yield from _entries(item, depth - 1)


def _name_of(entry: Mapping[str, object]) -> str | None:
    """Find the name of the operator, next to its implementations or in its section."""
    for section in (entry, *(item for item in entry.values() if isinstance(item, Mapping))):
        name = section.get("name")
        if isinstance(name, str) and name:
            return name
    return None


def _library_of(path: Path, name: str, implementations: object) -> Path | None:
    if not isinstance(implementations, Sequence) or isinstance(implementations, str):
        raise _error(path, f"implementations of {name!r} are not a list")
    for item in implementations:
        if not isinstance(item, Mapping) or not isinstance(item.get("backend"), str):
            raise _error(path, f"an implementation of {name!r} has no backend")
        if str(item["backend"]).lower() == "interpreter":
            library = item.get("impl")
            if not isinstance(library, str) or not library:
                raise _error(
                    path, f"the implementation of {name!r} for the interpreter has no impl (a library)"
                )
            return (path.parent / library).absolute()
    return None


def _measured(path: Path, library: Path) -> Library:
    crc32 = size = 0
    try:
        with open_regular(library) as stream:
            while piece := stream.read(1 << 20):
                crc32 = zlib.crc32(piece, crc32)
                size += len(piece)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise _error(path, f"the library {str(library)!r} cannot be read: {reason}") from error
    return Library(library, size, crc32)


def _error(path: Path, message: str) -> OptionError:
    return OptionError(
        f"{_OPTION}: {str(path)!r}: {message}",
        code=f"option.{_OPTION}",
        context={"options": [_OPTION], "path": str(path)},
    )
