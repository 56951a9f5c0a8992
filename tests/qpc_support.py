"""Containers for tests, written independently of the writer in the package."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from qaic import _core

DATA = Path(__file__).parent / "data"
FIXTURES = sorted((DATA / "qpc").glob("s*.qpc"))
HOSTILE = dict(line.split() for line in (DATA / "hostile" / "expected.txt").read_text().splitlines() if line)

MAGIC = 0x00A1CD7C


def expected(fixture: Path) -> dict:
    return json.loads(fixture.with_suffix(".json").read_text())


def head(segments, *, base=0, alignment=8) -> tuple[bytes, list[int]]:
    """Header, table and names of (name, size, offset) segments; starts of their payloads, then the end."""
    names = [name if isinstance(name, bytes) else name.encode() for name, _, _ in segments]
    position = 40 + 32 * len(segments)
    name_places = []
    for name in names:
        name_places.append(position)
        position += len(name) + 1
    places = []
    for _, size, _ in segments:
        position = -(-position // alignment) * alignment
        places.append(position)
        position += size
    table = b"".join(
        struct.pack("<QQQQ", size, offset, base + name_place, base + place)
        for (_, size, offset), name_place, place in zip(segments, name_places, places, strict=True)
    )
    header = struct.pack("<IBBHQQQQ", MAGIC, 0, 1, 1, position, base, len(segments), base + 40)
    return header + table + b"".join(name + b"\0" for name in names), [*places, position]


def container(segments, **layout) -> bytes:
    """A container of (name, payload) or (name, payload, offset)."""
    full = [(*segment, 0)[:3] for segment in segments]
    start, places = head([(name, len(payload), offset) for name, payload, offset in full], **layout)
    out = bytearray(places[-1])
    out[: len(start)] = start
    for (_, payload, _), place in zip(full, places, strict=False):
        out[place : place + len(payload)] = payload
    return bytes(out)


def program(
    *, name="net", constants=b"", plan=None, graph=None, elf=None, network=None, extra=()
) -> list[tuple[str, bytes, int]]:
    """Segments of a small program; with a plan, the program is for the CPU."""
    descriptor = {
        "major_version": 9,
        "network_name": name,
        "num_cores": 2,
        "batch_size": 1,
        **(network or {}),
    }
    metadata = {"versionMajor": 1, "networkName": name, "numNSPs": 2, "VTCMSize": 1, "L2TCMSize": 1}
    sections = [("metadata_fb", bytes(_core.encode_metadata(json.dumps(metadata))))]
    if graph is not None:
        sections.append(("openqaic_graph", graph))
    if plan is not None:
        text = plan if isinstance(plan, bytes) else json.dumps(plan).encode()
        sections.append(("openqaic_plan", text))
    return [
        ("constants.bin", constants, len(constants)),
        ("constantsdesc.bin", struct.pack("<QQBB6x", len(constants), 0, 0, 0), 0),
        ("network.elf", bytes(_core.encode_elf(sections)) if elf is None else elf, 0),
        ("networkdesc.bin", bytes(_core.encode_network_desc(json.dumps(descriptor))), 0),
        *((*segment, 0)[:3] for segment in extra),
    ]
