"""CalibrationProfile files: three YAML documents, in the format of Glow.

Large files are usual (512 numbers for each tensor) and YAML parsers are slow. Histograms in the form of the
tools are therefore read without the parser.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnx

from qaic import _core
from qaic.compiler.ir.quantization import CalibrationProfile, TensorProfile
from qaic.errors import OptionError

#: longest name in a file; longer names are cut
_MOST_CHARS: Final = 500
_OTHER: Final = r"[^A-Za-z0-9_]"
_NUMBERED: Final = r"(?s)(.+)__([0-9]{1,9})(:[0-9]{1,9})?"


def legalize(name: str) -> str:
    """Convert a name to letters, digits and underscores, not too long, with a letter before a first digit."""
    legal = re.sub(_OTHER, "_", name)
    if legal[:1].isdigit():
        legal = f"A{legal}"
    if len(legal) > _MOST_CHARS:
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        legal = f"{legal[: _MOST_CHARS - 17]}_{digest}"
    return legal


def entry_keys(graph: onnx.GraphProto) -> dict[str, str]:
    """Map every input and every result of a node of the main graph to its key in a profile file."""
    keys: dict[str, str] = {}
    taken: dict[str, int] = {}
    for value in graph.input:
        keys[value.name] = f"{_unique(legalize(value.name), taken)}:0"
    for node in graph.node:
        results = [(position, name) for position, name in enumerate(node.output) if name]
        if not results:
            continue
        legal = _unique(legalize(node.name or results[0][1]), taken)
        for position, name in results:
            keys[name] = f"{legal}:{position}"
    return keys


def _unique(name: str, taken: dict[str, int]) -> str:
    """Return an unused name; ``taken`` contains the last number used for each name."""
    made = name
    while made in taken:
        taken[name] += 1
        made = f"{name}__{taken[name]}"
    taken[made] = 0
    return made


def find_keys(keys: Mapping[str, str], present: Iterable[str], *, written_by_us: bool) -> dict[str, str]:
    """Find the entry of each tensor in a profile file.

    With `written_by_us`, `entry_keys` made all keys. Other keys may be names of tensors, which are tried
    first. In a file of this package, a node could have the name of another node's result. Returns a map from
    tensor to key, without tensors that have no entry.
    """
    held = set(present)
    if written_by_us:
        return {name: key for name, key in keys.items() if key in held}
    candidates = {name: _candidates(name, key) for name, key in keys.items()}
    # A key that equals a tensor's name is not the numbered key of another tensor.
    last = _last_of_each(held.difference(*candidates.values()))
    found: dict[str, str] = {}
    for name in keys:
        for candidate in candidates[name]:
            if candidate in held or candidate in last:
                found[name] = last.get(candidate, candidate)
                break
    return found


def _candidates(name: str, key: str) -> tuple[str, ...]:
    """Return the keys that a file may have for a tensor, most likely first."""
    legal = legalize(name)
    return name, f"{name}:0", key, legal, f"{legal}:0"


def _last_of_each(present: Iterable[str]) -> dict[str, str]:
    """Map each key without its number to the key with the highest number."""
    last: dict[str, tuple[int, str]] = {}
    for key in present:
        parts = re.fullmatch(_NUMBERED, key)
        if parts is not None:
            plain, number = parts[1] + (parts[3] or ""), int(parts[2])
            if number > last.get(plain, (-1, ""))[0]:
                last[plain] = (number, key)
    return {plain: key for plain, (_, key) in last.items()}


TOOL: Final = "openqaic"
NAME: Final = "NodeOutputName"
HEADERS: Final = ("GlowToolsVersion", "GraphPreLowerHash")
_MEASURED: Final = ("Min", "Max", "Histogram")
_FIXED: Final = ("Scale", "Offset")

MOST_BINS: Final = 1 << 20
_MOST_ENTRIES: Final = 1 << 20

DECIMAL: Final = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"
_INTEGER: Final = r"[+-]?[0-9]{1,10}"
_HASH: Final = r"0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20}"


@dataclass(slots=True)
class ProfileFile:
    """Content of a profile file."""

    #: the tool that wrote the file; empty if not stated
    tool: str = ""
    #: hash of the graph of the profile; None if not stated
    graph_hash: int | None = None
    #: profiles by key, in order
    entries: dict[str, TensorProfile] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        """True if this package wrote the file. Only then are its names and graph hash comparable."""
        return self.tool.startswith(TOOL)

    def bind(self, graph: onnx.GraphProto) -> CalibrationProfile:
        """Map the entries to the tensors of a graph."""
        found = find_keys(entry_keys(graph), self.entries, written_by_us=self.is_ours)
        tensors = {name: self.entries[key] for name, key in found.items()}
        return CalibrationProfile(tensors, self.graph_hash or 0)


def wrong(file: str, line: int, key: str, found: str, expected: str) -> OptionError:
    """Return the error for a key of a file."""
    return OptionError(
        f"profile {file}, line {line}: {key}: found {found}, expected {expected}",
        code="profile.malformed",
        context={"file": file, "line": line, "key": key},
    )


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


class ProfileBuilder:
    """Receives keys and values in the order of the file and checks each."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.made = ProfileFile()
        self._line = 0
        self._lines: dict[str, int] = {}
        self._fields: dict[str, str | Sequence[str]] | None = None

    def header(self, key: str, value: str | Sequence[str], line: int) -> None:
        """Add a key of one of the first two documents."""
        self._close()
        if key not in HEADERS:
            raise wrong(self.file, line, key, "an unknown key", f"{HEADERS[0]} or {HEADERS[1]}")
        if key in self._lines:
            raise wrong(self.file, line, key, "the key a second time", "it once")
        self._lines[key] = line
        if not isinstance(value, str):
            raise wrong(self.file, line, key, "a list", "one value")
        if key == HEADERS[0]:
            self.made.tool = value
            return
        if not re.fullmatch(_HASH, value) or int(value, 0 if value[:2] in {"0x", "0X"} else 10) >= 1 << 64:
            raise wrong(self.file, line, key, _shown(value), "a 64-bit number like 0x0123456789abcdef")
        self.made.graph_hash = int(value, 16 if value[:2] in {"0x", "0X"} else 10)

    def entry(self, line: int) -> None:
        """Begin an entry of the last document."""
        self._close()
        if len(self.made.entries) >= _MOST_ENTRIES:
            raise wrong(self.file, line, NAME, f"more than {_MOST_ENTRIES} entries", "as many as a model has")
        self._fields = {}
        self._line = line

    def field(self, key: str, value: str | Sequence[str], line: int) -> None:
        """Add a key of an entry."""
        if self._fields is None:
            raise wrong(self.file, line, key, "a key outside an entry", "a list of entries, each with '- '")
        if key != NAME and key not in _MEASURED and key not in _FIXED:
            known = ", ".join((NAME, *_MEASURED))
            raise wrong(self.file, line, key, "an unknown key", f"one of {known}")
        if key in self._fields:
            raise wrong(self.file, line, key, "the key a second time", "it once in an entry")
        if isinstance(value, str) is (key == "Histogram"):
            form = "one value" if isinstance(value, str) else "a list"
            raise wrong(
                self.file, line, key, form, "a list of numbers" if key == "Histogram" else "one value"
            )
        if key == "Histogram":
            if len(value) > MOST_BINS:
                raise wrong(self.file, line, key, f"{len(value)} bins", f"at most {MOST_BINS}")
        elif key in _MEASURED or key == "Scale":
            assert isinstance(value, str)  # noqa: S101  # checked above
            if not re.fullmatch(DECIMAL, value):
                raise wrong(self.file, line, key, _shown(value), "a decimal number")
        elif key == "Offset" and not re.fullmatch(_INTEGER, str(value)):
            raise wrong(self.file, line, key, _shown(str(value)), "an integer")
        self._fields[key] = value

    def finish(self) -> ProfileFile:
        """Return the parsed entries."""
        self._close()
        return self.made

    def _close(self) -> None:
        fields, self._fields = self._fields, None
        if fields is None:
            return
        line = self._line
        name = fields.get(NAME)
        if not isinstance(name, str) or not name:
            raise wrong(self.file, line, NAME, "an entry without a name", "the name of a tensor")
        if name in self.made.entries:
            raise wrong(self.file, line, NAME, f"{_shown(name)} a second time", "one entry for each tensor")
        self.made.entries[name] = (
            self._fixed(fields, name)
            if any(key in fields for key in _FIXED)
            else self._measured(fields, name)
        )

    def _fixed(self, fields: dict[str, str | Sequence[str]], name: str) -> TensorProfile:
        mixed = [key for key in _MEASURED if key in fields]
        missing = [key for key in _FIXED if key not in fields]
        if mixed or missing:
            found = f"{mixed[0]} beside Scale and Offset" if mixed else f"no {missing[0]}"
            raise wrong(self.file, self._line, name, found, "Scale and Offset, or Min, Max and Histogram")
        scale, offset = float(np.float32(str(fields["Scale"]))), int(str(fields["Offset"]))
        if not (0 < scale < np.inf):
            raise wrong(self.file, self._line, name, f"Scale {fields['Scale']}", "a positive float32")
        return fixed(
            scale, offset, 8, lambda found, expected: wrong(self.file, self._line, name, found, expected)
        )

    def _measured(self, fields: dict[str, str | Sequence[str]], name: str) -> TensorProfile:
        missing = [key for key in _MEASURED if key not in fields]
        if missing:
            raise wrong(self.file, self._line, name, f"no {missing[0]}", ", ".join((NAME, *_MEASURED)))
        with np.errstate(over="ignore"):
            low, high = (float(np.float32(str(fields[key]))) for key in ("Min", "Max"))
        if not (np.isfinite(low) and np.isfinite(high)):
            raise wrong(self.file, self._line, name, "a range beyond float32", "finite Min and Max")
        if low > high:
            raise wrong(self.file, self._line, name, f"Min {low} above Max {high}", "Min <= Max")
        return TensorProfile(low, high, self._histogram(fields["Histogram"], name))

    def _histogram(
        self, values: str | Sequence[str], name: str
    ) -> np.ndarray[Any, np.dtype[np.float32]] | None:
        try:
            counts = np.array(list(map(float, values)), np.float64)
        except ValueError as error:
            raise wrong(self.file, self._line, name, f"in Histogram {error}", "numbers") from None
        if not (np.isfinite(counts).all() and (counts >= 0).all() and (counts <= 3e38).all()):
            raise wrong(self.file, self._line, name, "an invalid count in Histogram", "numbers of 0 and more")
        return counts.astype(np.float32) if counts.any() else None


