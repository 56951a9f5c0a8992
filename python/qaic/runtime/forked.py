"""Reset of a forked process: it has the locks of its parent, and none of its threads."""

import os
import weakref
from typing import Protocol


class BegunAnew(Protocol):
    """An object that a child has from its parent and cannot use as it is."""

    def _after_fork_in_child(self) -> None: ...


#: those of the process, sessions and what ends their futures, which may outlive them
sessions: weakref.WeakSet[BegunAnew] = weakref.WeakSet()
collectors: weakref.WeakSet[BegunAnew] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # Before the sessions, each of which wakes its collector: a thread of the parent may hold what that takes.
    for begun in (*collectors, *sessions):
        begun._after_fork_in_child()  # noqa: SLF001 (no method for users)


os.register_at_fork(after_in_child=_after_fork_in_child)
