"""Limits of requests, and the budgets of bytes and of turns that requests share."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from qaic.errors import StateError

#: steps of connections in one turn of the event loop, which take some milliseconds
_STEPS_PER_TURN: Final = 32
#: the same in the turn after a connection was opened; the event loop opens one connection per turn
_STEPS_AFTER_OPENING: Final = 4
#: number of the newest connections whose first request starts at once
_RECENT: Final = 32


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a server. The reference (``docs/reference/server.md``) gives the reasons for the defaults.

    Parameters
    ----------
    max_body_bytes
        Bytes of a request.
    memory_bytes
        Bytes of all requests and responses together, over HTTP and gRPC.
    body_timeout_s
        Seconds to receive a body, and to send a response.
    max_head_bytes, max_headers
        Bytes of a request line with its headers, and number of headers.
    head_timeout_s
        Seconds from the opening of a connection, or the first byte of a request, to the end of its headers.
    idle_timeout_s
        Seconds that a connection may stay open between two requests.
    max_connections
        Number of HTTP connections and gRPC calls at a time. A new connection replaces the one that has been
        idle longest; if none is idle, requests get 503 and RESOURCE_EXHAUSTED.
    max_loads
        Number of loads and unloads that run or wait.
    model_control
        True to let clients load and unload models.
    allowed_hosts
        Names of this server in addition to addresses, names without a dot, and ``localhost``.
    """

    max_body_bytes: int = 64 << 20
    memory_bytes: int = 256 << 20
    body_timeout_s: float = 30.0
    max_head_bytes: int = 32 << 10
    max_headers: int = 100
    head_timeout_s: float = 10.0
    idle_timeout_s: float = 65.0
    max_connections: int = 4096
    max_loads: int = 8
    model_control: bool = False
    allowed_hosts: frozenset[str] = frozenset()


class Turns:
    """Bounds the steps of connections in one turn of the event loop, so that every turn is short.

    A step is the head of a request, a part of a body that arrived, or the end of a connection with a request.
    All methods belong to the event loop's thread.

    `call_soon` calls a function in the next turn.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._waiting: deque[Callable[[], None]] = deque()
        self._left = _STEPS_PER_TURN
        self._opened = 0
        self._is_scheduled = self._is_opening = False

    def make_room(self) -> int:
        """Keep the next turn short: each turn opens one waiting connection.

        Returns the number of the connection that was opened.
        """
        self._is_opening = True
        self._opened += 1
        return self._opened

    def is_recent(self, number: int) -> bool:
        """Return True if a connection is among the newest."""
        return self._opened - number < _RECENT

    def take(self) -> bool:
        """Return True if this turn has another step and no call waits for it."""
        if self._waiting or not self._left:
            return False
        self._left -= 1
        self._schedule()
        return True

    def wait(self, start: Callable[[], None]) -> None:
        """Call a function in a later turn, after those that already wait."""
        self._waiting.append(start)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._left = _STEPS_AFTER_OPENING if self._is_opening else _STEPS_PER_TURN
        self._is_scheduled = self._is_opening = False
        # Calls that wait again are at the end.
        for _ in range(min(self._left, len(self._waiting))):
            self._left -= 1
            self._waiting.popleft()()
        if not self._left:
            self._schedule()


class MemoryBudget:
    """Bytes that requests may hold together. All methods belong to the event loop's thread.

    `total_bytes` is the limit.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self.arriving: set[Lease] = set()

    def lease(self) -> "Lease":
        """Return an empty lease, for a ``with`` block of one task."""
        return Lease(self)


class Lease:
    """Bytes that one request holds.

    If the budget is exhausted, the largest body that
    is not complete is refused, so that many unfinished bodies never block a small request.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self.held_bytes = 0
        self._budget = budget
        self._task: asyncio.Task[object] | None = None
        self._gave_way = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.resize(0)

    def resize(self, size: int) -> None:
        """Set the number of bytes of the lease.

        Raises StateError if the budget does not have the bytes (``serving.memory``).
        """
        budget = self._budget
        while budget.used_bytes - self.held_bytes + size > budget.total_bytes and size > self.held_bytes:
            largest = max(budget.arriving, key=lambda lease: lease.held_bytes, default=None)
            least = self.held_bytes if self in budget.arriving else 0
            if largest is None or largest.held_bytes <= least:
                raise self._exhausted()
            largest.give_way()
        budget.used_bytes += size - self.held_bytes
        self.held_bytes = size

    async def collect(self, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the parts of a body as they arrive, and count their bytes.

        Raises StateError if the budget does not have the bytes, or this body was refused in favor of others.
        """
        self._task = asyncio.current_task()
        self._budget.arriving.add(self)
        try:
            async for part in parts:
                self.resize(self.held_bytes + len(part))
                yield part
            if self._gave_way:
                # The cancellation is only for this body.
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            if self._gave_way and self._task is not None and self._task.uncancel() == 0:
                raise self._exhausted() from None
            raise
        finally:
            self._budget.arriving.discard(self)

    def give_way(self) -> None:
        """Stop receiving this body."""
        self._gave_way = True
        self._budget.arriving.discard(self)
        self.resize(0)
        if self._task is not None:
            self._task.cancel()

    def _exhausted(self) -> StateError:
        return StateError(
            f"requests and answers hold {self._budget.used_bytes} of {self._budget.total_bytes} bytes, which "
            "leaves too few for this one",
            code="serving.memory",
            hints=("retry later; --max-memory sets the limit",),
        )
