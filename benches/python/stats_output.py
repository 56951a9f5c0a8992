"""Summaries and traces of stats buffers, from Rust, compared with orjson."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from .harness.row import Row, at_least
from .harness.spread import Spread, ratios
from .harness.worker import measure, status_bytes
from .stats_views import even_buffer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .harness.criterion import Figure
    from .harness.effort import Effort

#: Number of events that also fit into memory as Python objects.
_EVENTS = 130_000
_OPS_A_CORE = 12_000
_LARGE_OPS = 10_000_000
_LARGE_LIMIT_BYTES = 300e6
_SUMMARY_LIMIT_S = 0.1
_TRACE_LIMIT_BYTES_PER_S = 2.5e9


def descriptor() -> bytes:
    """Describe the operations of :func:`stats_views.even_buffer`."""
    ops = [
        {
            "name": f"/model/layers.{oc // 64}/self_attn/q_proj/MatMul_{oc % 64}/__{oc}",
            "kind": ("FusedGemm", "Softmax", "Add")[oc % 3],
            "memory": "HOST",
            "types": "float",
            "shape": "[1 x 128 x 64]",
            "output_bytes": 1024 * (1 + oc % 96),
        }
        for oc in range(_OPS_A_CORE)
    ]
    facts = {"version": 1, "network": "net", "groups": ["CPU"], "thread_groups": [0], "cores": [{"ops": ops}]}
    return json.dumps(facts).encode()


def events(ops: int, batches: int, seconds: float) -> dict[str, list[float]]:
    """Write the same events with openqaic and with orjson, in turns (in a worker)."""
    import orjson

    from qaic import _core

    from .harness.timing import in_turns

    described = _core.StatsDescriptor.from_json(descriptor())
    buffer = _core.StatsBuffer(even_buffer(ops), described, any_program=True)
    parts = [(buffer, described, "net", None)]
    written = bytes(_core.stats_trace(parts))
    same = json.loads(written)["traceEvents"]
    # A trace without the operations would be fast.
    assert len(same) > ops
    times = in_turns(
        {"ours": lambda: _core.stats_trace(parts), "orjson": lambda: orjson.dumps(same)}, batches, seconds
    )
    return {**times, "bytes": [float(len(written))], "orjson bytes": [float(len(orjson.dumps(same)))]}


def write_large_buffer(path: str) -> int:
    """Write a buffer of :data:`_LARGE_OPS` operations, and return its bytes (in a worker)."""
    return Path(path).write_bytes(even_buffer(_LARGE_OPS))


def large_memory(path: str) -> int:
    """Return the peak memory of a process that wrote the summary and trace of a large buffer (in a worker).

    Pages of the mapped file count.
    """
    from qaic import stats
    from qaic.stats.reports import REPORTS, Capture

    described = stats.Descriptor.from_json(descriptor())
    buffer = stats.open(path, qpc=described, force=True, check=True)
    buffer.summary()
    for form in ("json", "perfetto"):
        buffer.write_trace("/dev/null", format=form)
    REPORTS["overview"](Capture([buffer]))
    return status_bytes("VmHWM")


def _large_row() -> Row:
    with tempfile.TemporaryDirectory(prefix="openqaic-bench-") as folder:
        path = str(Path(folder, "large.bin"))
        size = measure("write_large_buffer", path=path)
        peaks = [float(measure("large_memory", path=path)) for _ in range(3)]
    peak = Spread.of(peaks, "B")
    return Row(
        f"Python: peak memory of check, summary, traces and a report, {_LARGE_OPS:,} operations, "
        f"{size / 1e6:.0f} MB",
        peak,
        budget="< 300 MB",
        met=peak.median < _LARGE_LIMIT_BYTES,
    )


def output_rows(rust: dict[str, list[Figure]], effort: Effort) -> Iterator[Row]:
    """Rows of the group `stats output`."""
    for figure in rust["stats summary"]:
        is_real = figure.value == "1300000"
        yield Row(
            f"Rust: {figure.function.split(',')[0]}, {int(figure.value):,} operations",
            figure.time,
            budget="<= 100 ms" if is_real else "",
            met=figure.time.median <= _SUMMARY_LIMIT_S if is_real else None,
        )
    copies = {
        figure.value: figure.rate for figure in rust["stats trace"] if figure.function.startswith("copy")
    }
    for figure in rust["stats trace"]:
        if figure.function.startswith("copy"):
            continue
        what = figure.function.removesuffix(", operations")
        is_judged = what.startswith("JSON") and what.endswith("to memory") and figure.value == "1300000"
        yield Row(
            f"Rust: {what}, {int(figure.value):,} operations, {figure.bytes / 1e6:.0f} MB",
            figure.rate,
            (("copy of the JSON", copies[figure.value]),) if figure.value in copies else (),
            budget=">= 2.5 GB/s" if is_judged else "",
            met=figure.rate.median >= _TRACE_LIMIT_BYTES_PER_S if is_judged else None,
        )
    results = measure("events", ops=_EVENTS, batches=effort.batches, seconds=effort.batch_s)
    (size,), (orjson_size,) = results["bytes"], results["orjson bytes"]
    ours = Spread.of(results["ours"], "s")
    yield Row(
        f"Python: the same {_EVENTS:,} events as bytes, {size / 1e6:.0f} MB",
        ours,
        ((f"orjson.dumps, {orjson_size / 1e6:.0f} MB", Spread.of(results["orjson"], "s")),),
        **at_least(ratios(results["orjson"], results["ours"]), 3),
    )
    yield _large_row()
