"""The option that selects float16 or float32 for single nodes.

The file is a YAML mapping of two lists of names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qaic.options.codecs.scalars import Json, ValueMismatchError, remark
from qaic.options.files.parsed_file import ParsedFile, parse_yaml
from qaic.options.names import nearest, unknown_keys
from qaic.support.text import format_value
from qaic.support.yaml import LinedDict, LinedList, NullText, shown

_HALF, _FLOAT = PRECISION_KEYS = ("FP16NodeInstanceNames", "FP32NodeInstanceNames")
#: a key of the vendor's files, a switch
_BIAS = "enableFP32Bias"


@dataclass(frozen=True, slots=True)
class NodePrecision:
    """Nodes by the names of their first outputs."""

    #: Names in the given order, without duplicates; no name is in both lists.
    fp16: tuple[str, ...] = ()
    fp32: tuple[str, ...] = ()


class NodePrecisionLists(ParsedFile[NodePrecision]):
    """The content of a node precision file; in Python, also a mapping with the same keys."""

    #: Most bytes of a file; exporters write about 50 per name.
    most_bytes = 4 << 20

    expected = f"the path of a YAML file with lists of names as {_HALF} and {_FLOAT}"

    def content(self, value: object) -> NodePrecision:
        if isinstance(value, NodePrecision):
            return value
        if not isinstance(value, Mapping):
            raise self.mismatch(value)
        _check_keys(list(value))
        lines = value.lines if isinstance(value, LinedDict) else {}
        half, single = (self._names(key, value.get(key, ()), lines.get(key)) for key in PRECISION_KEYS)
        both = [name for name in half if name in single]
        if both:
            where = f" (lines {half[both[0]]} and {single[both[0]]})" if lines else ""
            raise ValueMismatchError(
                "each tensor in one of the lists", f"{len(both)} in both, as {format_value(both[0])}{where}"
            )
        return NodePrecision(tuple(half), tuple(single))

    def decode(self, data: bytes) -> NodePrecision:
        root = parse_yaml(data, PRECISION_KEYS)
        if not isinstance(root, LinedDict):
            raise ValueMismatchError(f"a mapping with {_HALF} or {_FLOAT}", shown(root))
        return self.content(root)

    def _names(self, key: str, names: object, line: int | None) -> dict[str, int | None]:
        """Return the names of a list with their first lines in the file."""
        if isinstance(names, NullText):
            return {}
        items = self.items(names)
        if items is None:
            raise ValueMismatchError(f"a list of names as {key}{_on(line)}", shown(names))
        lines = items.lines if isinstance(items, LinedList) else [None] * len(items)
        found: dict[str, int | None] = {}
        for item, at in zip(items, lines, strict=True):
            if not isinstance(item, str) or not item:
                raise ValueMismatchError(f"a name of a tensor in {key}{_on(at)}", shown(item))
            found.setdefault(str(item), at)
        return found

    def to_json(self, value: NodePrecision) -> Json:
        """See `Codec.to_json`. The order of the names has no meaning."""
        return {_HALF: [*sorted(value.fp16)], _FLOAT: [*sorted(value.fp32)]}


def _check_keys(keys: Sequence[object]) -> None:
    """Refuse an object with only unknown keys, and add remarks about keys without an effect."""
    unknown = [key for key in keys if key not in {*PRECISION_KEYS, _BIAS}]
    if unknown and len(unknown) == len(keys):
        near = nearest(str(unknown[0]), PRECISION_KEYS)
        hint = "" if near is None else f" (did you mean {near}?)"
        raise ValueMismatchError(
            f"the keys {_HALF} and {_FLOAT}", f"the key {format_value(unknown[0])}{hint}"
        )
    if _BIAS in keys:
        remark([f"the key {_BIAS} has no effect: a bias has the precision of its node"])
    remark(unknown_keys(unknown, PRECISION_KEYS))


def _on(line: int | None) -> str:
    return "" if line is None else f" on line {line}"
