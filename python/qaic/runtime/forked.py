"""Reset of a forked process, which has copies of its parent's locks but none of its threads."""

import os
import weakref
from typing import Protocol


class BegunAnew(Protocol):
    """An object that a forked child must reset before it can use it."""

    def _after_fork_in_child(self) -> None: ...


#: objects of the process: sessions, and the collectors of their futures, which may outlive them
sessions: weakref.WeakSet[BegunAnew] = weakref.WeakSet()
collectors: weakref.WeakSet[BegunAnew] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # Collectors come first: a session wakes its collector, whose lock a thread of the parent may hold.
    for begun in (*collectors, *sessions):
        begun._after_fork_in_child()  # noqa: SLF001 (no method for users)


os.register_at_fork(after_in_child=_after_fork_in_child)
