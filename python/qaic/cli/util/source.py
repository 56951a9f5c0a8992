"""The source of the facts of ``qaic-util``: reports of this process's devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qaic import _core, rt
from qaic.cli.util.device_info import Device, describe
from qaic.errors import DeviceError
from qaic.rt import device_info

if TYPE_CHECKING:
    from collections.abc import Sequence


class DeviceSource:
    """The devices of this process.

    Raises
    ------
    QaicError
        Devices cannot be listed at all.
    """

    def __init__(self) -> None:
        self._context = _core.Context()

    def query(self, wanted: Sequence[int] | None) -> tuple[list[Device], list[int]]:
        """Describe the devices asked for, or all. Blocking: cards are asked one after the other.

        Parameters
        ----------
        wanted
            Device ids, or ``None`` for all.

        Raises
        ------
        DeviceError
            There are none.

        Returns
        -------
        tuple
            The devices in the order of their ids, and the ids no device has.
        """
        ids = self._context.ids()
        if not ids:
            raise DeviceError(
                "there is no device",
                code="device.list",
                hints=("cards are looked for on the PCI bus; unset QAIC_DEVICE to have virtual ones",),
            )
        unknown = sorted({number for number in wanted or () if number not in ids})
        chosen = sorted(set(ids) if wanted is None else set(ids) & set(wanted))
        return [self._describe(number) for number in chosen], unknown

    def is_card(self, number: int) -> bool:
        """Return whether a device is a card, and not a virtual one."""
        return self._context.kind(number) == "kmd"

    def reset(self, number: int) -> None:
        """Reset a card with everything that is on it, also of other processes.

        Raises
        ------
        DeviceError
            It cannot be reset; states why.
        """
        self._context.reset(number)

    def _describe(self, number: int) -> Device:
        card = self._context.card(number)
        if card is not None:
            return describe(device_info.card_info(number, card), card=card, reason=card["reason"])
        facts = self._context.resources(number)
        return describe(device_info.virtual_info(facts), reason=facts["reason"])


def runtime_version() -> tuple[str, str]:
    """Version and variant of the runtime."""
    status, major, minor, patch, variant = rt.Util().getAicVersion()
    if status != rt.QStatus.QS_SUCCESS:
        return "", ""
    return f"{major}.{minor}.{patch}", variant