def fixed(scale: float, offset: int, bits: int, wrong: Any) -> TensorProfile:
    """Create the profile of fixed parameters; ``wrong(found, expected)`` creates the exception."""
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    if not low <= offset <= high:
        raise wrong(f"offset {offset}", f"{low} to {high}")
    return TensorProfile(
        min(scale * (low - offset), 0.0),
        max(scale * (high - offset), 0.0),
        scale=scale,
        offset=offset,
        bits=bits,
    )


#: a histogram as tools write it: numbers in brackets, or one per line
_HISTOGRAM: Final = (
    r"(?am)^([ -] *Histogram:)(?:[ \t]*\[([-+.\w,\s]*)\]|((?:\r?\n +- +[-+.\w]+[ \t]*)+))[ \t\r]*$"
)
#: between the numbers of a histogram with one per line
_DASH: Final = r"\s*\n +- +"


def _without_histograms(text: str) -> tuple[str, str, list[list[str]]]:
    """Replace the histograms by their numbers, with a tag that the text does not contain.

    Returns the text with the same lines, the tag, and the histograms.
    """
    tag = "!histogram"
    while tag in text:
        tag += "s"
    found: list[list[str]] = []

    def replaced(match: re.Match[str]) -> str:
        numbers = (match[2] or "").strip().removesuffix(",")
        listed = numbers.split(",") if numbers else []
        found.append(listed if match[3] is None else re.split(_DASH, match[3])[1:])
        breaks = "\n" * match[0].count("\n")
        return f"{match[1]} {tag} {len(found) - 1}{breaks}"

    return re.sub(_HISTOGRAM, replaced, text), tag, found


