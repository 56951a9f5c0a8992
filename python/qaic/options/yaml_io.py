"""Reading of a YAML options file (compile-options §2).

YAML 1.1 guesses types: a symbol called ``on`` becomes a boolean, the version ``2.0`` a float, ``0x10`` and
``010`` other numbers. The type of an option is known from the table, so the file is read as text only; and
keys are compared here because PyYAML silently keeps the last of two equal ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qaic.errors import OptionConflictError, OptionError
from qaic.options.codecs import Bool, ValueMismatchError
from qaic.options.given import Given, Origin, Source
from qaic.options.names import normalise

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from yaml.nodes import MappingNode, Node, ScalarNode

#: Real option files have a few hundred bytes; the parser takes seconds per megabyte.
MOST_BYTES = 256 * 1024

#: The deepest documented value is a list of mappings that hold a list.
_DEEPEST = 8

#: What the parser may be given; it calls itself once for each level.
_MOST_NESTED = 100

#: Aliases can name one node many times over, so nodes are counted as they are visited, not as they stand in
#: the file.
_MOST_VALUES = 20_000

_NULLS = frozenset({"", "~", "null", "none"})


def read_options_file(path: Path) -> list[Given]:
    """Read the options of a file, in the order of the file.

    Parameters
    ----------
    path
        The YAML file: one flat mapping, or nothing.

    Raises
    ------
    OSError
        The file cannot be read.
    qaic.errors.OptionError
        The file is not a YAML mapping with text keys.
    qaic.errors.OptionConflictError
        A key stands twice, also in two spellings that differ only by hyphens, underscores or case.
    """
    import yaml

    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise _error(
            path,
            None,
            f"an options file has at most {MOST_BYTES} bytes; is this the right file?",
            "too_large",
        )
    try:
        loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
        _refuse_depth(path, yaml.parse(data, Loader=loader))
        root = yaml.compose(data, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        text = " ".join(part for part in (error.context, error.problem) if part)
        raise _error(path, None if mark is None else mark.line + 1, f"not valid YAML: {text}") from None
    except yaml.YAMLError as error:
        raise _error(path, None, f"not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise _error(path, None, "values are nested too deeply") from None
    # An empty document is a null scalar or no node at all.
    if root is None or (isinstance(root, yaml.ScalarNode) and _is_null(root)):
        return []
    if not isinstance(root, yaml.MappingNode):
        found = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
        raise _error(
            path, root.start_mark.line + 1, f'expected lines of the form "option: value", found {found}'
        )
    return _Reader(path).options(root)


class _Reader:
    """Conversion of one document's nodes to Python values."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values = 0

    def options(self, root: MappingNode) -> list[Given]:
        pairs = [(self.key(key), key.start_mark.line + 1, value) for key, value in root.value]
        self.refuse_duplicates([(key, line) for key, line, _ in pairs], normalised=True)
        base: Path | None = None
        given: list[Given] = []
        for key, line, node in pairs:
            # Only a whole option can be "not given"; inside a value, None may well be the name of an input.
            value = None if self.is_null(node) else self.value(node, depth=0)
            if normalise(key) == "relative_path":
                # A key of the ONNX Runtime provider's files: not an option, but a rule for reading the
                # others.
                base = self.path.parent if self.flag(key, line, value) else None
            else:
                given.append(Given(Origin(Source.YAML, key, self.path, line), value))
        return [Given(item.origin, item.value, base) for item in given]

    def flag(self, key: str, line: int, value: object) -> bool:
        if value is None:
            return False
        try:
            return Bool().parse(value)
        except ValueMismatchError as error:
            raise _error(self.path, line, f"{key}: {error}", "invalid_value") from None

    def key(self, node: Node) -> str:
        import yaml

        if not isinstance(node, yaml.ScalarNode):
            raise _error(
                self.path, node.start_mark.line + 1, "a key must be a single word, not a list or a mapping"
            )
        return str(node.value)

    def refuse_duplicates(self, keys: list[tuple[str, int]], *, normalised: bool) -> None:
        seen: dict[str, tuple[str, int]] = {}
        for key, line in keys:
            compared = normalise(key) if normalised else key
            if compared in seen:
                first, first_line = seen[compared]
                other = "" if first == key else f" (as {first})"
                raise OptionConflictError(
                    f"{self.path}: {key} on line {line} was already given on line {first_line}{other}",
                    code="option.duplicate",
                    context={"file": str(self.path), "option": key, "lines": [first_line, line]},
                )
            seen[compared] = (key, line)

    def value(self, node: Node, depth: int) -> object:
        import yaml

        line = node.start_mark.line + 1
        self.values += 1
        if self.values > _MOST_VALUES:
            raise _error(self.path, line, f"more than {_MOST_VALUES} values")
        if depth > _DEEPEST:
            raise _error(self.path, line, "values are nested too deeply")
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, depth + 1) for item in node.value]
        if isinstance(node, yaml.MappingNode):
            keys = [(self.key(key), key.start_mark.line + 1) for key, _ in node.value]
            self.refuse_duplicates(keys, normalised=False)
            return {
                key: self.value(item, depth + 1) for (key, _), (_, item) in zip(keys, node.value, strict=True)
            }
        return str(node.value)

    @staticmethod
    def is_null(node: Node) -> bool:
        import yaml

        return isinstance(node, yaml.ScalarNode) and _is_null(node)


def _refuse_depth(path: Path, events: Iterable[object]) -> None:
    """Refuse values in values in values: the compiled reader has no guard of its own against recursion."""
    import yaml

    depth = 0
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MOST_NESTED:
                mark = event.start_mark
                raise _error(path, None if mark is None else mark.line + 1, "values are nested too deeply")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _is_null(node: ScalarNode) -> bool:
    """Whether a scalar means "not given": quoted text never does."""
    # The compiled reader says "" where the other one says None.
    return not node.style and node.value.lower() in _NULLS


def _error(path: Path, line: int | None, text: str, code: str = "invalid_file") -> OptionError:
    place = str(path) if line is None else f"{path}, line {line}"
    return OptionError(f"{place}: {text}", code=f"option.{code}", context={"file": str(path), "line": line})
