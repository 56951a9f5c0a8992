"""The option that puts single nodes on fp16 or fp32 (compile-options §3.3).

The file is a YAML mapping of two lists of names. It is read as text with line numbers: a tensor may be called
``on`` or ``12``, and YAML would make something else of it and keep the last of two equal keys.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from qaic.options.codecs import Codec, FilePath, Json, ValueMismatchError, shown

if TYPE_CHECKING:
    from yaml.nodes import Node

#: exporters write some 50 bytes per name; the parser takes seconds per megabyte
_MOST_BYTES: Final = 4 << 20

_HALF, _FLOAT = _KEYS = ("FP16NodeInstanceNames", "FP32NodeInstanceNames")


@dataclass(frozen=True, slots=True)
class NodePrecision:
    """Nodes by the names of their first outputs.

    Parameters
    ----------
    fp16, fp32
        Names in the order given, each once; no name is in both.
    """

    fp16: tuple[str, ...] = ()
    fp32: tuple[str, ...] = ()


class NodePrecisionLists(Codec[NodePrecision]):
    """The content of a node precision file; from Python also a mapping with the same keys."""

    @property
    def expected(self) -> str:
        """See `Codec.expected`."""
        return f"the path of a YAML file with lists of names as {_HALF} and {_FLOAT}"

    def parse(self, value: object) -> NodePrecision:
        """See `Codec.parse`. Text is a path; between `parse` and `load` the value is one."""
        if isinstance(value, NodePrecision):
            return value
        if isinstance(value, str | os.PathLike):
            try:
                return cast("NodePrecision", FilePath().parse(value))
            except ValueMismatchError as error:
                raise ValueMismatchError(self.expected, error.found) from None
        if not isinstance(value, Mapping):
            raise self.mismatch(value)
        lists = {_known(key, ""): _names(key, names) for key, names in value.items()}
        return _separate(lists, lambda _: "")

    def to_json(self, value: NodePrecision) -> Json:
        """See `Codec.to_json`. The order of the names has no meaning."""
        return {_HALF: [*sorted(value.fp16)], _FLOAT: [*sorted(value.fp32)]}

    def rebase(self, value: NodePrecision, directory: Path) -> NodePrecision:
        """See `Codec.rebase`."""
        return cast("NodePrecision", directory / value) if isinstance(value, Path) else value

    def load(self, value: NodePrecision) -> NodePrecision:
        """See `Codec.load`."""
        return _read(value) if isinstance(value, Path) else value


def _read(path: Path) -> NodePrecision:
    import yaml

    file = repr(str(path))
    try:
        with path.open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ValueMismatchError(f"a readable file {file}", f"the error {reason!r}") from error
    if len(data) > _MOST_BYTES:
        raise ValueMismatchError(f"a file {file} of at most {_MOST_BYTES >> 20} MiB", "one that is larger")
    try:
        root = yaml.compose(data, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = "" if mark is None else f" on line {mark.line + 1}"
        text = " ".join(part for part in (error.context, error.problem) if part)
        raise ValueMismatchError(f"YAML in the file {file}", f"a mistake{place} ({text})") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        text = " ".join(str(error).split())
        raise ValueMismatchError(f"YAML in the file {file}", f"a mistake ({text})") from error
    try:
        return _content(root)
    except ValueMismatchError as error:
        raise ValueMismatchError(f"{error.expected} in the file {file}", error.found) from None


def _content(root: Node | None) -> NodePrecision:
    import yaml

    if not isinstance(root, yaml.MappingNode):
        raise ValueMismatchError(f"a mapping with {_HALF} or {_FLOAT}", _kind(root))
    lists: dict[str, tuple[str, ...]] = {}
    lines: dict[tuple[str, str], int] = {}
    for key, value in root.value:
        place = _line(key)
        if not isinstance(key, yaml.ScalarNode):
            raise ValueMismatchError(f"a word as key{place}", _kind(key))
        name = _known(key.value, place)
        if name in lists:
            raise ValueMismatchError(f"each key once, {name}{place}", "it twice")
        # Nothing behind the key is a list of nothing.
        if isinstance(value, yaml.ScalarNode) and not value.value and value.style is None:
            lists[name] = ()
            continue
        if not isinstance(value, yaml.SequenceNode):
            raise ValueMismatchError(f"a list of names as {name}{_line(value)}", _kind(value))
        for item in value.value:
            if not isinstance(item, yaml.ScalarNode) or not item.value:
                raise ValueMismatchError(f"a name of a tensor in {name}{_line(item)}", _kind(item))
            lines.setdefault((name, item.value), item.start_mark.line + 1)
        lists[name] = tuple(dict.fromkeys(item.value for item in value.value))
    return _separate(lists, lambda name: f" (lines {lines[_HALF, name]} and {lines[_FLOAT, name]})")


def _known(key: object, place: str) -> str:
    """Give a key back that is one of the two."""
    if key not in _KEYS:
        near = get_close_matches(str(key), _KEYS, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueMismatchError(f"the keys {_HALF} and {_FLOAT}{place}{hint}", f"the key {shown(key)}")
    return str(key)


def _names(key: object, names: object) -> tuple[str, ...]:
    """Check a list from Python."""
    if isinstance(names, Sequence) and not isinstance(names, str | bytes | bytearray):
        items: Iterable[object] = names
        if all(isinstance(item, str) and item for item in items):
            return tuple(dict.fromkeys(map(str, names)))
    raise ValueMismatchError(f"a list of names of tensors as {key}", shown(names))


def _separate(lists: Mapping[str, tuple[str, ...]], place: Callable[[str], str]) -> NodePrecision:
    """Refuse a tensor in both lists; `place` says where it stands."""
    half, single = lists.get(_HALF, ()), lists.get(_FLOAT, ())
    singles = set(single)
    both = [name for name in half if name in singles]
    if both:
        where = place(both[0])
        raise ValueMismatchError(
            "each tensor in one of the lists", f"{len(both)} in both, as {shown(both[0])}{where}"
        )
    return NodePrecision(half, single)


def _line(node: Node) -> str:
    return f" on line {node.start_mark.line + 1}"


def _kind(node: Node | None) -> str:
    import yaml

    if node is None:
        return "nothing"
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    return "a list" if isinstance(node, yaml.SequenceNode) else shown(node.value)
