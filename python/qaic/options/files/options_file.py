"""Reads a YAML options file: one flat mapping without duplicate options."""

from pathlib import Path
from typing import TYPE_CHECKING

from qaic.errors import OptionConflictError, OptionError
from qaic.options.codecs.scalars import Bool, ValueMismatchError
from qaic.options.names import normalize
from qaic.options.raw_option import OptionSource, Origin, RawOption
from qaic.support.open_regular import read_regular
from qaic.support.yaml import (
    DuplicateKeyError,
    PlainValues,
    YamlFormError,
    YamlMistakeError,
    compose,
    is_null,
    line,
    pairs,
)

if TYPE_CHECKING:
    from yaml.nodes import MappingNode

#: Most bytes; real files have a few hundred, and the parser takes seconds per megabyte.
MOST_BYTES = 256 * 1024


def read_options_file(path: Path) -> list[RawOption]:
    """Read the options of a file, in the order of the file.

    The file contains one flat mapping, or is empty. Raises OSError if the file cannot be read, OptionError if
    it is not a YAML mapping with text keys, and OptionConflictError if a key occurs twice, even in spellings
    that differ only in hyphens, underscores or case.
    """
    import yaml

    data = read_regular(path, MOST_BYTES)
    if len(data) > MOST_BYTES:
        raise _error(
            path,
            None,
            f"an options file has at most {MOST_BYTES} bytes; is this the right file?",
            "too_large",
        )
    try:
        root = compose(data)
        if root is None or is_null(root):
            return []
        if isinstance(root, yaml.MappingNode):
            return _options(path, root)
        found = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
        raise YamlFormError('lines of the form "option: value"', found, line(root))  # noqa: TRY301
    except DuplicateKeyError as error:
        first, last = error.lines
        other = "" if error.first == error.key else f" (as {error.first})"
        raise OptionConflictError(
            f"{path}: {error.key} on line {last} was already given on line {first}{other}",
            code="option.duplicate",
            context={"file": str(path), "option": error.key, "lines": [first, last]},
        ) from None
    except YamlFormError as error:
        raise _error(path, error.line, error.problem) from None
    except YamlMistakeError as error:
        raise _error(path, error.line, f"not valid YAML: {error.problem}") from None


def _options(path: Path, root: "MappingNode") -> list[RawOption]:
    values = PlainValues()
    base: Path | None = None
    given: list[RawOption] = []
    for key, at, node in pairs(root, normalize):
        # Only an option can be "not given"; inside a value, None may be the name of an input.
        value = None if is_null(node) else values.of(node)
        if normalize(key) == "relative_path":
            # This key of files of the ONNX Runtime provider is not an option; it affects how others are read.
            base = path.parent if _flag(path, key, at, value) else None
        else:
            given.append(RawOption(Origin(OptionSource.YAML, key, path, at), value))
    return [RawOption(item.origin, item.value, base) for item in given]


def _flag(path: Path, key: str, at: int, value: object) -> bool:
    if value is None:
        return False
    try:
        return Bool().parse(value)
    except ValueMismatchError as error:
        raise _error(path, at, f"{key}: {error}", "invalid_value") from None


def _error(path: Path, at: int | None, text: str, code: str = "invalid_file") -> OptionError:
    place = str(path) if at is None else f"{path}, line {at}"
    return OptionError(f"{place}: {text}", code=f"option.{code}", context={"file": str(path), "line": at})
