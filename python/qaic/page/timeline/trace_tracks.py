"""A Chrome trace as a timeline: those of ``qaic-opstats``, of the runtime, and others of the same form.

Traces with one event per line are read line by line, so memory is needed for the boxes, not for the text.
"""

from __future__ import annotations

import io
import json
import math
import re
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

import numpy as np

from qaic.errors import InputError
from qaic.page.timeline import MOST_BOXES, Labels, Merger, Timeline, Track, lanes
from qaic.support.open_regular import open_regular, read_regular

# Other traces are read whole; a trace of this size takes a gigabyte.
_LARGEST_WHOLE_BYTES: Final = 256 << 20
_CORE = re.compile(r"^(?P<group>.*_Core_\d+)(?:_(?P<row>.+))?$", re.DOTALL)
# Process of the host in traces of the runtime.
_HOST: Final = "HOST_PROC"
# Text that may precede the first event in its line.
_BEGIN: Final = re.compile(r'^\s*(?:\{\s*"traceEvents"\s*:\s*)?(?:\[\s*)?')
# Largest number of characters of a line; events have a few hundred.
_LONGEST_LINE: Final = 1 << 20
_decode: Final = json.JSONDecoder().raw_decode
_NO_TRACE: Final = "a Chrome trace, an object with traceEvents or a list of events, is expected"


@dataclass
class _Row:
    """Events of one thread, in nanoseconds."""

    start: array[float] = field(default_factory=lambda: array("d"))
    duration: array[float] = field(default_factory=lambda: array("d"))
    label: array[int] = field(default_factory=lambda: array("q"))
    before: array[float] = field(default_factory=lambda: array("d"))


def timeline_of_trace(path: Path, *, most: int = MOST_BOXES) -> Timeline:
    """Read a trace. Blocking. Raises InputError if the file is no trace."""
    reader = _Reader()
    for event in events(path):
        reader.take(event)
    return reader.timeline(most)


