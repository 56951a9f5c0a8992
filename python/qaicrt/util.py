"""``Util``: what a client asks about devices and about this package (python-api §B.13)."""

from __future__ import annotations

import os
import sys
import time
from operator import index
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

from qaic import _core
from qaic.errors import QaicError
from qaicrt.devices import (
    QDevInfo,
    QHostApiInfoDevData,
    QHostApiInfoNspData,
    QHostApiInfoNspVersion,
    QPciInfo,
    QPerformanceInfo,
    QResourceInfo,
)
from qaicrt.enums import QAicDeviceType, QDevStatus, QStatus
from qaicrt.sequences import QIDList

if TYPE_CHECKING:
    from collections.abc import Mapping

_DISTRIBUTION: Final = "openqaic"
_VARIANT: Final = "OPENQAIC"

# What a real card reports where a virtual one has nothing of its own (python-api §B.13, device-kmd §2.6).
_CLOCKS_HZ: Final = {
    "nspFrequencyHz": 825_000_000,
    "ddrFrequencyHz": 2_133_000_000,
    "compFrequencyHz": 1_450_000_000,
    "memFrequencyHz": 1_000_000_000,
    "sysFrequencyHz": 667_000_000,
}
_HW_VERSION: Final = 0x0002_0000
_METADATA_VERSION: Final = (1, 0)
_NNC_VERSION: Final = (17, 0)
_SKU_PCIE: Final = 2
_BUILD_NOT_SHOWN: Final = 255


class Util:
    """Queries devices. Answers with a status and the value; the value of a refusal is empty."""

    __slots__ = ("__weakref__", "_devices", "_process")

    def __init__(self) -> None:
        self._devices: _core.Context | None = None
        self._process = 0

    def getDeviceIds(
        self, deviceType: QAicDeviceType = QAicDeviceType.QAIC_DEVICE_TYPE_DEFAULT
    ) -> tuple[QStatus, QIDList]:
        """Ids of the devices of a type."""
        if index(deviceType) != QAicDeviceType.QAIC_DEVICE_TYPE_DEFAULT.value:
            return _refuse(QStatus.QS_INVAL, f"device type {deviceType} does not exist"), QIDList()
        try:
            ids = QIDList(entry["id"] for entry in self._context().devices())
        except QaicError as error:
            return _refuse(QStatus.QS_ERROR, str(error)), QIDList()
        return (QStatus.QS_SUCCESS if ids else QStatus.QS_NODEV), ids

    def getDeviceInfo(self, devID: SupportsIndex) -> tuple[QStatus, QDevInfo]:
        """Everything about a device."""
        status, facts = self._query(devID)
        return status, QDevInfo() if facts is None else _device_info(facts)

    def getResourceInfo(self, devID: SupportsIndex) -> tuple[QStatus, QResourceInfo]:
        """Tell what a device has, and what of it is free."""
        status, facts = self._query(devID, ready=True)
        return status, QResourceInfo() if facts is None else _resources(facts)

    def getPerformanceInfo(self, devID: SupportsIndex) -> tuple[QStatus, QPerformanceInfo]:
        """Clocks of a device."""
        status, facts = self._query(devID, ready=True)
        return status, QPerformanceInfo() if facts is None else QPerformanceInfo(**_CLOCKS_HZ)

    def getAicVersion(self) -> tuple[QStatus, int, int, str, str]:
        """(status, major, minor, patch, variant) of this package."""
        major, minor, patch = _version(_core.__version__)
        return QStatus.QS_SUCCESS, major, minor, patch, _VARIANT

    def checkLibraryVersion(self) -> QStatus:
        """Whether the compiled library belongs to the installed package."""
        from importlib import metadata

        library = _version(_core.__version__)
        try:
            package = _version(metadata.version(_DISTRIBUTION))
        except metadata.PackageNotFoundError:
            # Run from a source tree: there is nothing it could differ from.
            return QStatus.QS_SUCCESS
        if library[0] == package[0] and library[1] <= package[1]:
            return QStatus.QS_SUCCESS
        return _refuse(
            QStatus.QS_ERROR,
            f"the compiled library has version {_core.__version__}, the package "
            f"{metadata.version(_DISTRIBUTION)}; install {_DISTRIBUTION} again",
        )

    def lockDevice(self, devID: SupportsIndex, lock: bool, block: bool) -> QStatus:  # noqa: FBT001
        """Take or give back the advisory lock of a device, when ``QAIC_SERIALIZE_DEVICE=1`` is set.

        Parameters
        ----------
        devID
            Which device.
        lock
            Take it; ``False`` gives it back.
        block
            Wait for whoever has it; ``False`` answers ``QS_BUSY`` at once.
        """
        if os.environ.get("QAIC_SERIALIZE_DEVICE") != "1":
            return QStatus.QS_UNSUPPORTED
        status, _ = self._query(devID)
        if status is not QStatus.QS_SUCCESS:
            return status
        from qaicrt import device_lock

        number = index(devID)
        if not lock:
            if device_lock.release(number):
                return QStatus.QS_SUCCESS
            return _refuse(QStatus.QS_INVAL, f"device {number} is not locked by this process")
        try:
            return QStatus.QS_SUCCESS if device_lock.acquire(number, block=block) else QStatus.QS_BUSY
        except (OSError, QaicError) as error:
            return _refuse(QStatus.QS_ERROR, f"the lock of device {number} cannot be taken: {error}")

    def _context(self) -> _core.Context:
        # A forked process has devices of its own.
        if self._devices is None or self._process != os.getpid():
            self._devices, self._process = _core.Context(), os.getpid()
        return self._devices

    def _query(
        self, dev_id: SupportsIndex, *, ready: bool = False
    ) -> tuple[QStatus, Mapping[str, Any] | None]:
        number = index(dev_id)
        try:
            found = {entry["id"]: entry for entry in self._context().devices()}
        except QaicError as error:
            return _refuse(QStatus.QS_ERROR, str(error)), None
        facts = found.get(number)
        if facts is None:
            text = f"device {number} does not exist; existing ids: {sorted(found)}"
            return _refuse(QStatus.QS_NODEV, text), None
        if ready and facts["status"] != "ready":
            return _refuse(QStatus.QS_DEV_ERROR, f"device {number} does not answer"), None
        return QStatus.QS_SUCCESS, facts


