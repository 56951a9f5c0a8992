"""``Session.map``: results in the order of the inputs, with a bounded number of inferences in flight."""

import collections
import contextlib
import operator
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from numpy.typing import NDArray

from qaic import _core
from qaic.errors import QaicError
from qaic.support.status_line import status_line

T = TypeVar("T")


def imap(
    prepare: Callable[[T], _core.Inference],
    iterable: Iterable[T],
    most_in_flight: int,
    progress: "MapProgress",
    detach: Callable[[_core.Inference], None],
) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the results of ``iterable``'s inputs in order.

    The consumer's thread collects completions, so results do not pass between threads. If an input cannot be
    read, converted or started, the error is raised after the results of earlier inputs. At the end of the
    generator, inferences in flight are cancelled; ``detach`` receives those that do not end immediately.
    """
    in_flight: collections.deque[_core.Inference] = collections.deque()
    # Prepared inputs that wait for an exec object.
    waiting: _core.Inference | None = None
    prepared: Iterator[_core.Inference] | None = None
    failure: Exception | None = None
    has_more = True
    # Numbers of the next item to prepare or start, and of the next result.
    starting = yielding = 0
    try:
        while True:
            try:
                if prepared is None:
                    prepared = map(prepare, iterable)
                while has_more and len(in_flight) < most_in_flight:
                    if waiting is None:
                        # A `for` loop would read the next input before there is room for it.
                        waiting = next(prepared, None)
                        if waiting is None:
                            has_more = False
                            break
                    # If there are results to yield, do not wait for exec objects that others use.
                    if not waiting.start(not in_flight):
                        break
                    in_flight.append(waiting)
                    waiting = None
                    starting += 1
            except Exception as error:  # noqa: BLE001 (raised below, after the earlier results)
                _name_item(error, starting)
                failure, has_more = error, False
            if not in_flight:
                break
            try:
                result = in_flight[0].result()
            except Exception as error:
                _name_item(error, yielding)
                raise
            in_flight.popleft()
            yielding += 1
            progress.count()
            yield result
        if failure is not None:
            raise failure
    finally:
        # An exception keeps this frame, which must not keep the cores of inputs that never started.
        failure = None
        if waiting is not None:
            in_flight.append(waiting)
        # Inferences belong to the parent of a forked child. At the end of the interpreter, new threads
        # and imports fail.
        with contextlib.suppress(RuntimeError, ImportError):
            for inference in in_flight:
                inference.cancel()
            for inference in in_flight:
                if not inference.done():
                    detach(inference)
        progress.close()


def _name_item(error: Exception, item: int) -> None:
    """Add the number of the item to an exception."""
    error.add_note(f"item {item} of the map (the first is 0)")
    if isinstance(error, QaicError):
        error.context["item"] = item


class MapProgress:
    """Shows the progress of a map on a terminal; does nothing elsewhere, or without ``progress``."""

    def __init__(self, iterable: object, *, wanted: bool) -> None:
        self._is_wanted = wanted
        self._total = operator.length_hint(iterable, 0) if wanted else 0
        self._done = 0
        self._started = 0.0
        self._shown = contextlib.ExitStack()

    def count(self) -> None:
        """Count one result."""
        self._done += 1
        if self._is_wanted and self._done == 1:
            # The clock starts here, so that the rate excludes opening and the first inference.
            self._started = time.monotonic()
            self._shown.enter_context(status_line(self._text))

    def _text(self) -> str:
        share = f" of {self._total} ({100 * self._done // self._total} %)" if self._total else ""
        rate = (self._done - 1) / (time.monotonic() - self._started)
        return f"{self._done}{share}, {rate:.1f} inferences/s"

    def close(self) -> None:
        """Remove the line."""
        self._shown.close()
