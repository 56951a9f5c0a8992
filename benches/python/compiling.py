"""Time and memory of compilation, compared with the creation of onnxruntime's session."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from .harness import models
from .harness.row import Row, at_most
from .harness.spread import Spread, ratios
from .harness.worker import measure, status_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .harness.effort import Effort

_FIXED_BYTES = 200e6


def compiling(folder: str, name: str, side: str) -> dict[str, float]:
    """Compile once, or create onnxruntime's session once (in a worker); imports are excluded."""
    started = time.perf_counter()
    tiny, model = models.load("tiny", Path(folder)), models.load(name, Path(folder))
    if side == "ours":
        import qaic

        qaic.Session(tiny.path).setup()
    else:
        import onnxruntime

        onnxruntime.InferenceSession(str(tiny.path), providers=["CPUExecutionProvider"])
    result = {"imports": time.perf_counter() - started}
    started = time.perf_counter()
    if side == "ours":
        session = qaic.Session(model.path, **model.options)
        result["seconds"] = time.perf_counter() - started
        # Loaded only now: the weights of a loaded session would count as memory of the compilation.
        result["peak"] = status_bytes("VmHWM")
        started = time.perf_counter()
        session.setup()
        result["load"] = time.perf_counter() - started
        started = time.perf_counter()
        qaic.Session(model.path, **model.options)
        result["again"] = time.perf_counter() - started
    else:
        onnxruntime.InferenceSession(str(model.path), providers=["CPUExecutionProvider"])
        result["seconds"] = time.perf_counter() - started
        result["peak"] = status_bytes("VmHWM")
    return result


def compile_rows(folder: str, effort: Effort) -> Iterator[Row]:
    """Rows of the group `compile`."""
    for name in (*models.NAMES[1:], "chain"):
        size = models.load(name, Path(folder)).path.stat().st_size
        sides: dict[str, list[dict[str, float]]] = {"ours": [], "theirs": []}
        for _ in range(effort.processes):
            for side, results in sides.items():
                results.append(measure("compiling", folder=folder, name=name, side=side))

        def figures(side: str, key: str, sides: dict[str, list[dict[str, float]]] = sides) -> list[float]:
            return [result[key] for result in sides[side]]

        title = models.TITLES[name]
        theirs = (("", Spread.of(figures("theirs", "seconds"), "s")),)
        ratio = ratios(figures("ours", "seconds"), figures("theirs", "seconds"))
        yield Row(
            f"{title}: compile", Spread.of(figures("ours", "seconds"), "s"), theirs, **at_most(ratio, 1.3)
        )
        peak, limit = Spread.of(figures("ours", "peak"), "B"), 1.3 * size + _FIXED_BYTES
        yield Row(
            f"{title}: peak memory of the process",
            peak,
            (("", Spread.of(figures("theirs", "peak"), "B")),),
            budget=f"<= 1.3 x {size / 1e6:.1f} MB + 200 MB = {limit / 1e6:.0f} MB",
            met=peak.median <= limit,
        )
        yield Row(f"{title}: load the result", Spread.of(figures("ours", "load"), "s"))
        yield Row(f"{title}: open the same model again", Spread.of(figures("ours", "again"), "s"))
        imports = Spread.of(figures("ours", "imports"), "s")
        beside = (("", Spread.of(figures("theirs", "imports"), "s")),)
        yield Row(f"{title}: not included above: imports, first use of the engine", imports, beside)
