"""Differences between two transcripts of system calls.

Calls are compared file by file, in order, because the order of calls of different open files is random. If
the calls differ, both sides are searched for the next place where they agree.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from transcript.lines import Line, normalized, without_dma_padding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Records without a call, and values that vary all the time.
_NOT_COMPARED: Final = frozenset({"HEADER", "EVENT", "TELEMETRY"})
#: Number of calls in which a place of agreement is searched, and the number of calls that must agree.
_WINDOW: Final = 64
_AGREEING: Final = 3
_PAGE_BYTES_MAX: Final = 65536
_PAGE_BYTES: Final = 4096


@dataclass(frozen=True)
class Difference:
    """One difference.

    If only one side has a call, the number on the other side and the field are None.
    """

    file: int | None
    seq_a: int | None
    seq_b: int | None
    name: str
    field: str | None = None
    a: Any = None
    b: Any = None


@dataclass
class Comparison:
    """All differences, in the order of the files and of their calls."""

    differences: list[Difference] = field(default_factory=list)
    #: Expected differences that were omitted, by their number in the specification.
    known: Counter[str] = field(default_factory=Counter)
    calls_a: int = 0
    calls_b: int = 0


def compare(a: Sequence[Line], b: Sequence[Line], *, lrt: bool = False) -> Comparison:
    """Compare two transcripts.

    With ``lrt``, `b` is from the open runtime, and its known differences are omitted.
    """
    comparison = Comparison()
    lanes_a, lanes_b = _lanes(a), _lanes(b)
    comparison.calls_a, comparison.calls_b = (sum(map(len, lanes.values())) for lanes in (lanes_a, lanes_b))
    for file in [*lanes_a, *(file for file in lanes_b if file not in lanes_a)]:
        one, two = lanes_a.get(file, []), lanes_b.get(file, [])
        # The state of buffer objects is stored per file, as are their handles.
        open_runtime = _OpenRuntime(comparison.known) if lrt else None
        for i, j in _aligned([_kind(line) for line in one], [_kind(line) for line in two]):
            if i is None or j is None:
                line = one[i] if i is not None else two[j or 0]
                seq_a, seq_b = (line.seq, None) if i is not None else (None, line.seq)
                comparison.differences.append(Difference(file, seq_a, seq_b, call_name(line)))
                continue
            comparison.differences += _between(file, one[i], two[j], open_runtime)
    return comparison


def call_name(line: Line) -> str:
    """Name of a call; for a control message, also the names of its commands."""
    commands = [str(kind) for kind in _kind(line)[1:]]
    return f"{line.name} {'+'.join(commands)}" if commands else line.name


def _lanes(lines: Sequence[Line]) -> dict[int | None, list[Line]]:
    lanes: dict[int | None, list[Line]] = {}
    for line in lines:
        if line.name not in _NOT_COMPARED:
            lanes.setdefault(line.file, []).append(normalized(line))
    return lanes


def _kind(line: Line) -> tuple[str, ...]:
    transactions = line.fields.get("transactions")
    if not isinstance(transactions, list):
        return (line.name,)
    found = [item for item in transactions if isinstance(item, dict)]
    return (line.name, *(str(item.get("command", item.get("type"))) for item in found))


def _aligned(
    a: Sequence[tuple[str, ...]], b: Sequence[tuple[str, ...]]
) -> Iterator[tuple[int | None, int | None]]:
    i = j = 0
    while i < len(a) or j < len(b):
        if i < len(a) and j < len(b) and a[i] == b[j]:
            yield i, j
            i, j = i + 1, j + 1
            continue
        skip_a, skip_b = _next_agreement(a[i : i + 2 * _WINDOW], b[j : j + 2 * _WINDOW])
        yield from ((index, None) for index in range(i, i + skip_a))
        yield from ((None, index) for index in range(j, j + skip_b))
        i, j = i + skip_a, j + skip_b


def _next_agreement(a: Sequence[tuple[str, ...]], b: Sequence[tuple[str, ...]]) -> tuple[int, int]:
    """Return the number of calls to skip on each side: as few as possible, at least one."""
    for total in range(1, 2 * _WINDOW):
        for skip_a in range(max(0, total - _WINDOW), min(total, _WINDOW) + 1):
            skip_b = total - skip_a
            one, two = a[skip_a : skip_a + _AGREEING], b[skip_b : skip_b + _AGREEING]
            if one and one == two:
                return skip_a, skip_b
    return min(len(a), _WINDOW), min(len(b), _WINDOW)


def _between(file: int | None, a: Line, b: Line, open_runtime: _OpenRuntime | None) -> list[Difference]:
    if open_runtime is not None:
        b = open_runtime.in_the_kernels_meaning(a, b)
    found = list(_values("", a.fields, b.fields))
    if a.errno != b.errno:
        found.append(("errno", a.errno, b.errno))
    found += _values("answer", a.answer, b.answer)
    if open_runtime is not None:
        found = open_runtime.unknown(a, b, found)
    if not found:
        found = list(_bytes(a, b, ignores_padding=open_runtime is not None))
    return [Difference(file, a.seq, b.seq, call_name(a), path, one, two) for path, one, two in found]


def _values(path: str, a: Any, b: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(key for key in b if key not in a)]:
            yield from _values(f"{path}.{key}" if path else str(key), a.get(key), b.get(key))
    elif isinstance(a, list) and isinstance(b, list):
        for index in range(max(len(a), len(b))):
            one, two = (side[index] if index < len(side) else None for side in (a, b))
            yield from _values(f"{path}[{index}]", one, two)
    elif a != b:
        yield path, a, b


def _bytes(a: Line, b: Line, *, ignores_padding: bool) -> Iterator[tuple[str, Any, Any]]:
    """Bytes that differ although all fields are equal; these bytes have no names."""
    if a.name == "MANAGE":
        names = ("data", "data_reply")
    elif a.fields or b.fields:
        # Names for all bytes.
        return
    else:
        names = ("raw", "reply")
    for name in names:
        one, two = a.octets.get(name, b""), b.octets.get(name, b"")
        if ignores_padding:
            one, two = without_dma_padding(one), without_dma_padding(two)
        if one == two:
            continue
        if len(one) != len(two):
            yield name, f"{len(one)} bytes", f"{len(two)} bytes"
            continue
        at = next(index for index, (left, right) in enumerate(zip(one, two, strict=True)) if left != right)
        yield f"{name}[{at}]", one[at], two[at]


@dataclass
class _OpenRuntime:
    """Rules for the calls in which the open runtime differs from the expectations of an upstream kernel."""

    known: Counter[str]
    #: Bytes of our buffer objects.
    sizes: dict[int, int] = field(default_factory=dict)
    #: Our buffer objects that represent its empty ones.
    empty: set[int] = field(default_factory=set)
    #: The last part that it transferred of a buffer object.
    parts: dict[int, int] = field(default_factory=dict)

    def in_the_kernels_meaning(self, a: Line, b: Line) -> Line:
        """T1: its two fence flags are exchanged."""
        if b.name != "ATTACH_SLICE_BO":
            return b
        swapped = [_swapped(entry) for entry in _entries(b)]
        ours = [flags for entry in _entries(a) for flags in _fences(entry)]
        written = [flags for entry in _entries(b) for flags in _fences(entry)]
        meant = [flags for entry in swapped for flags in _fences(entry)]
        self.known["T1"] += sum(
            one != two and one == three for one, two, three in zip(ours, written, meant, strict=False)
        )
        return replace(b, fields={**b.fields, "entries": swapped}) if "entries" in b.fields else b

    def unknown(self, a: Line, b: Line, found: list[tuple[str, Any, Any]]) -> list[tuple[str, Any, Any]]:
        """Omit the known differences."""
        match a.name:
            case "CREATE_BO":
                return self._created(a, b, found)
            case "ATTACH_SLICE_BO":
                return self._without("T4", found, lambda path: path == "size" and self._is_empty(a, b))
            case "MAP":
                return self._without("T4", found, lambda path: path == "len" and b.fields.get("len") == 0)
            case "PARTIAL_EXECUTE_BO":
                return self._executed(a, b, found)
            case "MANAGE":
                dma = _dma_transactions(a)
                return self._without("T5", found, lambda path: path in {f"{place}.pad" for place in dma})
            case _:
                return found

    def _created(self, a: Line, b: Line, found: list[tuple[str, Any, Any]]) -> list[tuple[str, Any, Any]]:
        size, handle = _number(a.fields, "size"), _number(a.answer, "handle")
        if handle is not None and size is not None:
            self.sizes[handle] = size
        is_page = size is not None and 0 < size <= _PAGE_BYTES_MAX and size % _PAGE_BYTES == 0
        if b.fields.get("size") != 0 or not is_page:
            return found
        if handle is not None:
            self.empty.add(handle)
        # An upstream kernel refuses a buffer object without bytes, so the replies also differ.
        self.known["T4"] += 1
        return []

    def _is_empty(self, a: Line, b: Line) -> bool:
        return b.fields.get("size") == 0 and _number(a.fields, "handle") in self.empty

    def _executed(self, a: Line, b: Line, found: list[tuple[str, Any, Any]]) -> list[tuple[str, Any, Any]]:
        ours, theirs = _entries(a), _entries(b)
        expected = set()
        for index, (one, two) in enumerate(zip(ours, theirs, strict=False)):
            handle, part = _number(two, "handle"), _number(two, "resize")
            ours_handle = _number(one, "handle")
            size = None if ours_handle is None else self.sizes.get(ours_handle)
            moves_all = size is None or one.get("resize") == size
            if part is None or handle is None:
                continue
            # 0, which new kernels interpret as nothing, or a value from an earlier call.
            if moves_all and (part == 0 or part == self.parts.get(handle)):
                expected.add(f"entries[{index}].resize")
            if part:
                self.parts[handle] = part
        return self._without("T3/T15", found, expected.__contains__)

    def _without(
        self, trap: str, found: list[tuple[str, Any, Any]], is_known: Any
    ) -> list[tuple[str, Any, Any]]:
        left = [item for item in found if not is_known(item[0])]
        self.known[trap] += len(found) - len(left)
        return left


def _number(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    return value if isinstance(value, int) else None


def _entries(line: Line) -> list[dict[str, Any]]:
    entries = line.fields.get("entries")
    return (
        [entry if isinstance(entry, dict) else {} for entry in entries] if isinstance(entries, list) else []
    )


_SEMAPHORES: Final = ("sem0", "sem1", "sem2", "sem3")


def _fences(entry: dict[str, Any]) -> list[Any]:
    sems = [entry.get(name) for name in _SEMAPHORES]
    return [sem.get("flags") if isinstance(sem, dict) else None for sem in sems]


def _swapped(entry: dict[str, Any]) -> dict[str, Any]:
    swapped = dict(entry)
    for name in _SEMAPHORES:
        sem = entry.get(name)
        flags = sem.get("flags") if isinstance(sem, dict) else None
        if isinstance(sem, dict) and isinstance(flags, int):
            swapped[name] = {**sem, "flags": flags & ~3 | (flags & 1) << 1 | (flags & 2) >> 1}
    return swapped


def _dma_transactions(line: Line) -> list[str]:
    transactions = line.fields.get("transactions")
    found = transactions if isinstance(transactions, list) else []
    return [
        f"transactions[{index}]"
        for index, item in enumerate(found)
        if isinstance(item, dict) and item.get("type") == "dma_from_user"
    ]
