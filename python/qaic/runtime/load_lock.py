"""The lock of a session's loads and resets, separate from the lock of its state."""

import contextlib
import numbers
import threading
import time
from collections.abc import Iterator

from qaic.errors import DeviceTimeoutError


class LoadLock:
    """Lets one thread at a time load or reset, without the lock of the state."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    @contextlib.contextmanager
    def held(self, timeout: float | None) -> Iterator[float | None]:
        """Hold the lock; yields the rest of ``timeout`` in seconds. Blocks for at most ``timeout`` seconds.

        Raises DeviceTimeoutError if another thread loads or resets for longer.
        """
        begin = time.monotonic()
        # The caller refuses invalid limits.
        is_limited = isinstance(timeout, numbers.Real) and 0.0 <= timeout < threading.TIMEOUT_MAX
        is_free = self._lock.acquire(blocking=False)
        if not is_free and not self._lock.acquire(timeout=(timeout or 0.0) if is_limited else -1):
            raise DeviceTimeoutError(
                f"timed out after {1000 * (timeout or 0.0):.0f} ms waiting for the load of a program",
                code="device.timeout",
            )
        try:
            waited_s = 0.0 if is_free else time.monotonic() - begin
            yield max((timeout or 0.0) - waited_s, 0.0) if is_limited else timeout
        finally:
            self._lock.release()
