"""Futures of inferences, and the thread of a session that completes them."""

import collections
import contextlib
import itertools
import logging
import math
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import Any

from numpy.typing import NDArray

from qaic import _core
from qaic.errors import StateError
from qaic.runtime import forked

Outputs = dict[str, NDArray[Any]]

_logger = logging.getLogger(__name__)

#: seconds between two checks for the end of the interpreter and for exec objects that became free
_LOOK_S = 0.05
_LOOK_FOR_ROOM_S = 0.005

#: seconds that a thread without work stays
_IDLE_S = 0.5

#: seconds that the end of the interpreter waits for cancelled inferences
_PARTING_S = 2.0


class InferenceFuture(Future["Outputs"]):
    """A future of the outputs of one inference. ``cancel`` succeeds until the device starts the inference."""

    def __init__(self, inference: _core.Inference, forget: Callable[[], object]) -> None:
        super().__init__()
        # The reference is None after the end, so that a future does not keep the program.
        self._inference: _core.Inference | None = inference
        self._forget = forget

    def cancel(self) -> bool:
        """Cancel the inference. Returns False if the device has started it or it has ended."""
        inference = self._inference
        if inference is None or not inference.revoke():
            return self.cancelled()
        # After this point no other thread ends this future.
        self._inference = None
        self._forget()
        super().cancel()
        self.set_running_or_notify_cancel()
        return True

    def result(self, timeout: float | None = None) -> Outputs:
        """Return the outputs, or raise the error. Blocking, for at most ``timeout`` seconds."""
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, or None. Blocking, for at most ``timeout`` seconds."""
        self._wait(timeout)
        return super().exception(0)

    def _wait(self, timeout: float | None) -> None:
        """Wait in short intervals: a signal that arrives just before the sleep is handled after it."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        while not self.done() and (rest := until - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError, CancelledError):
                super().exception(min(rest, _LOOK_S))

    def running(self) -> bool:
        """Return True if the device has started the inference and not ended it."""
        inference = self._inference
        return inference is not None and inference.running()

    def abandon(self, reason: BaseException | None = None) -> None:
        """End the inference, even if it runs; its exception is ``reason``."""
        inference = self._inference
        if not self.cancel() and inference is not None and not self.done():
            inference.cancel()
            if reason is not None:
                self.fail(reason)

    def finish(self) -> None:
        """Set the result of the inference that has ended."""
        inference = self._inference
        if inference is None:
            return
        try:
            outputs = inference.result()
        except BaseException as error:  # noqa: BLE001 (the caller of result gets it)
            self.fail(error)
        else:
            self._inference = None
            self._end(lambda: self.set_result(outputs))

    def finish_here(self) -> None:
        """Call :meth:`finish` for an inference whose end no other thread is notified of."""
        self._forget()
        self.finish()

    def fail(self, error: BaseException) -> None:
        """End the future with an exception, unless it has ended."""
        self._inference = None
        self._end(lambda: self.set_exception(error))

    def _end(self, change: Callable[[], None]) -> None:
        try:
            change()
        except InvalidStateError:
            # The future was cancelled or abandoned in the meantime.
            pass
        except BaseException:
            # Callbacks may raise exceptions that the standard library does not catch, such as SystemExit.
            _logger.exception("a callback of a future failed")

    def end_in_child(self) -> None:
        """Fail in a forked child; the thread and the callbacks belong to the parent."""
        # A new condition, without waiters: another thread of the parent may hold the lock of the old one.
        super().__init__()
        error = StateError(
            "this process was forked during the inference; only the parent has the result",
            code="process.forked",
            hints=("submit again in the child",),
        )
        self._inference = None
        self.set_exception(error)


class _CollectorThread(threading.Thread):
    """Class of collector threads. At exit, the interpreter waits only for other threads."""