class _Structure:
    """Walks the events of a file and refuses every structure except that of a profile.

    Events are read instead of values, because aliases could make a tree expand without limit. A scalar with
    the `tag` is the number of one of `histograms`.
    """

    def __init__(
        self, events: Iterator[Any], builder: ProfileBuilder, tag: str, histograms: Sequence[Sequence[str]]
    ) -> None:
        self._events, self._builder, self._tag, self._histograms = events, builder, tag, histograms

    def read(self) -> None:
        import yaml

        for event in self._events:
            if isinstance(event, yaml.MappingStartEvent):
                self._mapping(self._builder.header)
            elif isinstance(event, yaml.SequenceStartEvent):
                self._entries()
            elif isinstance(event, yaml.AliasEvent) or (isinstance(event, yaml.ScalarEvent) and event.value):
                raise self._unexpected(event)

    def _entries(self) -> None:
        import yaml

        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                return
            if not isinstance(event, yaml.MappingStartEvent):
                raise self._unexpected(event)
            self._builder.entry(_line(event))
            self._mapping(self._builder.field)

    def _mapping(self, take: Any) -> None:
        import yaml

        for event in self._events:
            if isinstance(event, yaml.MappingEndEvent):
                return
            if not isinstance(event, yaml.ScalarEvent):
                raise self._unexpected(event)
            value = next(self._events)
            line = _line(event)
            if isinstance(value, yaml.SequenceStartEvent):
                take(event.value, self._scalars(), line)
            elif isinstance(value, yaml.ScalarEvent):
                is_replaced = value.tag == self._tag
                take(event.value, self._histograms[int(value.value)] if is_replaced else value.value, line)
            else:
                raise self._unexpected(value)

    def _scalars(self) -> list[str]:
        import yaml

        found: list[str] = []
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            if not isinstance(event, yaml.ScalarEvent):
                raise self._unexpected(event)
            found.append(event.value)
            if len(found) > MOST_BINS:
                break
        return found

    def _unexpected(self, event: Any) -> OptionError:
        kind = type(event).__name__.removesuffix("Event")
        kind = {"Alias": "an alias", "MappingStart": "a mapping", "SequenceStart": "a list"}.get(
            kind, "a value"
        )
        return wrong(
            self._builder.file,
            _line(event),
            "structure",
            kind,
            "two mappings and a list of mappings, without anchors",
        )


