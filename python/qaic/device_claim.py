"""``qaic.claim_devices``: devices of this host for one process among several."""

import contextlib
import fcntl
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from qaic.device_list import Device, devices
from qaic.errors import DeviceBusyError, OptionError, StateError

#: number of bytes of a device's file; each byte is a share of the device that a process can lock
_SHARES: Final = 10_000
_ASK_AGAIN_S: Final = 0.05
_OTHERS: Final = 0o077

# The process keeps the files open until it ends, because closing a file releases its locks.
_claimed: dict[int, int] = {}
_count = 0.0
_lock = threading.Lock()


def claim_devices(count: float = 1.0, *, timeout_s: float = 30.0) -> tuple[int, ...]:
    """Claim devices of this host for this process; other processes that claim devices get other ones.

    Workers of schedulers that count devices but do not assign ids, such as Ray and Dask, call it before the
    first session is loaded. It sets ``QAIC_VISIBLE_DEVICES`` to the claimed devices. Unless
    ``QAIC_CPU_SHARED`` is set, it also makes all processes of the user share the cores of virtual cards
    (``docs/guide/running.md``). A claim ends with the process. A process has one claim: a second call with
    the same count returns it.

    Blocks while too few devices are free, at most ``timeout_s``; releases the GIL.

    Parameters
    ----------
    count
        Number of devices, or a share of one device between 0 and 1.
    timeout_s
        Seconds to wait for processes that are ending.

    Returns
    -------
    tuple of int
        Ids of the devices.

    Raises
    ------
    qaic.errors.OptionError
        ``count`` is neither a whole number nor a share, or the folder of the claims is not this user's.
    qaic.errors.DeviceBusyError
        Other processes have claimed the devices that are ready, or there are too few.
    qaic.errors.StateError
        This process has claimed another number of devices.

    Examples
    --------
    >>> import qaic
    >>> qaic.claim_devices()  # doctest: +SKIP
    (0,)
    """
    shares = round(count * _SHARES)
    if shares < 1 or (shares > _SHARES and shares % _SHARES):
        raise OptionError(
            f"cannot claim {count!r}; a number of devices, or a share between 0 and 1, is expected",
            code="option.claim",
        )
    deadline = time.monotonic() + timeout_s
    with _lock:
        if _claimed:
            return _as_before(count)
        folder = _folder()
        while True:
            ready = [device for device in devices() if device.is_ready]
            with _turn(folder):
                claimed = _take(folder, ready, shares)
            if claimed:
                break
            if time.monotonic() >= deadline:
                raise _too_few(count, ready)
            time.sleep(_ASK_AGAIN_S)
        _remember(claimed, count)
        return tuple(claimed)


def _as_before(count: float) -> tuple[int, ...]:
    if count != _count:
        raise StateError(
            f"cannot claim {count:g}: this process has already claimed {_count:g}, devices {list(_claimed)}",
            code="device.claimed",
            hints=("claim once for all sessions of a process",),
        )
    return tuple(_claimed)


def _remember(claimed: dict[int, int], count: float) -> None:
    global _count  # noqa: PLW0603 (a claim is the process's)
    _count = count
    _claimed.update(claimed)
    os.environ["QAIC_VISIBLE_DEVICES"] = ",".join(map(str, claimed))
    os.environ.setdefault("QAIC_CPU_SHARED", "1")


def _take(folder: Path, ready: list[Device], shares: int) -> dict[int, int]:
    """Lock the requested number of devices: id -> file; empty if there are not enough."""
    taken: dict[int, int] = {}
    wanted = max(1, shares // _SHARES)
    for device in ready:
        path = folder / f"claim-{device.kind}-{device.id}"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if _take_share(file, min(shares, _SHARES)):
            taken[device.id] = file
            if len(taken) == wanted:
                return taken
        else:
            os.close(file)
    for file in taken.values():
        os.close(file)
    return {}


def _take_share(file: int, shares: int) -> bool:
    """Lock a part of a device; parts of the same size are adjacent."""
    for start in range(0, _SHARES - shares + 1, shares):
        with contextlib.suppress(BlockingIOError):
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, shares, start)
            return True
    return False


@contextlib.contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Exclude other claims in the block, so that two claims do not each lock half of their devices."""
    file = os.open(folder / "claim-turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _folder() -> Path:
    """Find the folder of this user in which the runtime counts cores across processes."""
    named = os.environ.get("QAIC_CPU_SHARED", "")
    memory = Path("/dev/shm")  # noqa: S108 (a folder in it that only this user can use)
    base = memory if memory.is_dir() else Path(tempfile.gettempdir())
    path = Path(named) if named not in ("", "0", "1") else base / f"openqaic-{os.getuid()}"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if found.st_uid != os.getuid() or found.st_mode & _OTHERS or path.is_symlink():
        raise OptionError(
            f"{path} is of user {found.st_uid} with mode {found.st_mode & 0o7777:o}; a folder of user "
            f"{os.getuid()} with mode 700 is expected, because the processes of one user share it",
            code="option.claim_folder",
            hints=("remove it, or set QAIC_CPU_SHARED to another folder",),
        )
    return path


def _too_few(count: float, ready: list[Device]) -> DeviceBusyError:
    ids = [device.id for device in ready]
    return DeviceBusyError(
        f"cannot claim {count:g}: this process sees the ready devices {ids}, and other processes have "
        "claimed too many of them",
        code="device.claims",
        hints=(
            "let the scheduler assign no more devices than `openqaic devices` lists; QAIC_CPU_DEVICES sets "
            "the number of virtual cards",
        ),
    )
