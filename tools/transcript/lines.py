"""Transcripts of system calls in files, and the parts of them that belong to only one run.

``QAIC_KMD_TRANSCRIPT`` writes a transcript: one JSON object per line (docs/reference/emulated-cards.md
describes the form). A transcript can also come from other sources, so its content is not trusted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qaic.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

FORM_VERSION: Final = 1
#: A value that describes only one run.
VOLATILE: Final = "*"

_BYTES: Final = ("raw", "data", "reply", "data_reply")
#: The pairs of states in a transaction are the innermost ones.
_DEEPEST: Final = 12
#: Ids of processes, addresses and descriptors of the host, anywhere in a line.
_VOLATILE_NAMES: Final = frozenset({"process_id", "data", "addr", "eventfd", "fd", "date", "desc"})
#: Places that the kernel selects, and times.
_VOLATILE_OF_CALL: Final = {
    "MMAP_BO": frozenset({"offset"}),
    "MAP": frozenset({"offset"}),
    "PERF_STATS_BO": frozenset({"submit_latency_us", "device_latency_us"}),
}
#: Place of the process id in a command.
_PROCESS_ID_AT: Final = {1: 4, 3: 8, 9: 4, 15: 4, 16: 4, 28: 4, 32: 4}
_PASSTHROUGH_FROM_USER, _DMA_FROM_USER, _ACTIVATE_FROM_USER = 1, 5, 7


@dataclass(frozen=True)
class Line:
    """One call."""

    seq: int
    name: str
    file: int | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    answer: dict[str, Any] = field(default_factory=dict)
    errno: str | None = None
    #: ``raw``, ``data``, ``reply``, ``data_reply``: the bytes, if there are any.
    octets: dict[str, bytes] = field(default_factory=dict)


def read(path: str) -> list[Line]:
    """Read a transcript, its header included. Blocking.

    Raises
    ------
    InputError
        ``transcript.form``: it is none; the message names the line.
    OSError
        It cannot be read.
    """
    file = Path(path)
    if file.exists() and not file.is_file():
        # Reading a pipe would block until its writer ends.
        raise InputError(f"{path} is no regular file; a transcript is expected", code="transcript.form")
    lines: list[Line] = []
    with file.open("rb") as opened:
        for number, text in enumerate(opened, 1):
            try:
                line = _line(json.loads(text))
            except (ValueError, RecursionError) as error:
                raise InputError(f"{path}, line {number}: {_why(error)}", code="transcript.form") from None
            if (number == 1) != (line.name == "HEADER"):
                raise InputError(
                    f"{path}, line {number}: expected one HEADER, and first", code="transcript.form"
                )
            lines.append(line)
    if not lines:
        raise InputError(f"{path} is empty; a transcript begins with a HEADER", code="transcript.form")
    version = lines[0].fields.get("version")
    if version != FORM_VERSION:
        raise InputError(f"{path}: form {version!r} found, {FORM_VERSION} expected", code="transcript.form")
    return lines


def _why(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "is no UTF-8"
    return "is not JSON" if isinstance(error, json.JSONDecodeError | RecursionError) else str(error)


def _line(value: object) -> Line:
    if not isinstance(value, dict):
        raise ValueError("is not a JSON object")  # noqa: TRY004 (an invalid line, like the others)
    if _is_deep(value, _DEEPEST):
        raise ValueError("is nested too deeply")
    octets = {}
    for name in _BYTES:
        digits = _optional(value, name, str)
        if digits is not None:
            octets[name] = bytes.fromhex(digits)
    return Line(
        seq=_wanted(value, "seq", int),
        name=_wanted(value, "name", str),
        file=_optional(value, "file", int),
        fields=_optional(value, "fields", dict) or {},
        answer=_optional(value, "answer", dict) or {},
        errno=_optional(value, "errno", str),
        octets=octets,
    )


def _is_deep(value: object, left: int) -> bool:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left == 0 or any(_is_deep(item, left - 1) for item in items)


def _wanted(value: dict[str, Any], name: str, kind: type) -> Any:
    found = _optional(value, name, kind)
    if found is None:
        raise ValueError(f"has no {name}")
    return found


def _optional(value: dict[str, Any], name: str, kind: type) -> Any:
    found = value.get(name)
    if found is not None and (not isinstance(found, kind) or isinstance(found, bool)):
        raise ValueError(f"{name} is {found!r}"[:80] + f", expected {kind.__name__}")
    return found


def normalized(line: Line) -> Line:
    """Return the line without the parts that belong to only one run."""
    names = _VOLATILE_NAMES | _VOLATILE_OF_CALL.get(line.name, frozenset())
    octets = dict(line.octets)
    if line.name == "MANAGE" and "data" in octets:
        octets["data"] = _masked(octets["data"])
    fields = _without(line.fields, names)
    if line.name == "VERSION" and "name" in fields:
        # An address before the call, text after it.
        fields["name"] = VOLATILE
    return Line(
        seq=line.seq,
        name=line.name,
        file=line.file,
        fields=fields,
        answer=_without(line.answer, names),
        errno=line.errno,
        octets=octets,
    )


def _without(value: Any, names: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {key: VOLATILE if key in names else _without(item, names) for key, item in value.items()}
    return [_without(item, names) for item in value] if isinstance(value, list) else value


def _transactions(message: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the kind, begin and end of each whole transaction in a control message."""
    at = 0
    while at + 8 <= len(message):
        kind, length = _word(message, at), _word(message, at + 4)
        if length < 8 or at + length > len(message):
            return
        yield kind, at, at + length
        at += length


def _masked(message: bytes) -> bytes:
    """Return a control message with zeros in the bytes that belong to only one process."""
    masked = bytearray(message)
    for kind, at, end in _transactions(message):
        body = at + 8
        if kind == _PASSTHROUGH_FROM_USER and body + 4 <= end:
            process_id = _PROCESS_ID_AT.get(_word(message, body))
            if process_id is not None:
                _blank(masked, body + process_id, 4, end)
        elif kind == _DMA_FROM_USER:
            _blank(masked, body + 8, 8, end)
        elif kind == _ACTIVATE_FROM_USER:
            _blank(masked, body + 4, 4, end)
    return bytes(masked)


def without_dma_padding(message: bytes) -> bytes:
    """Return a control message with zeros in the padding of its DMA transactions."""
    masked = bytearray(message)
    for kind, at, end in _transactions(message):
        if kind == _DMA_FROM_USER:
            _blank(masked, at + 12, 4, end)
    return bytes(masked)


def _word(message: bytes, at: int) -> int:
    return int.from_bytes(message[at : at + 4], "little")


def _blank(masked: bytearray, at: int, count: int, end: int) -> None:
    count = max(0, min(count, end - at))
    masked[at : at + count] = bytes(count)
