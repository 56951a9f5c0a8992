"""Facts that a device reports."""

from dataclasses import dataclass, field

from qaic.rt.enums import QDevStatus, of_qaicrt


@dataclass(slots=True)
class QPcieExtInfo:
    """PCIe link; all zero if there is none."""

    maxLinkSpeed: int = 0
    maxLinkWidth: int = 0
    currLinkSpeed: int = 0
    currLinkWidth: int = 0
    bar2Addr: int = 0
    bar4Addr: int = 0


@dataclass(slots=True)
class QPciInfo:
    """Place on the bus."""

    domain: int = 0
    bus: int = 0
    device: int = 0
    function: int = 0
    classname: str = ""
    vendorname: str = ""
    devicename: str = ""
    pcieExtInfo: QPcieExtInfo = field(default_factory=QPcieExtInfo)


@of_qaicrt
@dataclass(slots=True)
class QResourceInfo:
    """Total and free resources."""

    QResourceReservationID: int = -1
    """-1 is the whole device."""
    dramTotal: int = 0
    """MB."""
    dramFree: int = 0
    """MB."""
    vcTotal: int = 0
    vcFree: int = 0
    nspTotal: int = 0
    nspFree: int = 0
    mcidTotal: int = 0
    mcidFree: int = 0
    semTotal: int = 0
    semFree: int = 0
    pcTotal: int = 0
    pcReserved: int = 0
    skuType: int = 0


@of_qaicrt
@dataclass(slots=True)
class QPerformanceInfo:
    """Clocks and rates."""

    nspFrequencyHz: int = 0
    ddrFrequencyHz: int = 0
    compFrequencyHz: int = 0
    memFrequencyHz: int = 0
    sysFrequencyHz: int = 0
    peakCompute: float = 0.0
    """Operations per second."""
    dramBw: float = 0.0
    """KB/s, average of the last 100 ms."""


@dataclass(slots=True)
class QHostApiInfoDevData:
    """Firmware, loads and resources."""

    formatVersion: int = 0
    fwVersionMajor: int = 0
    fwVersionMinor: int = 0
    fwVersionPatch: int = 0
    fwVersionBuild: int = 0
    fwFeaturesBitmap: int = 0
    fwQCImageVersionString: str = ""
    fwOEMImageVersionString: str = ""
    fwImageVariantString: str = ""
    fwImageFeaturesString: str = ""
    sblImageString: str = ""
    pvsImageVersion: int = 0
    hwVersion: int = 0
    serial: str = ""
    fragmentationStatus: int = 0
    metaVerMaj: int = 0
    metaVerMin: int = 0
    nncCommandProtocolMajorVersion: int = 0
    nncCommandProtocolMinorVersion: int = 0
    nspPgMask: int = 0
    """A bit per defective core."""
    numLoadedConsts: int = 0
    numConstsInUse: int = 0
    numLoadedNWs: int = 0
    numActiveNWs: int = 0
    resourceInfo: QResourceInfo = field(default_factory=QResourceInfo)
    performanceInfo: QPerformanceInfo = field(default_factory=QPerformanceInfo)


@dataclass(slots=True)
class QHostApiInfoNspVersion:
    """Firmware of the cores."""

    major: int = 0
    minor: int = 0
    patch: int = 0
    build: int = 0
    qc: str = ""
    oem: str = ""
    variant: str = ""


@dataclass(slots=True)
class QHostApiInfoNspData:
    """The cores."""

    nspFwVersion: QHostApiInfoNspVersion = field(default_factory=QHostApiInfoNspVersion)


@of_qaicrt
@dataclass(slots=True)
class QDevInfo:
    """All facts about one device."""

    devStatus: QDevStatus = QDevStatus.QDS_INITIALIZING
    qid: int = 0
    name: str = ""
    """Device node."""
    pciInfo: QPciInfo = field(default_factory=QPciInfo)
    devData: QHostApiInfoDevData = field(default_factory=QHostApiInfoDevData)
    nspData: QHostApiInfoNspData = field(default_factory=QHostApiInfoNspData)
