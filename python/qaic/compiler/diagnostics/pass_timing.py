"""Record of a compilation, pass by pass: wall times, and the graph between two passes.

A pass has no end of its own: it lasts until the next one begins, so the times add up to the whole. A graph
that is saved is the one the pass left behind; its large weights are inputs there, because they are not part
of a graph while it is compiled.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from qaic.compiler.output_folder import record

if TYPE_CHECKING:
    import onnx

_log = logging.getLogger("qaic.compiler")


class PassLog:
    """Times of the passes of one compilation.

    `graphs` is an existing folder that receives the graph after each pass, as ``<number>-<pass>.onnx``.
    """

    def __init__(self, graphs: Path | None = None) -> None:
        self._graphs = graphs
        self._pass = ""
        self._since = 0.0
        self._seconds: dict[str, float] = {}
        self._saved = 0

    @property
    def folder(self) -> Path | None:
        """Folder that receives the graphs."""
        return self._graphs

    @property
    def seconds(self) -> Mapping[str, float]:
        """Wall time of each pass by its name, in the order in which they first ran."""
        return self._seconds

    def enter(self, name: str, graph: Callable[[], onnx.ModelProto] | None = None) -> None:
        """Begin a pass, which ends the one before.

        `name` is empty when no pass begins. `graph` copies the graph as the pass before left it, its weights
        as inputs; it is called where graphs are saved.
        """
        self._stop()
        if self._graphs is not None and graph is not None and self._pass:
            self._save(self._graphs, graph())
        self._pass = name
        # The time to save a graph belongs to no pass.
        self._since = time.perf_counter()

    def table(self) -> str:
        """Write the passes with their times and shares, and the sum."""
        total = sum(self._seconds.values())
        width = max(map(len, self._seconds), default=4)
        lines = [f"{'pass':<{max(width, 5)}}  {'time (ms)':>10}  {'share':>6}"]
        for name, seconds in [*self._seconds.items(), ("total", total)]:
            share = 100 * seconds / total if total else 0.0
            lines.append(f"{name:<{max(width, 5)}}  {1000 * seconds:>10.2f}  {share:>5.1f}%")
        return "\n".join(lines)

    def _stop(self) -> None:
        if self._pass:
            elapsed = time.perf_counter() - self._since
            self._seconds[self._pass] = self._seconds.get(self._pass, 0.0) + elapsed
            _log.debug("pass %s: %.2f ms", self._pass, 1000 * elapsed)

    def _save(self, folder: Path, graph: onnx.ModelProto) -> None:
        place = folder / f"{self._saved:02}-{self._pass.replace(' ', '-')}.onnx"
        self._saved += 1
        record(folder, [place.name])
        place.write_bytes(graph.SerializeToString(deterministic=True))
        _log.debug("graph after %s: %s", self._pass, place)
