"""The timeline of a page (rows of operations and their names), and its encoding in the page.

A page of 1.3 million operations must open immediately and be smaller than a trace. An operation is therefore
three small integers (distance from the previous one, duration, index of its name), arrays are deflated, and
names are written once. Beyond a limit, short operations that are close together become one box; the page
states how many.
"""

import base64
import json
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qaic.page.document import filled, notes_html
from qaic.page.kind_colors import color_of
from qaic.support.text import counted, escape_unprintable

#: largest number of boxes of a page; beyond it, short operations are merged
MOST_BOXES = 1_500_000
# An overlap of at most this many units is a rounding error.
_ROUNDING_UNITS = 2
# Largest number of rows for overlapping operations; deeper ones are drawn in the last row.
_MOST_LANES = 16


@dataclass
class Labels:
    """Names of operations; one entry for all executions of an operation."""

    names: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    nodes: list[tuple[str, ...]] = field(default_factory=list)
    bytes: list[int | None] = field(default_factory=list)
    memories: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.names)

    def add(
        self,
        name: str,
        kind: str = "",
        *,
        nodes: Iterable[str] = (),
        output_bytes: int | None = None,
        memory: str = "",
        types: str = "",
        group: str = "",
    ) -> int:
        """Add an entry and return its index."""
        self.names.append(escape_unprintable(name))
        self.kinds.append(escape_unprintable(kind))
        self.nodes.append(tuple(escape_unprintable(node) for node in nodes))
        self.bytes.append(output_bytes)
        self.memories.append(escape_unprintable(memory))
        self.types.append(escape_unprintable(types))
        self.groups.append(escape_unprintable(group))
        return len(self.names) - 1


@dataclass
class Track:
    """One row: operations in the order of their starts, without overlaps.

    ``role`` is ``ops``, ``span`` for a frame around others, or ``host``. ``start``, ``duration``,
    ``before`` and ``after`` (waits) count units of ``ns_per_unit`` nanoseconds, starts from ``origin_ns`` on
    the time of the page.
    """

    group: str
    name: str
    start: NDArray[Any]
    duration: NDArray[Any]
    label: NDArray[Any]
    role: str = "ops"
    ns_per_unit: float = 1.0
    origin_ns: float = 0.0
    before: NDArray[Any] | None = None
    after: NDArray[Any] | None = None
    bytes: NDArray[Any] | None = None
    members: NDArray[Any] | None = None

    def select(self, rows: NDArray[Any], *, name: str | None = None) -> "Track":
        """Return the track with only these rows."""
        picked = {
            key: None if (values := getattr(self, key)) is None else values[rows]
            for key in ("start", "duration", "label", "before", "after", "bytes", "members")
        }
        return Track(
            group=self.group,
            name=self.name if name is None else name,
            role=self.role,
            ns_per_unit=self.ns_per_unit,
            origin_ns=self.origin_ns,
            **picked,  # type: ignore[arg-type]
        )


@dataclass
class TimeSpan:
    """An interval of time that the page can jump to."""

    name: str
    start_ns: float
    end_ns: float


@dataclass
class Timeline:
    """Rows, names, intervals of time, and notes."""

    labels: Labels = field(default_factory=Labels)
    tracks: list[Track] = field(default_factory=list)
    samples: list[TimeSpan] = field(default_factory=list)
    shown: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def working(self) -> list[Track]:
        """The rows whose time is counted by kind: those of devices, or of the host if there are no others."""
        found = [track for track in self.tracks if track.role == "ops" and len(track.start)]
        return found or [track for track in self.tracks if track.role == "host" and len(track.start)]

    @property
    def operations(self) -> int:
        """Number of boxes."""
        return sum(len(track.start) for track in self.tracks)


def lanes(track: Track) -> Iterator[Track]:
    """Split a row with overlapping operations, such as loop bodies, into rows without overlaps."""
    start = track.start.astype(np.int64, copy=False)
    end = start + track.duration.astype(np.int64, copy=False)
    if len(start) < 2 or bool((start[1:] >= np.maximum.accumulate(end)[:-1] - _ROUNDING_UNITS).all()):
        yield track
        return
    lane_of = np.zeros(len(start), np.uint8)
    free_from: list[int] = []
    for index, (begins, ends) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        fitting = (lane for lane, free in enumerate(free_from) if begins >= free - _ROUNDING_UNITS)
        lane = next(fitting, min(len(free_from), _MOST_LANES - 1))
        if lane == len(free_from):
            free_from.append(0)
        free_from[lane] = max(ends, free_from[lane])
        lane_of[index] = lane
    for lane in range(len(free_from)):
        name = track.name if lane == 0 else f"{track.name} ({lane + 1})"
        yield track.select(np.flatnonzero(lane_of == lane), name=name)


