"""Turns the facts that a device reports into the structures of the interface."""

from collections.abc import Mapping
from typing import Any, Final

from qaic import _core
from qaic.rt.devices import (
    QDevInfo,
    QHostApiInfoDevData,
    QHostApiInfoNspData,
    QHostApiInfoNspVersion,
    QPcieExtInfo,
    QPciInfo,
    QPerformanceInfo,
    QResourceInfo,
)
from qaic.rt.enums import QDevStatus

# Values of a real card, for properties that a virtual card does not have.
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
#: feature bit of FuSa firmware: messages of the kernel have checksums
_FUSA: Final = 1


def version_numbers(text: str) -> tuple[int, int, str]:
    """Return the major and minor number of a version, and the rest of its text."""
    major, minor, patch = (*text.split(".", 2), "0", "0")[:3]
    return int(major), int(minor), patch


def card_info(number: int, card: Mapping[str, Any]) -> QDevInfo:
    """Return all facts about a card, or only those of the system if the card does not answer."""
    firmware = card["firmware"]
    info = QDevInfo(
        devStatus=QDevStatus.QDS_ERROR if firmware is None else QDevStatus.QDS_READY,
        qid=number,
        name="" if card["node"] is None else str(card["node"]),
        pciInfo=_pci(card),
    )
    if firmware is None:
        return info
    info.devData = _firmware(firmware)
    major, minor, patch, build = firmware["nsp_version"]
    info.nspData = QHostApiInfoNspData(
        QHostApiInfoNspVersion(
            major,
            minor,
            patch,
            build,
            firmware["nsp_qc_version"],
            firmware["nsp_oem_version"],
            firmware["nsp_variant"],
        )
    )
    return info


def card_resources(firmware: Mapping[str, Any]) -> QResourceInfo:
    """Return the total and free resources of a card."""
    return _resources(firmware["resources"], sku_type=firmware["sku_type"])


def card_performance(firmware: Mapping[str, Any]) -> QPerformanceInfo:
    """Return clocks and rates of a card."""
    figures = firmware["performance"]
    return QPerformanceInfo(
        nspFrequencyHz=figures["nsp_hz"],
        ddrFrequencyHz=figures["ddr_hz"],
        compFrequencyHz=figures["compnoc_hz"],
        memFrequencyHz=figures["memnoc_hz"],
        sysFrequencyHz=figures["sysnoc_hz"],
        peakCompute=float(figures["peak_compute_ops"]),
        dramBw=float(figures["dram_kb_per_s"]),
    )


def virtual_info(facts: Mapping[str, Any]) -> QDevInfo:
    """Return all facts about a virtual card: the figures of a card, and names that identify it as virtual."""
    number, kind = facts["id"], facts["kind"]
    ready = facts["status"] == "ready"
    major, minor, patch = version_numbers(_core.__version__)
    patch_number = int(patch) if patch.isdecimal() else 0
    image = f"OPENQAIC.{kind.upper()}.{_core.__version__}"
    # Clients select the target of a compilation by this text: AIC100 or AIC200.
    variant = f"{facts['family'].replace('ai', 'aic').upper()}.{kind.upper()}"
    return QDevInfo(
        devStatus=QDevStatus.QDS_READY if ready else QDevStatus.QDS_ERROR,
        qid=number,
        name=facts["name"],
        # A virtual card has no bus, address or link; the names identify it as virtual.
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
            fwImageVariantString=variant,
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
            resourceInfo=virtual_resources(facts),
            performanceInfo=virtual_performance(),
        ),
        nspData=QHostApiInfoNspData(
            QHostApiInfoNspVersion(
                major, minor, patch_number, _BUILD_NOT_SHOWN, image, f"{kind} device", variant
            )
        ),
    )


def virtual_resources(facts: Mapping[str, Any]) -> QResourceInfo:
    """Return the total and free resources of a virtual card."""
    return _resources(facts, sku_type=_SKU_PCIE)


def virtual_performance() -> QPerformanceInfo:
    """Return the clocks of a real card."""
    return QPerformanceInfo(**_CLOCKS_HZ)


def _pci(card: Mapping[str, Any]) -> QPciInfo:
    domain, bus, device, function = card["address"]
    pci = card["pci"]
    if pci is None:
        # A device derived from a card has no place on the bus.
        return QPciInfo()
    return QPciInfo(
        domain=domain,
        bus=bus,
        device=device,
        function=function,
        classname=pci["class_name"],
        vendorname=pci["vendor_name"],
        devicename=pci["device_name"],
        pcieExtInfo=QPcieExtInfo(
            maxLinkSpeed=pci["max_link_speed"],
            maxLinkWidth=pci["max_link_width"],
            currLinkSpeed=pci["current_link_speed"],
            currLinkWidth=pci["current_link_width"],
            bar2Addr=pci["bar2_address"],
            bar4Addr=pci["bar4_address"],
        ),
    )


def _firmware(firmware: Mapping[str, Any]) -> QHostApiInfoDevData:
    major, minor, patch, build = firmware["version"]
    is_fusa = bool(firmware["features"] & _FUSA)
    return QHostApiInfoDevData(
        formatVersion=firmware["format_version"],
        fwVersionMajor=major,
        fwVersionMinor=minor,
        fwVersionPatch=patch,
        fwVersionBuild=build,
        fwFeaturesBitmap=int(is_fusa),
        fwQCImageVersionString=firmware["qc_version"],
        fwOEMImageVersionString=firmware["oem_version"],
        fwImageVariantString=firmware["variant"],
        fwImageFeaturesString="FUSA" if is_fusa else "",
        sblImageString=firmware["sbl_image"],
        pvsImageVersion=firmware["pvs_image_version"],
        hwVersion=firmware["hw_version"],
        serial=firmware["serial"],
        fragmentationStatus=firmware["resources"]["fragmentation"],
        metaVerMaj=firmware["metadata_version"][0],
        metaVerMin=firmware["metadata_version"][1],
        nncCommandProtocolMajorVersion=firmware["command_version"][0],
        nncCommandProtocolMinorVersion=firmware["command_version"][1],
        nspPgMask=firmware["nsp_defective_mask"],
        numLoadedConsts=firmware["constants_loaded"],
        numConstsInUse=firmware["constants_in_use"],
        numLoadedNWs=firmware["networks_loaded"],
        numActiveNWs=firmware["networks_active"],
        resourceInfo=card_resources(firmware),
        performanceInfo=card_performance(firmware),
    )


def _resources(facts: Mapping[str, Any], *, sku_type: int) -> QResourceInfo:
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
        # Virtual cards have no DMA engine with physical channels.
        pcTotal=facts.get("pc_total", 0),
        pcReserved=facts.get("pc_reserved", 0),
        skuType=sku_type,
    )