def _refuse(status: QStatus, text: str) -> QStatus:
    """Say why on standard error, in the form of a context's log: there is no context here."""
    now = time.time()
    clock = time.strftime("%H:%M:%S", time.gmtime(now))
    sys.stderr.write(f"[{clock}.{int(now * 1000) % 1000:03}][ERROR][Util]{text}\n")
    return status


def _version(text: str) -> tuple[int, int, str]:
    major, minor, patch = (*text.split(".", 2), "0", "0")[:3]
    return int(major), int(minor), patch


def _device_info(facts: Mapping[str, Any]) -> QDevInfo:
    number, kind = facts["id"], facts["kind"]
    ready = facts["status"] == "ready"
    major, minor, patch = _version(_core.__version__)
    patch_number = int(patch) if patch.isdecimal() else 0
    image = f"OPENQAIC.{kind.upper()}.{_core.__version__}"
    return QDevInfo(
        devStatus=QDevStatus.QDS_READY if ready else QDevStatus.QDS_ERROR,
        qid=number,
        name=facts["name"],
        # No bus, so no address and no link; the names say what it is.
        pciInfo=QPciInfo(
            classname="Virtual accelerator",
            vendorname="openqaic",
            devicename=f"Cloud AI 100 on the host ({kind} device)",
        ),
        devData=QHostApiInfoDevData(
            formatVersion=1,
            fwVersionMajor=major,
            fwVersionMinor=minor,
            fwVersionPatch=patch_number,
            fwVersionBuild=_BUILD_NOT_SHOWN,
            fwQCImageVersionString=image,
            fwOEMImageVersionString=f"{kind} device",
            # Compilers choose their target by this text, so it names no other generation.
            fwImageVariantString=f"AIC100.{kind.upper()}",
            sblImageString=f"{kind} device",
            hwVersion=_HW_VERSION,
            serial=f"{kind.upper()}-{number:04}",
            metaVerMaj=_METADATA_VERSION[0],
            metaVerMin=_METADATA_VERSION[1],
            nncCommandProtocolMajorVersion=_NNC_VERSION[0],
            nncCommandProtocolMinorVersion=_NNC_VERSION[1],
            numLoadedConsts=facts["constants_loaded"],
            numConstsInUse=facts["constants_in_use"],
            numLoadedNWs=facts["programs_loaded"],
            numActiveNWs=facts["programs_active"],
            resourceInfo=_resources(facts),
            performanceInfo=QPerformanceInfo(**_CLOCKS_HZ),
        ),
        nspData=QHostApiInfoNspData(
            QHostApiInfoNspVersion(
                major,
                minor,
                patch_number,
                _BUILD_NOT_SHOWN,
                image,
                f"{kind} device",
                f"AIC100.{kind.upper()}",
            )
        ),
    )


def _resources(facts: Mapping[str, Any]) -> QResourceInfo:
    return QResourceInfo(
        dramTotal=facts["dram_total_mb"],
        dramFree=facts["dram_free_mb"],
        vcTotal=facts["vc_total"],
        vcFree=facts["vc_free"],
        nspTotal=facts["nsp_total"],
        nspFree=facts["nsp_free"],
        mcidTotal=facts["mcid_total"],
        mcidFree=facts["mcid_free"],
        semTotal=facts["semaphore_total"],
        semFree=facts["semaphore_free"],
        skuType=_SKU_PCIE,
    )