def _line(event: Any) -> int:
    return 1 if event.start_mark is None else int(event.start_mark.line) + 1


#: most bytes of a file, and most characters of it without histograms
MOST_BYTES: Final = 512 << 20
_MOST_PARSED: Final = 16 << 20


def write_profile(profile: CalibrationProfile, graph: onnx.GraphProto) -> Iterator[str]:
    """Write a profile piece by piece. The graph determines the keys of tensors and the order of entries."""
    yield f"---\n{HEADERS[0]}: '{TOOL} {_core.__version__}'\n...\n"
    yield f"---\n{HEADERS[1]}: 0x{profile.graph_hash:016x}\n...\n---\n"
    empty = True
    for name, key in entry_keys(graph).items():
        tensor = profile.tensors.get(name)
        if tensor is None or tensor.is_fixed:
            continue
        empty = False
        histogram = (
            np.zeros(1, np.float32) if tensor.histogram is None else np.asarray(tensor.histogram, np.float32)
        )
        yield (
            f"- {NAME}: '{key}'\n  Min: {_decimal(tensor.minimum)}\n  Max: {_decimal(tensor.maximum)}\n"
            f"  Histogram: [ {', '.join(_decimals(histogram))} ]\n"
        )
    yield "[]\n...\n" if empty else "...\n"


def _decimal(value: float) -> str:
    """Write a float32 in decimal with the fewest digits that read back as the same float32."""
    return np.format_float_positional(np.float32(value), unique=True, trim="-")


def _decimals(values: np.ndarray[Any, np.dtype[np.float32]]) -> list[str]:
    whole = values == np.rint(values)
    if whole.all() and (np.abs(values) < 2**53).all():
        return [str(value) for value in values.astype(np.int64).tolist()]
    return [
        str(int(value)) if is_whole and abs(value) < 2**53 else _decimal(value)
        for value, is_whole in zip(values.tolist(), whole.tolist(), strict=True)
    ]


def read_profile(data: bytes, file: str) -> ProfileFile:
    """Read a profile file of either generation.

    `file` is its name in messages. Raises OptionError with the line and the key if it is not a profile.
    """
    import yaml

    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise wrong(file, line, "text", f"bytes that are not UTF-8 ({error.reason})", "UTF-8 text") from None
    shortened, tag, histograms = _without_histograms(text)
    if len(shortened) > _MOST_PARSED:
        raise wrong(
            file,
            1,
            "layout",
            f"{len(data)} bytes in a layout of YAML that is slow to read",
            "one key per line as the tools write it, or at most 16 MiB",
        )
    builder = ProfileBuilder(file)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _Structure(yaml.parse(shortened, Loader=loader), builder, tag, histograms).read()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = 1 if mark is None else mark.line + 1
        problem = getattr(error, "problem", None) or "no YAML"
        raise wrong(file, line, "text", f"a mistake ({problem})", "three YAML documents") from None
    except RecursionError:
        raise wrong(file, 1, "text", "deep nesting", "three YAML documents") from None
    return builder.finish()
