"""The option for several sets of shapes."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from qaic.options.codecs.scalars import Json, ValueMismatchError, remark
from qaic.options.codecs.structures import SymbolMap
from qaic.options.files.parsed_file import JsonFile
from qaic.options.names import unknown_keys
from qaic.support.text import format_value

_KEY = "specializations"

#: symbol of flat entries for a step of a decoder
_SEQUENCE = "seq_len"

#: key of the name in a flat entry
_NAME = "_graph_name"


@dataclass(frozen=True, slots=True)
class SpecializationEntry:
    """One set of sizes for the symbolic dimensions of a model, with its name."""

    name: str
    symbols: Mapping[str, int]


class Specializations(JsonFile[tuple[SpecializationEntry, ...]]):
    """Specializations in the order of the file.

    The content of the file is an object with a list ``specializations``; in Python, the object or the list
    may be given instead of the file. An entry is ``{"name": text, "symbols": {symbol: size}}`` or flat,
    ``{symbol: size}``, with the name in ``_graph_name``; sizes may be text.
    """

    def __init__(self) -> None:
        self._symbols = SymbolMap()

    expected = (
        'the path of a JSON file with {"specializations": [{"name": "Decode", "symbols": {"seq_len": 1}}]}'
    )

    def content(self, value: object) -> tuple[SpecializationEntry, ...]:
        if isinstance(value, Mapping):
            if _KEY not in value:
                keys = ", ".join(map(format_value, value)) or "none"
                raise ValueMismatchError(f"an object with the key {format_value(_KEY)}", f"the keys {keys}")
            remark(unknown_keys(value, (_KEY,)))
            value = value[_KEY]
        items = self.items(value)
        if items is None:
            raise ValueMismatchError("a list of specializations", format_value(value))
        entries = [self._entry(item, number) for number, item in enumerate(items)]
        given = Counter(entry.name for entry in entries)
        seen: Counter[str] = Counter()
        named = []
        for entry in entries:
            name = entry.name
            if given[name] > 1:
                seen[name] += 1
                name = f"{name}_{seen[name] - 1}"
            named.append(SpecializationEntry(name, entry.symbols))
        return tuple(named)

    def to_json(self, value: tuple[SpecializationEntry, ...]) -> Json:
        return [{"name": entry.name, "symbols": dict(entry.symbols)} for entry in value]

    def _entry(self, item: object, number: int) -> SpecializationEntry:
        place = f"specialization {number}"
        if isinstance(item, SpecializationEntry):
            item = {"name": item.name, "symbols": item.symbols}
        if not isinstance(item, Mapping):
            raise ValueMismatchError(f"an object with sizes of symbols as {place}", format_value(item))
        if "symbols" not in item:
            symbols = self._sizes({key: size for key, size in item.items() if key != _NAME}, place)
            name = f"Graph_{number}"
            if _SEQUENCE in symbols:
                name = "Decode" if symbols[_SEQUENCE] == 1 else "Prefill"
            return SpecializationEntry(self._name(item.get(_NAME, name), place), symbols)
        remark(unknown_keys(item, ("name", "symbols")), place)
        name = self._name(item.get("name", f"Graph_{number}"), place)
        return SpecializationEntry(name, self._sizes(item["symbols"], place))

    def _name(self, given: object, place: str) -> str:
        if not isinstance(given, str) or not given.strip():
            raise ValueMismatchError(f"text as the name of {place}", format_value(given))
        return given.strip()

    def _sizes(self, value: object, place: str) -> Mapping[str, int]:
        if not isinstance(value, Mapping):
            raise ValueMismatchError(f"an object with sizes of symbols in {place}", format_value(value))
        return self._symbols.parse_part(value, f"in {place}")