class Merger:
    """Merges operations that are too short and too close to distinguish, to at most ``most`` boxes.

    ``counted`` is the number of all operations, ``extent`` the number of units that they span.
    """

    def __init__(self, counted: int, extent: int, *, most: int = MOST_BOXES) -> None:
        self.cell = 0
        self.merged_away = 0
        if counted > most:
            # A third of the boxes are cells of this length; the others are for longer operations.
            self.cell = max(2, -(-extent * 3 // most))

    def apply(self, track: Track) -> Track:
        """Return the track with fewer boxes, or unchanged if nothing must be merged."""
        if not self.cell or len(track.start) < 2:
            return track
        merged = self._merge(track)
        self.merged_away += len(track.start) - len(merged.start)
        return merged

    def _merge(self, track: Track) -> Track:
        start = track.start.astype(np.int64)
        duration = track.duration.astype(np.int64)
        short = duration < self.cell
        cell = start // self.cell
        # A box begins at every long operation, after one, and where the cell changes.
        begins = np.ones(len(start), bool)
        begins[1:] = ~short[1:] | ~short[:-1] | (cell[1:] != cell[:-1])
        first = np.flatnonzero(begins)
        count = np.diff(first, append=len(start))
        # The longest operation names its box: sort by box, then by duration, and take the last.
        box = np.cumsum(begins) - 1
        order = np.lexsort((duration, box))
        longest = order[first + count - 1]
        end = np.maximum.reduceat(start + duration, first)
        merged = track.select(first)
        merged.duration = end - start[first]
        merged.label = track.label[longest]
        merged.members = count.astype(np.uint32)
        return merged


def pack(timeline: Timeline) -> str:
    """Return base64 of deflated bytes: a length, JSON of that length, arrays."""
    arrays = bytearray()
    tracks = []
    for track in timeline.tracks:
        start = np.asarray(track.start)
        columns: dict[str, NDArray[Any] | None] = {
            "step": np.diff(start, prepend=start.dtype.type(0)),
            "duration": track.duration,
            "label": track.label,
            "before": track.before,
            "after": track.after,
            "bytes": track.bytes,
            "members": track.members,
        }
        tracks.append(
            {
                "group": escape_unprintable(track.group),
                "name": escape_unprintable(track.name),
                "role": track.role,
                "count": len(start),
                "ns_per_unit": float(track.ns_per_unit),
                "origin_ns": float(track.origin_ns),
                "arrays": {
                    name: _place(arrays, np.asarray(column))
                    for name, column in columns.items()
                    if column is not None
                },
            }
        )
    header = json.dumps(
        {
            **_labels(timeline.labels),
            "tracks": tracks,
            "samples": [
                {
                    "name": escape_unprintable(sample.name),
                    "start_ns": sample.start_ns,
                    "end_ns": sample.end_ns,
                }
                for sample in timeline.samples
            ],
            "shown": timeline.shown,
        },
        separators=(",", ":"),
        allow_nan=False,
    ).encode()
    body = zlib.compress(struct.pack("<I", len(header)) + header + bytes(arrays), 6)
    return base64.b64encode(body).decode()


def _labels(labels: Labels) -> dict[str, Any]:
    kinds = {kind: index for index, kind in enumerate(dict.fromkeys(labels.kinds))}
    return {
        "kinds": list(kinds),
        "colors": [color_of(kind) for kind in kinds],
        "labels": {
            "name": labels.names,
            "kind": [kinds[kind] for kind in labels.kinds],
            # A node with the name of the operation adds no information.
            "nodes": [list(nodes) if nodes else None for nodes in labels.nodes],
            "bytes": labels.bytes,
            "memory": labels.memories,
            "types": labels.types,
            "group": labels.groups,
        },
    }


def _place(arrays: bytearray, column: NDArray[Any]) -> list[str | int]:
    """Append a column in the smallest suitable type, aligned."""
    low, high = (column.min(), column.max()) if len(column) else (0, 0)
    code = "f8"
    if column.dtype.kind in "iu" and low >= 0:
        code = next((name for name in ("u1", "u2", "u4") if high <= np.iinfo(name).max), "f8")
    arrays.extend(b"\0" * (-len(arrays) % 8))
    offset = len(arrays)
    arrays.extend(np.ascontiguousarray(column, f"<{code}").tobytes())
    return [code, offset]


def timeline_html(timeline: Timeline) -> str:
    """Return the body of the section."""
    return filled(
        "timeline/viewer",
        operations=counted(timeline.operations, "operation"),
        rows=counted(len(timeline.tracks), "row"),
        notes=notes_html(timeline.notes),
    )
