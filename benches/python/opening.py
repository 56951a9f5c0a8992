"""Opening containers from Python, compared with reading the file."""

from __future__ import annotations

import mmap
import struct
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .harness import models
from .harness.row import Row
from .harness.spread import Spread, ratios
from .harness.worker import measure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .harness.effort import Effort

_PIECE = 1 << 24
LARGE_BYTES = 1 << 30
LARGE = "large.qpc"
_FIXED_S, _PER_BINDING_S = 40e-6, 0.5e-6


def write_large(folder: str) -> None:
    """Write the tiny program with 1 GiB of unused constants (in a worker)."""
    import qaic
    from qaic import _core

    target = Path(folder, LARGE)
    session_path = Path(folder, "tiny-program")
    qaic.Session(models.load("tiny", Path(folder)).path, output_dir=session_path)
    small = _core.Qpc(session_path / "programqpc.bin")
    payloads = {name: bytes(small.payload(name)) for name, *_ in small.segments}
    payloads["constantsdesc.bin"] = struct.pack("<QQBB6x", LARGE_BYTES, 0, 0, 0)
    segments = [(name, len(payload), 0) for name, payload in payloads.items()]
    segments.append(("constants.bin", LARGE_BYTES, LARGE_BYTES))
    writer = _core.QpcWriter(str(target), sorted(segments), 64)
    for name, payload in payloads.items():
        writer.write(name, payload)
    for _ in range(LARGE_BYTES // _PIECE):
        writer.write("constants.bin", bytes(_PIECE))
    writer.finish()


def opening(path: str, batches: int, seconds: float) -> dict[str, list[float]]:
    """Open, map and read a file in turns (in a worker)."""
    from qaic import _core

    from .harness.timing import in_turns

    return in_turns(
        {
            "open": partial(_core.Qpc, path),
            "map": partial(_map_first_byte, path),
            "read": Path(path).read_bytes,
        },
        batches,
        seconds,
    )


def _map_first_byte(path: str) -> int:
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        return mapping[0]


def bindings(path: str) -> int:
    """Count the bindings of a container (in a worker)."""
    from qaic import _core

    return sum(len(tensors) for tensors in _core.Qpc(path).tensors())


def compiled(folder: str, name: str) -> str:
    """Compile a model in `folder` and return the container (in a worker)."""
    import qaic

    model = models.load(name, Path(folder))
    target = Path(folder, f"{name}-program")
    qaic.Session(model.path, output_dir=target, **model.options)
    return str(target / "programqpc.bin")


def open_rows(folder: str, effort: Effort) -> Iterator[Row]:
    """Rows of the group `open`, from Python."""
    for name in ("tiny", "magika", "ffn", LARGE):
        path = str(Path(folder, LARGE)) if name == LARGE else measure("compiled", folder=folder, name=name)
        title = "1 GiB of constants" if name == LARGE else models.TITLES[name]
        measured = measure("opening", path=path, batches=effort.batches, seconds=effort.batch_s)
        count = measure("bindings", path=path)
        limit = _FIXED_S + _PER_BINDING_S * count
        ours = Spread.of(measured["open"], "s")
        yield Row(
            f"Qpc(path): {title}, {count} bindings",
            ours,
            (
                ("read the file", Spread.of(measured["read"], "s")),
                ("map the file, touch 1 byte", Spread.of(measured["map"], "s")),
            ),
            ratios(measured["open"], measured["read"]),
            f"<= {limit * 1e6:.1f} µs",
            ours.median <= limit,
            ours,
        )
