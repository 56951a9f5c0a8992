"""Progress of a compilation, shown after one second, and the times of its passes.

A pass lasts until the next one begins, so the times add up to the total. A saved graph is the result of its
pass. Its large weights are inputs, because they are not part of a graph during compilation.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from qaic.compiler.output_folder import record
from qaic.support.status_line import status_line
from qaic.support.text import counted

if TYPE_CHECKING:
    import onnx

_log = logging.getLogger("qaic.compiler")


class PassLog:
    """Times of the passes of one compilation.

    `graphs` is an existing folder that receives the graph after each pass, as ``<number>-<pass>.onnx``.
    """

    def __init__(self, graphs: Path | None = None) -> None:
        #: folder that receives the graphs
        self.folder = graphs
        self._pass = ""
        self._since = 0.0
        #: wall time of each pass by its name, in the order in which they first ran
        self.seconds: dict[str, float] = {}
        #: pass and reason -> number of nodes that a rule did not change, and the first of them
        self._skipped: dict[tuple[str, str], tuple[int, str]] = {}
        self._saved = 0

    def enter(self, name: str, graph: Callable[[], onnx.ModelProto] | None = None) -> None:
        """Begin a pass, which ends the previous pass.

        `name` is empty if no pass begins. `graph` copies the result of the previous pass, with its weights as
        inputs; it is called only if graphs are saved.
        """
        self._stop()
        if self.folder is not None and graph is not None and self._pass:
            self._save(self.folder, graph())
        self._pass = name
        # The time of a pass does not include saving its graph.
        self._since = time.perf_counter()

    def skip(self, reason: str, node: str) -> None:
        """Count a node that a rule of the pass does not change."""
        count, first = self._skipped.get((self._pass, reason), (0, node))
        self._skipped[self._pass, reason] = count + 1, first

    def table(self) -> str:
        """Write the passes with their times and shares, and the reasons why rules did not change nodes."""
        total = sum(self.seconds.values())
        width = max(map(len, self.seconds), default=4)
        lines = [f"{'pass':<{max(width, 5)}}  {'time (ms)':>10}  {'share':>6}"]
        for name, seconds in [*self.seconds.items(), ("total", total)]:
            share = 100 * seconds / total if total else 0.0
            lines.append(f"{name:<{max(width, 5)}}  {1000 * seconds:>10.2f}  {share:>5.1f}%")
        for (name, reason), (count, first) in self._skipped.items():
            lines.append(f"{name} left {counted(count, 'node')} (first {first!r}): {reason}")
        return "\n".join(lines)

    def _stop(self) -> None:
        if self._pass:
            elapsed = time.perf_counter() - self._since
            self.seconds[self._pass] = self.seconds.get(self._pass, 0.0) + elapsed
            _log.debug("pass %s: %.2f ms", self._pass, 1000 * elapsed)

    def _save(self, folder: Path, graph: onnx.ModelProto) -> None:
        place = folder / f"{self._saved:02}-{self._pass.replace(' ', '-')}.onnx"
        self._saved += 1
        record(folder, [place.name])
        place.write_bytes(graph.SerializeToString(deterministic=True))
        _log.debug("graph after %s: %s", self._pass, place)


#: seconds before anything is shown
_PATIENCE_S: Final = 1.0


class Progress(ExitStack):
    """Stages of one compilation: read, check, calibrate, convert, write. The class is a context manager.

    `title` names the model; `passes` records the time of every stage.
    """

    def __init__(self, title: str, passes: PassLog | None = None) -> None:
        super().__init__()
        self._title = title
        self._passes = passes
        self._stage = ""
        self._done = ""
        self._line = status_line(lambda: f"{self._title}: {self._stage}{self._done}", _PATIENCE_S)

    @property
    def debug_folder(self) -> Path | None:
        """Existing folder for the files of `enable_debug`."""
        return None if self._passes is None else self._passes.folder

    def stage(self, name: str, graph: Callable[[], onnx.ModelProto] | None = None) -> None:
        """Enter a stage.

        `name` is a row of the report on passes. `graph` copies the result of the previous stage if it changed
        the graph; the copy is saved with `enable_debug`.
        """
        self._stage, self._done = name, ""
        if self._passes is not None:
            self._passes.enter(name, graph)

    def skip(self, reason: str, node: str) -> None:
        """Report a node that a rule does not change."""
        if self._passes is not None:
            self._passes.skip(reason, node)

    def advance(self, done: int, total: int) -> None:
        """Report the number of processed bytes of the stage."""
        if total:
            self._done = f" {100 * done // total} %"

    def count(self, done: int, total: int | None, noun: str) -> None:
        """Report the number of started or finished items of the stage, and the total if known."""
        self._done = f" {done} of {counted(total, noun)}" if total else f" {counted(done, noun)}"

    def __enter__(self) -> Self:
        self.enter_context(self._line)
        return self
