"""Reset of a forked process: it has the locks of its parent, and none of its threads."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from qaic.runtime.futures import Collector


class BegunAnew(Protocol):
    """An object that a child has from its parent and cannot use as it is."""

    def _after_fork_in_child(self) -> None: ...


#: those of the process, sessions and what ends their futures, which may outlive them
sessions: weakref.WeakSet[BegunAnew] = weakref.WeakSet()
collectors: weakref.WeakSet[Collector] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # Before the sessions, each of which wakes its collector: a thread of the parent may hold what that takes.
    for collector in list(collectors):
        collector.after_fork_in_child()
    for session in list(sessions):
        session._after_fork_in_child()  # noqa: SLF001 (no method for users)


os.register_at_fork(after_in_child=_after_fork_in_child)
