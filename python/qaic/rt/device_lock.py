"""Advisory locks of devices among the processes of one user (``lockDevice``).

A lock is a locked file in the user's own directory, so the system releases it when the process ends for any
reason. Each lock is a separate open file, so threads of one process also exclude each other.
"""

import fcntl
import os

from qaic import _core

# Open files of the locks that this process holds, by device.
_HELD: dict[int, int] = {}


def acquire(device: int, *, block: bool) -> bool:
    """Take the lock of a device. Blocks with ``block``; Ctrl-C ends the wait.

    Returns True if the lock was taken; False only without ``block``. Raises OSError if the file cannot be
    used, and QaicError if the directory belongs to another user or others can access it.
    """
    path = _core.open_user_directory() / f"device-{device}.lock"
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(path, flags, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX if block else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return False
    except BaseException:
        os.close(file)
        raise
    _HELD[device] = file
    return True


def release(device: int) -> bool:
    """Release the lock of a device. Returns True if this process had the lock."""
    file = _HELD.pop(device, None)
    if file is None:
        return False
    os.close(file)
    return True


def _forget() -> None:
    """Close the copies in a forked child, which would keep the locks after the parent releases them."""
    while _HELD:
        os.close(_HELD.popitem()[1])


os.register_at_fork(after_in_child=_forget)
