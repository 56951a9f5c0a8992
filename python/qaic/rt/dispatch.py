"""The thread that runs the callbacks of a context.

Data-path threads never run Python code of a client. They put a message into the channel of the context, and
one thread per context takes messages out and makes the calls, in order. It starts with the first registration
and ends with the last sender, or with the interpreter, after the messages that are there. A
forked child gets a thread and an empty channel of its own.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import traceback
from collections.abc import Callable

from qaic import _core

#: seconds that callbacks have to finish when the interpreter ends
_EXIT_SECONDS = 5.0

_RUNNING: set[_Runner] = set()


class Dispatcher:
    """Runs callbacks of one context in order, on one thread. `channel` takes the callbacks."""

    def __init__(self, channel: _core.RtChannel) -> None:
        self._channel = channel
        self._runner: _Runner | None = None

    def start(self) -> None:
        """Start the thread if it does not run yet."""
        receiver = self._channel.claim()
        if receiver is not None:
            self._runner = _Runner(receiver)
            self._runner.start()

    def is_current(self) -> bool:
        """Return whether the caller is a callback, on the thread."""
        return self._runner is not None and self._runner.is_current()

    def post(self, callback: Callable[..., object], *arguments: object) -> bool:
        """Have ``callback(*arguments)`` called on the thread.

        Returns true if it will be; false if the interpreter is about to end.
        """
        self.start()
        return self._channel.post(callback, arguments)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything posted so far was called. Blocking.

        Called on the thread itself, it does not wait.

        Returns true if it was, within ``timeout`` seconds.
        """
        if self.is_current():
            return True
        done = threading.Event()
        return self.post(done.set) and done.wait(timeout)


class _Runner:
    """One dispatcher thread and the channel it empties."""

    def __init__(self, receiver: _core.RtReceiver) -> None:
        self._receiver = receiver
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        # A daemon, as a callback that hangs must not keep the process alive; `_finish` lets the others end.
        self._thread = threading.Thread(target=self._serve, name="qaicrt callbacks", daemon=True)
        _RUNNING.add(self)
        self._thread.start()

    def is_current(self) -> bool:
        return self._thread is threading.current_thread()

    def close(self) -> None:
        self._receiver.close()

    def join(self, seconds: float) -> None:
        if self._thread is not None and not self.is_current():
            self._thread.join(seconds)

    def _serve(self) -> None:
        try:
            while (message := self._receiver.take()) is not None:
                self._call(*message)
                del message  # whatever it owns must not wait for the next one
        finally:
            _RUNNING.discard(self)

    def _call(self, callback: Callable[..., object], arguments: tuple[object, ...], is_line: bool) -> None:  # noqa: FBT001
        try:
            callback(*arguments)
        except BaseException as error:  # noqa: BLE001 - whatever a client raises must not end the thread
            lines = "".join(traceback.format_exception(error)).rstrip()
            self._receiver.complain(f"callback {callback!r} raised an exception:\n{lines}", is_line)


def _finish() -> None:
    runners = list(_RUNNING)
    for runner in runners:
        runner.close()
    deadline = time.monotonic() + _EXIT_SECONDS
    for runner in runners:
        runner.join(max(0.0, deadline - time.monotonic()))


def _restart() -> None:
    """Give a forked child the threads that its parent had; a callback that forked goes on as one itself."""
    for runner in list(_RUNNING):
        if not runner.is_current():
            runner.start()


atexit.register(_finish)
os.register_at_fork(after_in_child=_restart)
