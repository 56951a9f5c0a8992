"""Stats buffers from Python: views, checks and columns, with the number of operations of a real buffer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .harness.row import Row
from .harness.spread import Spread, ratios
from .harness.worker import measure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .harness.effort import Effort

#: Number of operations in a real inference.
REAL_OPS = 1_300_000
_VIEWS_LIMIT_S = 5e-6
_COLUMNS_LIMIT_BYTES_PER_S = 20e9
_COPY_SHARE = 0.8


def even_buffer(ops: int) -> bytes:
    """Create the buffer of an inference on one thread."""
    from qaic import _core, stats

    core = np.zeros(1, stats.RECORDS["CORE"])
    thread = np.zeros(1, stats.RECORDS["THREAD"])
    core["end_u"] = thread["end_u"] = 3 * ops
    thread["op_count"] = ops
    op = np.zeros(ops, stats.RECORDS["OP"])
    op["oc"] = np.arange(ops) % 12_000
    op["start_u"] = np.arange(ops, dtype=np.uint64) * 3
    op["dur_u"] = 2
    op["kflags"] = 1  # executed
    run = {"cores": 1, "threads_per_core": 1, "ucycle_hz": 19_200_000, "batch_size": 1, "stats_level": 70}
    return _core.encode_stats(run, {"CORE": core, "THREAD": thread, "OP": op})


def views(ops: int, batches: int, seconds: float) -> dict[str, list[float]]:
    """Open a buffer and read it in several ways, in turns (in a worker)."""
    from qaic import stats

    from .harness.timing import in_turns

    raw = even_buffer(ops)
    dtype = stats.RECORDS["OP"]
    operations = stats.open(raw).ops
    start = raw.index(operations[:4].tobytes())

    def view() -> np.ndarray[Any, Any]:
        return stats.open(raw).ops

    def check() -> None:
        stats.open(raw, check=True)

    return in_turns(
        {
            "view": view,
            "frombuffer": partial(np.frombuffer, raw, dtype, ops, start),
            "check": check,
            "columns": partial(stats.open(raw).columns, "OP"),
            "copy": operations.copy,
        },
        batches,
        seconds,
    )


def view_rows(effort: Effort) -> Iterator[Row]:
    """Rows of the group `stats`."""
    results = measure("views", ops=REAL_OPS, batches=effort.batches, seconds=effort.batch_s)
    spreads = {name: Spread.of(values, "s") for name, values in results.items()}
    title = f"{REAL_OPS:,} operations"
    yield Row(
        f"open a buffer and view the operations: {title}",
        spreads["view"],
        (("np.frombuffer", spreads["frombuffer"]),),
        budget="<= 5 µs",
        met=spreads["view"].median <= _VIEWS_LIMIT_S,
    )
    size = REAL_OPS * 48
    columns, copy = (spreads[name].inverted(size, "B/s") for name in ("columns", "copy"))
    needed = min(_COLUMNS_LIMIT_BYTES_PER_S, _COPY_SHARE * copy.median)
    yield Row(
        f"all columns of the operations: {title}",
        columns,
        (("copy of the same bytes", copy),),
        ratio=ratios(results["copy"], results["columns"]),
        budget=">= 20 GB/s or 0.8 x the copy",
        met=columns.median >= needed,
    )
    yield Row(f"check every record: {title}", spreads["check"])
