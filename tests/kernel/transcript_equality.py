"""Comparison of transcripts of two drivers, after values of one card or one moment are normalized.

In addition to the values that :mod:`transcript` ignores in every comparison (ids of processes, addresses and
descriptors of the host, places of mappings, latencies, temperatures, events), these values are normalized:

* names of nodes and places on the bus (:data:`NODE`);
* waits that end with their time limit and are repeated, because the duration of an inference is random;
* the numbers and addresses that the firmware assigns (:data:`GIVEN`), if each corresponds to one of the other
  side.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

from transcript.diff import compare
from transcript.lines import Line, read

NODE = frozenset({"nodes", "path"})
#: First addresses of memory ranges.
BASES = frozenset({"ddr_base", "mcid_base"})
GIVEN = BASES | {"constants_id", "elf_id", "activation_id", "dynamic_ddr_base", "mcid_base_dma_cmd"}
#: Addresses of the device's memory.
ADDRESSES = frozenset({"dev_addr", "db_addr"})


def differences(path_a, path_b) -> list[str]:
    """Return a line for each difference between two transcripts. Blocking."""
    a, b = (_comparable(read(str(path))) for path in (path_a, path_b))
    comparison = compare(a, _in_numbers_of(a, b))
    return [
        f"{one.seq_a} | {one.seq_b} {one.name} {one.field or 'call'}: {one.a} | {one.b}"
        for one in comparison.differences
    ]


def _comparable(lines: list[Line]) -> list[Line]:
    def without_node(fields: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in fields.items() if key not in NODE}

    return [
        replace(line, fields=without_node(line.fields), answer=without_node(line.answer))
        for line in lines
        if not (line.name == "WAIT_BO" and line.errno == "ETIMEDOUT")
    ]


class _Numbers:
    """The numbers of one side, mapped to those of the other."""

    def __init__(self) -> None:
        self.of: dict[tuple[str, int], int] = {}
        self.bases: dict[int, int] = {}

    def learn(self, a: Any, b: Any) -> None:
        """Record the numbers of both sides at one place."""
        if isinstance(a, dict) and isinstance(b, dict):
            for name in a.keys() & b.keys():
                one, two = a[name], b[name]
                if name in GIVEN and isinstance(one, int) and isinstance(two, int):
                    # Only the first pair counts, because a number does not change its meaning.
                    if one not in {known for (of, _), known in self.of.items() if of == name}:
                        self.of.setdefault((name, two), one)
                        if name in BASES:
                            self.bases.setdefault(two, one)
                else:
                    self.learn(one, two)
        elif isinstance(a, list) and isinstance(b, list):
            for one, two in zip(a, b, strict=False):
                self.learn(one, two)

    def translated(self, name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self.translated(key, item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.translated(name, item) for item in value]
        if name in GIVEN:
            return self.of.get((name, value), value)
        if name in ADDRESSES and isinstance(value, int):
            base = max((base for base in self.bases if base <= value), default=None)
            return value if base is None else value - base + self.bases[base]
        return value

    def in_bytes(self, a: bytes, b: bytes) -> bytes:
        """Replace words of `b` with the words of `a` that they represent."""
        if len(a) != len(b) or len(a) % 4:
            return b
        words = list(struct.unpack(f"<{len(b) // 4}I", b))
        pairs = {(two, one) for (_, two), one in self.of.items()}
        # 64-bit numbers are two words.
        halves = {(two & 0xFFFF_FFFF, one & 0xFFFF_FFFF) for two, one in pairs}
        halves |= {(two >> 32, one >> 32) for two, one in pairs}
        for at, other in enumerate(struct.unpack(f"<{len(a) // 4}I", a)):
            if (words[at], other) in halves:
                words[at] = other
        return struct.pack(f"<{len(words)}I", *words)


def _in_numbers_of(a: list[Line], b: list[Line]) -> list[Line]:
    """Return `b` with the numbers of `a`, call by call; calls after a difference do not change."""
    numbers, found = _Numbers(), []
    for index, line in enumerate(b):
        other = a[index] if index < len(a) and a[index].name == line.name else None
        if other is not None and line.name == "MANAGE":
            numbers.learn(other.answer, line.answer)
        octets = dict(line.octets)
        if other is not None and line.name == "MANAGE":
            octets = {
                name: numbers.in_bytes(other.octets[name], value) if name in other.octets else value
                for name, value in octets.items()
            }
        found.append(
            replace(
                line,
                fields=numbers.translated("", line.fields),
                answer=numbers.translated("", line.answer),
                octets=octets,
            )
        )
    return found
