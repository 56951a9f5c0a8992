"""``qaic.devices``: the devices of this process as values."""

from dataclasses import dataclass, fields
from typing import Final

from qaic import _core
from qaic.errors import DeviceNotFoundError
from qaic.support.text import counted


@dataclass(frozen=True, slots=True)
class Device:
    """State of one device when :func:`qaic.devices` was called."""

    id: int
    """Id, for the option ``dev_id``."""
    kind: str
    """``"cpu"``, ``"kmd"`` (a card) or ``"noop"``."""
    name: str
    family: str
    """Hardware that the device is or represents, as named by ``aic_hw_version``."""
    status: str
    """``"ready"`` or ``"error"``."""
    reason: str | None
    """Reason of the status ``"error"``."""
    dram_total_mb: int
    dram_free_mb: int
    nsp_total: int
    """Cores."""
    nsp_free: int
    vc_total: int
    """Virtual channels."""
    vc_free: int
    mcid_total: int
    """Multicast ids."""
    mcid_free: int
    semaphore_total: int
    semaphore_free: int
    programs_loaded: int
    programs_active: int
    constants_loaded: int
    constants_in_use: int

    @property
    def is_ready(self) -> bool:
        """True if programs can be loaded."""
        return self.status == "ready"

    def __str__(self) -> str:
        state = "ready" if self.is_ready else f"{self.status}: {self.reason}"
        return (
            f"device {self.id}: {self.name} ({self.kind}), {state}, {self.nsp_free} of {self.nsp_total} "
            f"cores and {self.dram_free_mb} of {self.dram_total_mb} MB free, "
            f"{counted(self.programs_active, 'active program')}"
        )

    def _repr_html_(self) -> str:
        return DeviceList((self,))._repr_html_()


class DeviceList(tuple[Device, ...]):
    """Devices in the order of their ids."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no devices"

    def _repr_html_(self) -> str:
        from qaic.report import Table, columns_of

        rows = [
            (
                one.id,
                one.name,
                one.kind,
                one.status if one.reason is None else f"{one.status}: {one.reason}",
                f"{one.nsp_free} of {one.nsp_total}",
                f"{one.dram_free_mb} of {one.dram_total_mb}",
                one.programs_active,
            )
            for one in self
        ]
        columns = columns_of("id:int | name | kind | status | cores free | MB free | active programs:int")
        return Table("devices", "Devices", columns, rows, None if rows else "no devices")._repr_html_()


#: explanation and fixes for an empty list of devices
NO_DEVICES: Final = (
    "no card responds, or QAIC_VISIBLE_DEVICES hides all devices; QAIC_KMD=emu emulates a card, and "
    "QAIC_DEVICE=cpu runs programs on the host"
)


def device_ids(context: _core.Context) -> list[int]:
    """Return the ids of all devices. Raises DeviceNotFoundError if there are none."""
    ids = context.ids()
    if not ids:
        raise DeviceNotFoundError("no device was found", code="device.not_found", hints=(NO_DEVICES,))
    return ids


def devices() -> DeviceList:
    """Return the properties and free resources of all devices of this process.

    Blocks while cards reply, at most one minute for each; releases the GIL. ``QAIC_DEVICE`` and the other
    variables in ``docs/reference/environment.md`` select the devices.

    Returns
    -------
    tuple of Device
        Devices by id. The tuple prints one line for each device, and notebooks show it as a table.

    Raises
    ------
    qaic.errors.DeviceNotFoundError
        ``QAIC_DEVICE`` is not a kind of device.

    Examples
    --------
    >>> import qaic
    >>> [device.id for device in qaic.devices() if device.is_ready][:1]
    [0]
    """
    names = [field.name for field in fields(Device)]
    return DeviceList(Device(**{name: found[name] for name in names}) for found in _core.Context().devices())
