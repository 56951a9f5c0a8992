"""``Util``: information about devices and about this package."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from operator import index
from typing import Any, Final, SupportsIndex, TypeVar

from qaic import _core
from qaic.errors import QaicError
from qaic.rt import device_info
from qaic.rt.devices import QDevInfo, QPerformanceInfo, QResourceInfo
from qaic.rt.enums import QAicDeviceType, QStatus, of_qaicrt
from qaic.rt.sequences import QIDList
from qaic.support.text import escape_unprintable

_DISTRIBUTION: Final = "openqaic"
_VARIANT: Final = "OPENQAIC"
_T = TypeVar("_T")


@of_qaicrt
class Util:
    """Queries devices. Calls return a status and the value, which is empty on failure."""

    __slots__ = ("__weakref__", "_devices", "_process")

    def __init__(self) -> None:
        self._devices: _core.Context | None = None
        self._process = 0

    def getDeviceIds(
        self, deviceType: QAicDeviceType = QAicDeviceType.QAIC_DEVICE_TYPE_DEFAULT
    ) -> tuple[QStatus, QIDList]:
        """Return the ids of the devices of a type: cards first, then virtual cards."""
        if index(deviceType) != QAicDeviceType.QAIC_DEVICE_TYPE_DEFAULT.value:
            return _refuse(QStatus.QS_INVAL, f"device type {deviceType} does not exist"), QIDList()
        try:
            ids = QIDList(self._context().ids())
        except QaicError as error:
            return _refuse(QStatus.QS_ERROR, str(error)), QIDList()
        return (QStatus.QS_SUCCESS, ids) if ids else (_refuse(QStatus.QS_NODEV, "no device was found"), ids)

    def getDeviceInfo(self, devID: SupportsIndex) -> tuple[QStatus, QDevInfo]:
        """Return all facts about a device.

        A card that does not answer has the status ``QDS_ERROR`` and only the facts of the system; the reason
        is on standard error. Blocks while the firmware of a card answers, for at most a minute.
        """
        status, found = self._ask(devID)
        if found is None:
            return status, QDevInfo()
        number, card, facts = found
        if card is None:
            return status, device_info.virtual_info(facts)
        if card["firmware"] is None:
            _say(f"device {number} does not respond: {card['reason']}")
        return status, device_info.card_info(number, card)

    def getResourceInfo(self, devID: SupportsIndex) -> tuple[QStatus, QResourceInfo]:
        """Return the total and free resources of a device. Blocks while the firmware of a card answers."""
        return self._answer(devID, QResourceInfo, device_info.card_resources, device_info.virtual_resources)

    def getPerformanceInfo(self, devID: SupportsIndex) -> tuple[QStatus, QPerformanceInfo]:
        """Return the clocks of a device. Blocks while the firmware of a card answers."""
        return self._answer(
            devID, QPerformanceInfo, device_info.card_performance, lambda _: device_info.virtual_performance()
        )

    def getAicVersion(self) -> tuple[QStatus, int, int, str, str]:
        """Return (status, major, minor, patch, variant) of this package."""
        major, minor, patch = device_info.version_numbers(_core.__version__)
        return QStatus.QS_SUCCESS, major, minor, patch, _VARIANT

    def checkLibraryVersion(self) -> QStatus:
        """Return ``QS_SUCCESS`` if the compiled library belongs to the installed package."""
        from importlib import metadata

        library = device_info.version_numbers(_core.__version__)
        try:
            package = device_info.version_numbers(metadata.version(_DISTRIBUTION))
        except metadata.PackageNotFoundError:
            # A source tree has no installed package to compare with.
            return QStatus.QS_SUCCESS
        if library[0] == package[0] and library[1] <= package[1]:
            return QStatus.QS_SUCCESS
        return _refuse(
            QStatus.QS_ERROR,
            f"the compiled library has version {_core.__version__}, the package "
            f"{metadata.version(_DISTRIBUTION)}; install {_DISTRIBUTION} again",
        )

    def lockDevice(self, devID: SupportsIndex, lock: bool, block: bool) -> QStatus:  # noqa: FBT001
        """Take or release the advisory lock of a device, if ``QAIC_SERIALIZE_DEVICE=1`` is set.

        Parameters
        ----------
        devID
            Id of the device.
        lock
            True to take the lock, false to release it.
        block
            True to wait until the lock is free; otherwise ``QS_BUSY`` is returned immediately.
        """
        if os.environ.get("QAIC_SERIALIZE_DEVICE") != "1":
            return QStatus.QS_UNSUPPORTED
        number = index(devID)
        status = self._find(number)
        if status is not QStatus.QS_SUCCESS:
            return status
        from qaic.rt import device_lock

        if not lock:
            if device_lock.release(number):
                return QStatus.QS_SUCCESS
            return _refuse(QStatus.QS_INVAL, f"device {number} is not locked by this process")
        try:
            return QStatus.QS_SUCCESS if device_lock.acquire(number, block=block) else QStatus.QS_BUSY
        except (OSError, QaicError) as error:
            return _refuse(QStatus.QS_ERROR, f"the lock of device {number} cannot be taken: {error}")

    def _context(self) -> _core.Context:
        # A forked process needs its own context.
        if self._devices is None or self._process != os.getpid():
            self._devices, self._process = _core.Context(), os.getpid()
        return self._devices

    def _answer(
        self,
        dev_id: SupportsIndex,
        nothing: Callable[[], _T],
        of_card: Callable[[Mapping[str, Any]], _T],
        of_virtual: Callable[[Mapping[str, Any]], _T],
    ) -> tuple[QStatus, _T]:
        status, found = self._ask(dev_id)
        if found is None:
            return status, nothing()
        number, card, facts = found
        if card is not None and card["firmware"] is not None:
            return status, of_card(card["firmware"])
        if card is None and facts["status"] == "ready":
            return status, of_virtual(facts)
        reason = (card or facts)["reason"]
        return _refuse(QStatus.QS_DEV_ERROR, f"device {number} does not respond: {reason}"), nothing()

    def _ask(
        self, dev_id: SupportsIndex
    ) -> tuple[QStatus, tuple[int, Mapping[str, Any] | None, Mapping[str, Any]] | None]:
        """Return the number of a device, and the facts of the card or of the runtime."""
        number = index(dev_id)
        status = self._find(number)
        if status is not QStatus.QS_SUCCESS:
            return status, None
        context = self._context()
        card = context.card(number)
        return status, (number, card, context.resources(number) if card is None else {})

    def _find(self, number: int) -> QStatus:
        """Return ``QS_SUCCESS`` if a device exists."""
        try:
            known = self._context().ids()
        except QaicError as error:
            return _refuse(QStatus.QS_ERROR, str(error))
        if number in known:
            return QStatus.QS_SUCCESS
        return _refuse(QStatus.QS_NODEV, f"device {number} does not exist; existing ids: {sorted(known)}")


def _refuse(status: QStatus, text: str) -> QStatus:
    """Log the reason and return the status."""
    _say(text)
    return status


def _say(text: str) -> None:
    """Write a line to standard error in the form of a log line, because there is no context."""
    now = time.time()
    clock = time.strftime("%H:%M:%S", time.gmtime(now))
    sys.stderr.write(f"[{clock}.{int(now * 1000) % 1000:03}][ERROR][Util]{escape_unprintable(text)}\n")
