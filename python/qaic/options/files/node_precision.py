"""The option that selects float16 or float32 for single nodes.

The file is a YAML mapping of two lists of names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qaic.options.codecs.scalars import Json, ValueMismatchError, remark
from qaic.options.files.parsed_file import ParsedFile, parse_yaml
from qaic.options.names import nearest, unknown_keys
from qaic.support.text import format_value
from qaic.support.yaml import is_null, kind, line

if TYPE_CHECKING:
    from yaml.nodes import Node

_HALF, _FLOAT = _KEYS = ("FP16NodeInstanceNames", "FP32NodeInstanceNames")
#: a key of the vendor's files, a switch
_BIAS = "enableFP32Bias"


@dataclass(frozen=True, slots=True)
class NodePrecision:
    """Nodes by the names of their first outputs."""

    #: Names in the order given, each once; no name is in both.
    fp16: tuple[str, ...] = ()
    fp32: tuple[str, ...] = ()


class NodePrecisionLists(ParsedFile[NodePrecision]):
    """The content of a node precision file; from Python also a mapping with the same keys."""

    #: Exporters write some 50 bytes per name.
    most_bytes = 4 << 20

    expected = f"the path of a YAML file with lists of names as {_HALF} and {_FLOAT}"

    def content(self, value: object) -> NodePrecision:
        if isinstance(value, NodePrecision):
            return value
        if not isinstance(value, Mapping):
            raise self.mismatch(value)
        _check_keys(list(value))
        lists = {str(key): _names(key, names) for key, names in value.items() if key in _KEYS}
        return _separate(lists, lambda _: "")

    def decode(self, data: bytes) -> NodePrecision:
        return _content(parse_yaml(data))

    def to_json(self, value: NodePrecision) -> Json:
        """See `Codec.to_json`. The order of the names has no meaning."""
        return {_HALF: [*sorted(value.fp16)], _FLOAT: [*sorted(value.fp32)]}


def _content(root: Node | None) -> NodePrecision:
    import yaml

    if not isinstance(root, yaml.MappingNode):
        raise ValueMismatchError(f"a mapping with {_HALF} or {_FLOAT}", kind(root))
    lists: dict[str, tuple[str, ...]] = {}
    lines: dict[tuple[str, str], int] = {}
    for key, _ in root.value:
        if not isinstance(key, yaml.ScalarNode):
            raise ValueMismatchError(f"a word as key{_line(key)}", kind(key))
    _check_keys([key.value for key, _ in root.value])
    for key, value in root.value:
        place, name = _line(key), key.value
        if name not in _KEYS:
            continue
        if name in lists:
            raise ValueMismatchError(f"each key once, {name}{place}", "it twice")
        # A key without a value means an empty list.
        if is_null(value):
            lists[name] = ()
            continue
        if not isinstance(value, yaml.SequenceNode):
            raise ValueMismatchError(f"a list of names as {name}{_line(value)}", kind(value))
        for item in value.value:
            if not isinstance(item, yaml.ScalarNode) or not item.value:
                raise ValueMismatchError(f"a name of a tensor in {name}{_line(item)}", kind(item))
            lines.setdefault((name, item.value), line(item))
        lists[name] = tuple(dict.fromkeys(item.value for item in value.value))
    return _separate(lists, lambda name: f" (lines {lines[_HALF, name]} and {lines[_FLOAT, name]})")


def _check_keys(keys: Sequence[object]) -> None:
    """Refuse an object of unknown keys only, in which nothing has a meaning; remark on what has no effect."""
    unknown = [key for key in keys if key not in {*_KEYS, _BIAS}]
    if unknown and len(unknown) == len(keys):
        near = nearest(str(unknown[0]), _KEYS)
        hint = "" if near is None else f" (did you mean {near}?)"
        raise ValueMismatchError(
            f"the keys {_HALF} and {_FLOAT}", f"the key {format_value(unknown[0])}{hint}"
        )
    if _BIAS in keys:
        remark([f"the key {_BIAS} has no effect: a bias has the precision of its node"])
    remark(unknown_keys(unknown, _KEYS))


def _names(key: object, names: object) -> tuple[str, ...]:
    """Check a list from Python."""
    items = ParsedFile.items(names)
    if items is not None and all(isinstance(item, str) and item for item in items):
        return tuple(dict.fromkeys(map(str, items)))
    raise ValueMismatchError(f"a list of names of tensors as {key}", format_value(names))


def _separate(lists: Mapping[str, tuple[str, ...]], place: Callable[[str], str]) -> NodePrecision:
    """Refuse a tensor in both lists; `place` states where it stands."""
    half, single = lists.get(_HALF, ()), lists.get(_FLOAT, ())
    singles = set(single)
    both = [name for name in half if name in singles]
    if both:
        where = place(both[0])
        raise ValueMismatchError(
            "each tensor in one of the lists", f"{len(both)} in both, as {format_value(both[0])}{where}"
        )
    return NodePrecision(half, single)


def _line(node: Node) -> str:
    return f" on line {line(node)}"
