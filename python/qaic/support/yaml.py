"""YAML as a tree of text, with line numbers.

YAML 1.1 guesses types: a tensor called ``on`` becomes a boolean, the version ``2.0`` a float, ``0x10`` and
``010`` other numbers. The reader of a value knows its type, so every scalar stays text here.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any, cast

from qaic.support.text import format_value

if TYPE_CHECKING:
    from yaml.nodes import MappingNode, Node, ScalarNode

#: The parser calls itself once for each level.
_MOST_NESTED = 100

#: The deepest documented value is a list of mappings that hold a list.
_DEEPEST = 8

#: Aliases can repeat a node many times, so visited nodes are counted, not nodes of the file.
_MOST_VALUES = 1 << 18

_NULLS = frozenset({"", "~", "null", "none"})


class YamlMistakeError(ValueError):
    """The text is not YAML, or has another form than the one that is read (`YamlFormError`).

    `problem` is the defect; `line` is its line, from 1, or None if the parser does not report it.
    """

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem if line is None else f"{problem}, on line {line}")
        self.problem = problem
        self.line = line


class YamlFormError(YamlMistakeError):
    """The text is YAML, but has `found`, where its readers need `expected`."""

    def __init__(self, expected: str, found: str, line: int | None, problem: str = "") -> None:
        super().__init__(problem or f"expected {expected}, found {found}", line)
        self.expected = expected
        self.found = found


class DuplicateKeyError(YamlFormError):
    """A mapping has a duplicate key, of which a parser would silently keep the last.

    `key` and `line` are the second of the two, `first` and `first_line` the first.
    """

    def __init__(self, key: str, line: int, first: str, first_line: int) -> None:
        problem = f"the key {key!r} is already on line {first_line}"
        super().__init__("each key once", f"{key} twice", line, problem)
        self.key = key
        self.first = first
        self.lines = (first_line, line)


def compose(data: bytes) -> Node | None:
    """Return the root of the only document, or None.

    Aliases put one node in several places, even in itself, so a walk must limit its visits.

    Raises YamlMistakeError if the text is not YAML or has several documents, and YamlFormError if it has more
    than 100 levels.
    """
    import yaml

    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        depth = 0
        # Events are read first, because the compiled reader has no limit of recursion.
        for event in yaml.parse(data, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _MOST_NESTED:
                raise _too_deep(_MOST_NESTED, _line_of(event.start_mark))
        return yaml.compose(data, Loader=loader)
    except yaml.MarkedYAMLError as error:
        text = " ".join(part for part in (error.context, error.problem) if part)
        raise YamlMistakeError(text, _line_of(error.problem_mark or error.context_mark)) from error
    except yaml.YAMLError as error:
        raise YamlMistakeError(" ".join(str(error).split())) from error
    except RecursionError as error:
        raise YamlMistakeError("values are nested too deeply") from error


def pairs(
    node: MappingNode, compared: Callable[[str], str] = str, known: Container[str] | None = None
) -> list[tuple[str, int, Node]]:
    """Return the keys of a mapping, the line of each, and the nodes of their values.

    `compared` returns the common form of different spellings of a key. Raises DuplicateKeyError for a
    duplicate key, if it is one of `known` or these are None, and YamlFormError if a key is a list or a
    mapping.
    """
    import yaml

    seen: dict[str, tuple[str, int]] = {}
    found: list[tuple[str, int, Node]] = []
    for key, value in node.value:
        at = line(key)
        if not isinstance(key, yaml.ScalarNode):
            raise YamlFormError("a single word as key", "a list or a mapping", at)
        text = str(key.value)
        if compared(text) in seen and (known is None or text in known):
            raise DuplicateKeyError(text, at, *seen[compared(text)])
        seen[compared(text)] = (text, at)
        found.append((text, at, value))
    return found


class NullText(str):
    """An unquoted scalar of a file that means null, as its text."""

    __slots__ = ()


class LinedList(list[object]):
    """A list of a file; `lines` are those of its items, from 1."""

    lines: list[int]


class LinedDict(dict[str, object]):
    """A mapping of a file; `lines` are those of its keys, from 1."""

    lines: dict[str, int]


class PlainValues:
    """Conversion of the nodes of one document to text, lists and mappings, within bounds.

    `size` is the number of bytes of the document: only aliases make more values of it. The values of keys
    that are not `known` become None, whatever they are; if `known` is None, all keys are known.
    """

    def __init__(self, size: int = 0, known: Container[str] | None = None) -> None:
        self._visited, self._most, self._known = 0, max(size, _MOST_VALUES), known

    def of(self, node: Node, depth: int = 0) -> Any:
        """Return the value of a node.

        Raises the errors of `pairs`, and YamlFormError for more than 8 levels, or for more values than 2^18
        and the number of bytes.
        """
        import yaml

        self._visited += 1
        if self._visited > self._most:
            raise YamlFormError(f"at most {self._most} values", "more", line(node))
        if depth > _DEEPEST:
            raise _too_deep(_DEEPEST, line(node))
        if isinstance(node, yaml.SequenceNode):
            items = LinedList(self.of(item, depth + 1) for item in node.value)
            items.lines = list(map(line, node.value))
            return items
        if isinstance(node, yaml.MappingNode):
            entries, entries.lines = LinedDict(), {}
            for key, at, item in pairs(node, known=self._known):
                is_known = self._known is None or key in self._known
                entries[key] = self.of(item, depth + 1) if is_known else None
                entries.lines[key] = at
            return entries
        return self.scalar(cast("ScalarNode", node))

    def scalar(self, node: ScalarNode) -> object:
        """Return the value of a single word, as text."""
        return NullText(node.value) if is_null(node) else str(node.value)


def line(node: Node) -> int:
    """Return the line on which a node begins, from 1."""
    return int(node.start_mark.line) + 1


def is_null(node: Node) -> bool:
    """Return True if a node is an unquoted scalar that means null."""
    import yaml

    # The compiled reader has "" where the other one has None.
    return isinstance(node, yaml.ScalarNode) and not node.style and node.value.lower() in _NULLS


def shown(value: object) -> str:
    """Return a value for messages; of lists and mappings of a file, only the kind."""
    if isinstance(value, NullText):
        return format_value(None)
    kind = "a mapping" if isinstance(value, LinedDict) else "a list" if isinstance(value, LinedList) else ""
    return kind or format_value(value)


def _too_deep(most: int, line: int | None) -> YamlFormError:
    return YamlFormError(f"at most {most} levels of lists and mappings", "more", line)


def _line_of(mark: object) -> int | None:
    number = getattr(mark, "line", None)
    return None if number is None else int(number) + 1
