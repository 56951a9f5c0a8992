"""Progress of a compilation: shown when it takes more than a second, and noted in a `PassLog`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from qaic.compiler.diagnostics.pass_timing import PassLog
from qaic.support.status_line import status_line

if TYPE_CHECKING:
    import onnx

#: seconds before anything is shown
_PATIENCE_S: Final = 1.0


class Progress:
    """Stages of one compilation: read, check, calibrate, convert, write. Used as a context manager.

    `title` names the model; `passes` takes the time of every stage.
    """

    def __init__(self, title: str, passes: PassLog | None = None) -> None:
        self._title = title
        self._passes = passes
        self._stage = ""
        self._done = ""
        self._line = status_line(lambda: f"{self._title}: {self._stage}{self._done}", _PATIENCE_S)

    @property
    def debug_folder(self) -> Path | None:
        """Existing folder for what `enable_debug` asks for."""
        return None if self._passes is None else self._passes.folder

    def stage(self, name: str, graph: Callable[[], onnx.ModelProto] | None = None) -> None:
        """Enter a stage.

        `name` is a row of the report on passes. `graph` copies the graph as the stage before left it, where
        it is another one; it is kept with `enable_debug`.
        """
        self._stage, self._done = name, ""
        if self._passes is not None:
            self._passes.enter(name, graph)

    def advance(self, done: int, total: int) -> None:
        """Report how many of the bytes of the stage are done."""
        if total:
            self._done = f" {100 * done // total} %"

    def count(self, done: int, total: int | None, noun: str) -> None:
        """Report how many items of the stage are under way or done, out of the total if that is known."""
        self._done = f" {done}{f' of {total}' if total else ''} {noun}"

    def __enter__(self) -> Self:
        self._line.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.__exit__(kind, value, trace)
