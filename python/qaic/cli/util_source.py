"""Where ``qaic-util`` gets its facts: ``qaicrt.Util``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import qaicrt
from qaic import _core
from qaic.cli.util_facts import Device, broken, describe
from qaic.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Sequence

_VIRTUAL_KINDS = {"cpu", "noop"}


def query(wanted: Sequence[int] | None) -> tuple[list[Device], list[int]]:
    """Describe the devices asked for, or all. Blocking.

    Parameters
    ----------
    wanted
        Device ids, or ``None`` for all.

    Returns
    -------
    tuple
        The devices in the order of their ids, and the ids no device has.

    Raises
    ------
    DeviceError
        Devices cannot be listed at all.
    """
    util = qaicrt.Util()
    status, ids = util.getDeviceIds()
    if status != qaicrt.QStatus.QS_SUCCESS:
        raise DeviceError(f"the devices cannot be listed: {status.name}", code="device.list")
    virtual = {entry["id"] for entry in _core.Context().devices() if entry["kind"] in _VIRTUAL_KINDS}
    unknown = sorted({number for number in wanted or () if number not in ids})
    chosen = sorted(set(ids) if wanted is None else set(ids) & set(wanted))
    return [_describe(util, number, virtual=number in virtual) for number in chosen], unknown


def runtime_version() -> tuple[str, str]:
    """Version and variant of the runtime."""
    status, major, minor, patch, variant = qaicrt.Util().getAicVersion()
    if status != qaicrt.QStatus.QS_SUCCESS:
        return "", ""
    return f"{major}.{minor}.{patch}", variant


def _describe(util: qaicrt.Util, number: int, *, virtual: bool) -> Device:
    status, info = util.getDeviceInfo(number)
    if status != qaicrt.QStatus.QS_SUCCESS or info is None:
        return broken(number)
    return describe(info, virtual=virtual)
