"""Encodings in YAML, as AIMET writes them: the keys and values of its JSON files in another notation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from qaic.support.yaml import YamlMistakeError, compose, line, pairs

if TYPE_CHECKING:
    from yaml.nodes import Node

#: of a file; the parser takes seconds per megabyte
_MOST_BYTES: Final = 64 << 20
#: a tensor of a thousand channels has some ten thousand values
_MOST_VALUES: Final = 1 << 23
_DEEPEST: Final = 8

_BEGIN: Final = re.compile(rb"^(activation_encodings|param_encodings|encodings)[ \t]*:", re.MULTILINE)
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,30}", re.ASCII)
_DECIMAL: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_WORDS: Final[dict[str, bool | None]] = {"true": True, "false": False, "null": None, "~": None, "": None}


def is_yaml_of_encodings(data: bytes) -> bool:
    """Return whether a file has the first keys of encodings in the notation of YAML."""
    return _BEGIN.search(data) is not None


def read_yaml(data: bytes) -> dict[str, Any]:
    """Read a file as if it were JSON: plain words are numbers, booleans or nothing where they look so.

    Raises
    ------
    ValueError
        It is no YAML, no mapping, or too large.
    """
    import yaml

    if len(data) > _MOST_BYTES:
        message = (
            f"{len(data)} bytes in YAML, which is slow to read; at most {_MOST_BYTES >> 20} MiB, or JSON"
        )
        raise YamlMistakeError(message)
    root = compose(data)
    if not isinstance(root, yaml.MappingNode):
        raise YamlMistakeError("no mapping at the top")
    reader = _Reader()
    return {key: reader.of(value, 1) for key, _, value in pairs(root)}


class _Reader:
    """Conversion of nodes, which counts them: an alias may stand for many."""

    def __init__(self) -> None:
        self._visited = 0

    def of(self, node: Node, depth: int) -> Any:
        import yaml

        self._visited += 1
        if self._visited > _MOST_VALUES or depth > _DEEPEST:
            raise YamlMistakeError("more or deeper values than encodings have", line(node))
        if isinstance(node, yaml.SequenceNode):
            return [self.of(item, depth + 1) for item in node.value]
        if isinstance(node, yaml.MappingNode):
            return {key: self.of(value, depth + 1) for key, _, value in pairs(node)}
        text = str(node.value)
        # A plain word has no style, which the two parsers write differently.
        if isinstance(node, yaml.ScalarNode) and node.style:
            return text
        if text.lower() in _WORDS:
            return _WORDS[text.lower()]
        if _INTEGER.fullmatch(text):
            return int(text)
        return float(text) if _DECIMAL.fullmatch(text) else text