class Collector:
    """Completes the futures of a session on one thread, which exists only while futures are pending.

    The thread also ends cancelled inferences.

    Callbacks of futures run on this thread, which holds no locks during callbacks. The device continues,
    because the thread is not on the data path.
    """

    def __init__(self) -> None:
        self._completions = _core.Completions()
        self._lock = threading.Lock()
        self._tokens = itertools.count()
        self._pending: dict[int, InferenceFuture] = {}
        # Futures that wait for an exec object, in order.
        self._waiting: collections.deque[InferenceFuture] = collections.deque()
        self._thread: threading.Thread | None = None
        self._leaves_when_idle = False
        forked.collectors.add(self)

    def submit(self, inference: _core.Inference, *, wait: bool) -> InferenceFuture:
        """Start an inference.

        With ``wait``, blocks until an exec object is free; otherwise the collector starts it later.
        """
        token = next(self._tokens)
        future = InferenceFuture(inference, lambda: self._forget(token))
        with self._lock:
            self._pending[token] = future
        try:
            is_started = (wait or not self._waiting) and inference.start(wait, self._completions, token)
            if inference.ended_in_start:
                self._finish(token)
                return future
            with self._lock:
                self._ensure_thread()
            if not is_started:
                inference.report_to(self._completions, token)
        except BaseException:
            self._forget(token)
            inference.revoke()
            raise
        if not is_started:
            self._waiting.append(future)
            self._completions.wake()
        return future

    def detach(self, inference: _core.Inference) -> None:
        """Cancel an inference repeatedly until it has ended.

        A device may miss a cancellation at the moment when it starts the inference.
        """
        with self._lock:
            self._ensure_thread()
            # The token belongs to no future.
            inference.report_to(self._completions, next(self._tokens))

    def _ensure_thread(self) -> None:
        self._leaves_when_idle = False
        if self._thread is None:
            if sys.is_finalizing():
                # The thread would never begin, and `start` would wait forever.
                raise RuntimeError("no thread can start while the interpreter exits")
            thread = _CollectorThread(target=self._work, name="qaic-futures")
            thread.start()
            self._thread = thread

    def leave_when_idle(self) -> None:
        """End the thread as soon as nothing is pending, without the usual delay."""
        self._leaves_when_idle = True
        self._completions.wake()

    def _work(self) -> None:
        idle_since = None
        while True:
            for token in self._completions.wait(_LOOK_FOR_ROOM_S if self._waiting else _LOOK_S):
                self._finish(token)
            self._start_waiting()
            is_last = self._is_last_thread()
            if is_last:
                self._part()
            elif self._pending or self._completions.awaited:
                idle_since = None
                continue
            now = time.monotonic()
            idle_since = idle_since or now
            if is_last or self._leaves_when_idle or now - idle_since > _IDLE_S:
                with self._lock:
                    if is_last or not (self._pending or self._completions.awaited):
                        self._thread = None
                        return

    def _forget(self, token: int) -> InferenceFuture | None:
        with self._lock:
            return self._pending.pop(token, None)

    def _finish(self, token: int) -> None:
        future = self._forget(token)
        if future is not None:
            future.finish()

    def _start_waiting(self) -> None:
        while self._waiting:
            future = self._waiting[0]
            inference = future._inference  # noqa: SLF001 (a class of this module)
            try:
                if inference is not None:
                    if not inference.start(wait=False):
                        return
                    if inference.ended_in_start:
                        future.finish_here()
            except BaseException as error:  # noqa: BLE001 (the caller of result gets it)
                future.fail(error)
            self._waiting.popleft()

    @staticmethod
    def _is_last_thread() -> bool:
        """Return True if the interpreter waits only for threads of this class."""
        main = threading.main_thread()
        if main.is_alive():
            return False
        return all(
            thread is main or thread.daemon or isinstance(thread, _CollectorThread)
            for thread in threading.enumerate()
        )

    def _part(self) -> None:
        """Cancel all inferences at the end of the interpreter; no thread can wait for their results."""
        while True:
            with self._lock:
                if not self._pending:
                    break
                _, future = self._pending.popitem()
            reason = StateError(
                "the interpreter exited before the inference ended",
                code="process.exit",
                hints=("wait for futures, for example with concurrent.futures.wait",),
            )
            future.abandon(reason)
        # Running inferences use libraries that the end of the process unloads.
        deadline = time.monotonic() + _PARTING_S
        while self._completions.awaited and time.monotonic() < deadline:
            self._completions.wait(_LOOK_S)

    def _after_fork_in_child(self) -> None:
        """Reset in a forked child, without locks that another thread of the parent may hold."""
        _kept_of_parent.append((self._completions, [future._inference for future in self._pending.values()]))  # noqa: SLF001
        lost = list(self._pending.values())
        self._completions = _core.Completions()
        self._lock = threading.Lock()
        self._pending = {}
        self._waiting = collections.deque()
        self._thread = None
        for future in lost:
            future.end_in_child()


#: Inferences of the parent in a forked child; never freed, because a lock inside may be held forever.
_kept_of_parent: list[object] = []