def events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace, line by line if each has its own line."""
    by_line = _by_line(path)
    if by_line is None:
        yield from _whole(path)
        return
    yield from by_line


def _by_line(path: Path) -> Iterator[dict[str, Any]] | None:
    """Return the events of a file with one event per line; None if the first lines have another form."""
    with _opened(path) as file:
        head = [file.readline(_LONGEST_LINE) for _ in range(8)]
    return _lines(path) if any(_event(line) for line in head) else None


def _opened(path: Path) -> TextIO:
    return io.TextIOWrapper(open_regular(path), encoding="utf-8", errors="replace")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with _opened(path) as file:
        # A file with one endless line is not read into memory.
        for line in iter(partial(file.readline, _LONGEST_LINE), ""):
            event = _event(line)
            if event is not None:
                yield event
            elif '"ph"' in line:
                raise InputError(f"{path}: found the line {line[:80]!r}; {_NO_TRACE}", code="plot.trace")


def _event(line: str) -> dict[str, Any] | None:
    text = line if line.startswith('{"name"') else _BEGIN.sub("", line)
    if '"ph"' not in text or not text.startswith("{"):
        return None
    try:
        value, end = _decode(text)
    except (ValueError, RecursionError):
        return None
    # The end of the list may follow the last event; a second event may follow none.
    if text[end:] != ",\n" and text[end:].strip(" \t,]}\r\n"):
        return None
    return value if "ph" in value else None


def _whole(path: Path) -> Iterator[dict[str, Any]]:
    size = path.stat().st_size
    if size > _LARGEST_WHOLE_BYTES:
        raise InputError(
            f"{path}: {size} bytes of JSON without lines of events; expected at most {_LARGEST_WHOLE_BYTES}",
            code="plot.trace",
        )
    try:
        document = json.loads(read_regular(path, _LARGEST_WHOLE_BYTES))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: {error}; {_NO_TRACE}", code="plot.trace") from error
    found = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(found, list):
        raise InputError(f"{path}: {_NO_TRACE}", code="plot.trace")
    yield from (event for event in found if isinstance(event, dict))


class _Reader:
    def __init__(self) -> None:
        self._rows: dict[tuple[Any, Any], _Row] = {}
        self._threads: dict[tuple[Any, Any], str] = {}
        self._processes: dict[Any, str] = {}
        self._labels = Labels()
        self._label_of: dict[tuple[str, str, str], int] = {}
        self._others: Counter[str] = Counter()
        self._waits: dict[tuple[Any, Any], tuple[float, float]] = {}

    def take(self, event: dict[str, Any]) -> None:
        """Take one event."""
        kind, key = event.get("ph"), (_key(event.get("pid")), _key(event.get("tid")))
        details = event.get("args")
        args = details if isinstance(details, dict) else {}
        if kind == "X":
            self._take_span(event, key, args)
        elif kind == "M" and event.get("name") == "thread_name":
            self._threads[key] = str(args.get("name", ""))
        elif kind == "M" and event.get("name") == "process_name":
            self._processes[key[0]] = str(args.get("name", ""))
        elif kind != "M":
            self._others[str(kind)] += 1

    def _take_span(self, event: dict[str, Any], key: tuple[Any, Any], args: dict[str, Any]) -> None:
        start, duration = _ns(event.get("ts")), _ns(event.get("dur"))
        if start is None or duration is None or duration < 0:
            self._others["X without times"] += 1
            return
        name = str(event.get("name", ""))
        if name.startswith("sync ") and duration == 0:
            # The event has no duration; the wait belongs to the operation that begins at its end.
            waited = _ns(args.get("opSyncDurUs")) or 0.0
            self._waits[key] = (start + waited, waited)
            return
        row = self._rows.setdefault(key, _Row())
        ends, waited = self._waits.pop(key, (math.inf, 0.0))
        row.start.append(start)
        row.duration.append(duration)
        row.before.append(waited if abs(ends - start) <= 1000 else 0.0)
        row.label.append(self._label(name, args))

    def _label(self, name: str, args: dict[str, Any]) -> int:
        operation = str(args.get("opName", ""))
        memory = str(args.get("opMemory", ""))
        key = (name, operation, memory)
        label = self._label_of.get(key)
        if label is None:
            size = _number(args.get("opOutputSize"))
            # Tokens may precede the name.
            tokens = operation.rsplit(maxsplit=1)
            label = self._label_of[key] = self._labels.add(
                tokens[-1] if tokens else name,
                name,
                output_bytes=None if size is None else int(size),
                memory=memory,
            )
        return label

    def timeline(self, most: int) -> Timeline:
        """Return the timeline of the events taken."""
        timeline = Timeline(labels=self._labels)
        rows = {key: row for key, row in self._rows.items() if row.start}
        if not rows:
            raise InputError("the trace has no events with a start and a duration", code="plot.trace")
        first = min(min(row.start) for row in rows.values())
        counted = sum(len(row.start) for row in rows.values())
        extent = sum(
            max(map(float.__add__, row.start, row.duration)) - min(row.start) for row in rows.values()
        )
        merger = Merger(counted, math.ceil(extent) + 1, most=most)
        # Inferences may have separate processes; their threads of the same name form one row.
        named: dict[tuple[str, str, str], list[_Row]] = {}
        for key, row in rows.items():
            named.setdefault(self._names(key), []).append(row)
        for names in sorted(named, key=_order):
            track = _track(names, named[names], first)
            if len(track.start):
                timeline.tracks.extend(lanes(merger.apply(track)))
        if merger.merged_away:
            timeline.notes.append(
                f"{merger.merged_away} of {counted} events are too short to be drawn separately: those under "
                f"{merger.cell / 1000:.3g} us are drawn together, named by the longest."
            )
        if self._others:
            kinds = ", ".join(f"{count} of phase {kind}" for kind, count in sorted(self._others.items()))
            timeline.notes.append(f"Not drawn: {kinds}.")
        return timeline

    def _names(self, key: tuple[Any, Any]) -> tuple[str, str, str]:
        """Group, name and role of a row; threads of cores are named as traces name them."""
        process, thread = self._processes.get(key[0], ""), self._threads.get(key, "")
        core = _CORE.match(thread)
        if core:
            return core["group"], core["row"] or "execution", "ops" if core["row"] else "span"
        if thread.endswith("_Device"):
            return process or thread, thread, "span"
        role = "host" if process == _HOST else "ops"
        return process or f"process {key[0]}", thread or f"thread {key[1]}", role


def _order(names: tuple[str, str, str]) -> tuple[bool, str, bool, str]:
    """Order rows: the host first, then cores by name, with whole executions before operations."""
    group, name, role = names
    return role != "host", group, role != "span", name


def _track(names: tuple[str, str, str], rows: list[_Row], first: float) -> Track:
    group, name, role = names
    start = np.rint(np.concatenate([row.start for row in rows]) - first).astype(np.int64)
    duration = np.rint(np.concatenate([row.duration for row in rows])).astype(np.int64)
    before = np.rint(np.concatenate([row.before for row in rows])).astype(np.int64)
    label = np.concatenate([row.label for row in rows])
    # The longest of the events with one start comes first, because it contains the others.
    order = np.lexsort((-duration, start))
    if role == "host":
        # Skipped stages.
        order = order[duration[order] > 0]
    return Track(
        group,
        name,
        start[order],
        duration[order],
        label[order],
        role=role,
        before=before[order] if before.any() else None,
    )


def _key(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else None


def _number(value: Any) -> float | None:
    """Return a number; those in ``args`` are written as strings."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) and abs(number) < 1e15 else None


def _ns(value: Any) -> float | None:
    number = _number(value)
    return None if number is None else number * 1000
