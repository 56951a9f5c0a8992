"""The thread that runs the callbacks of a context.

Data-path threads never run Python code of a client. They send messages to the channel of the context, and
one thread per context receives them and makes the calls in order. The thread starts with the first
registration. It ends after the remaining messages if there is no sender left, or the interpreter ends. A
forked child gets its own thread and an empty channel.
"""

import atexit
import os
import threading
import time
import traceback
from collections.abc import Callable

from qaic import _core

#: seconds that callbacks may take at the end of the interpreter
_EXIT_SECONDS = 5.0

_RUNNING: "set[_Runner]" = set()


class Dispatcher:
    """Runs callbacks of one context in order, on one thread. `channel` takes the callbacks."""

    def __init__(self, channel: _core.RtChannel) -> None:
        self._channel = channel
        self._runner: _Runner | None = None

    def start(self) -> None:
        """Start the thread if it is not running."""
        receiver = self._channel.claim()
        if receiver is not None:
            self._runner = _Runner(receiver)
            self._runner.start()

    def is_current(self) -> bool:
        """Return True if the caller is a callback on the thread."""
        return self._runner is not None and self._runner.is_current()

    def post(self, callback: Callable[..., object], *arguments: object) -> bool:
        """Call ``callback(*arguments)`` on the thread.

        Returns False if the interpreter is about to end, else True.
        """
        self.start()
        return self._channel.post(callback, arguments)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all callbacks posted so far were called. Blocking.

        A call on the thread itself does not wait.

        Returns True if they were called within ``timeout`` seconds.
        """
        if self.is_current():
            return True
        done = threading.Event()
        return self.post(done.set) and done.wait(timeout)


class _Runner:
    """A dispatcher thread and its channel."""

    def __init__(self, receiver: _core.RtReceiver) -> None:
        self._receiver = receiver
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        # A daemon, because a callback that hangs must not keep the process alive; `_finish` waits for others.
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
                del message  # its objects must not live until the next message
        finally:
            _RUNNING.discard(self)

    def _call(self, callback: Callable[..., object], arguments: tuple[object, ...], is_line: bool) -> None:  # noqa: FBT001
        try:
            callback(*arguments)
        except BaseException as error:  # noqa: BLE001 - an exception of a client must not end the thread
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
    """Start the threads of the parent in a forked child. If a callback forked, it continues."""
    for runner in list(_RUNNING):
        if not runner.is_current():
            runner.start()


atexit.register(_finish)
os.register_at_fork(after_in_child=_restart)
