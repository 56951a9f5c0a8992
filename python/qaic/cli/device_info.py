"""Facts about a device that ``qaic-util`` shows: one list for text, JSON and filter."""

import contextlib
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

from qaic import __version__, _core, rt
from qaic.cli.console import SUCCESS
from qaic.device_list import device_ids
from qaic.rt import device_info
from qaic.support.text import escape_unprintable

#: hardware models by number; other numbers are "Invalid", like 0
_SKUS = (
    "Invalid",
    "M.2",
    "PCIe",
    "PCIe Pro",
    "PCIe Lite",
    "PCIe Ultra",
    "Auto",
    "PCIe Ultra Plus",
    "PCIe 080",
    "PCIe Ultra 080",
)
#: PCIe generation codes
_LINK_SPEEDS = {1: "2.5", 2: "5", 3: "8", 4: "16", 5: "32", 6: "64"}
_STATUS_WORDS = ("Initializing", "Ready", "Error")
#: devices with the same serial number; clients search for it to run a program on several devices
_DEVICES_PER_BOARD = 4
#: fourth number of a firmware version that has only three
_NOT_SHOWN = 255
_FUSA = 1


class Fact(NamedTuple):
    """A property of a device."""

    label: str
    text: str
    value: object

    @property
    def key(self) -> str:
        """Name in the JSON report."""
        if self.label == "Status":
            return "dev_status"
        return re.sub(r"[^a-z0-9]+", "_", self.label.lower()).strip("_")

    @property
    def line(self) -> str:
        """The line of the query's text."""
        return f"{self.label}:{self.text}"


class Device(NamedTuple):
    """A device and all its facts, in the order of the output."""

    qid: int
    facts: list[Fact]

    @property
    def status(self) -> str:
        """Status word."""
        return self.facts[0].text

    def number(self, label: str) -> float | None:
        """Return a numeric fact; ``None`` if the device does not report it."""
        value = next((fact.value for fact in self.facts if fact.label == label), None)
        return value if isinstance(value, int | float) else None

    def text(self, label: str) -> str | None:
        """Return the text of a fact; ``None`` if the device does not report it."""
        return next((fact.text for fact in self.facts if fact.label == label), None)

    def record(self) -> dict[str, object]:
        """Object of the JSON report."""
        return {"qid": self.qid, **{fact.key: fact.value for fact in self.facts}}

    def matches(self, label: str, wanted: str) -> bool:
        """Return True if a property has a value, as text; ``QID`` counts as a property."""
        if label == "QID":
            return str(self.qid) == wanted
        return any(fact.label == label and fact.text.strip() == wanted for fact in self.facts)


def describe(
    info: rt.QDevInfo, *, card: Mapping[str, Any] | None = None, reason: str | None = None
) -> Device:
    """Return all facts of a device. Only a ready device reports facts other than its link.

    `info` contains the values of the low-level interface, and `card` further facts that a card reports;
    ``None`` for a virtual card. `reason` is the reason why the device is not ready.
    """
    facts = list(_identity(info))
    if facts[0].text == "Ready":
        facts += _firmware(info)
        facts += _resources(info)
        facts += _clocks_and_images(info)
        facts.append(_text("Board serial", _virtual_board(info.qid) if card is None else _board_serial(card)))
        if card is None:
            # Virtual cards run one program together without any setting. Clients search
            # for both words.
            facts.append(_text("Device Capabilities", "HybridBoot+ MDP+"))
    elif reason:
        facts.append(_text("Reason", reason))
    facts += _telemetry(card or {})
    return Device(int(info.qid), facts)


def labels(devices: Iterable[Device]) -> list[str]:
    """Return the properties that a filter can use."""
    found = dict.fromkeys(["QID"])
    for device in devices:
        found.update(dict.fromkeys(fact.label for fact in device.facts))
    return list(found)


def _text(label: str, value: object) -> Fact:
    # Strings come from devices, so control characters are escaped.
    return Fact(label, escape_unprintable(str(value)), str(value))


def _count(label: str, value: int, unit: str = "") -> Fact:
    return Fact(label, f"{value}{unit}", int(value))


def _real(label: str, value: float) -> Fact:
    return Fact(label, f"{value:.2f}", round(float(value), 2))


def _version(*numbers: int) -> str:
    shown = numbers[:-1] if numbers[-1] == _NOT_SHOWN else numbers
    return ".".join(map(str, shown))


def _identity(info: rt.QDevInfo) -> Iterator[Fact]:
    status = int(info.devStatus)
    yield _text("Status", _STATUS_WORDS[status] if status < len(_STATUS_WORDS) else "Error")
    pci = info.pciInfo
    yield _text("PCI Address", f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.{pci.function:x}")
    names = (pci.classname, pci.vendorname, pci.devicename)
    yield _text("PCI Info", " ".join(name for name in names if name))
    link = pci.pcieExtInfo
    if link.maxLinkSpeed:
        yield _text("Max Link Speed", _link_speed(link.maxLinkSpeed))
        yield _text("Max Link Width", f"x{link.maxLinkWidth}")
        yield _text("Current Link Speed", _link_speed(link.currLinkSpeed))
        yield _text("Current Link Width", f"x{link.currLinkWidth}")
    # The trailing space is the vendor's.
    yield Fact("Dev Link", f"{info.name} ", str(info.name))


def _link_speed(code: int) -> str:
    return f"{_LINK_SPEEDS[code]}GT/s" if code in _LINK_SPEEDS else "Unknown"


def _firmware(info: rt.QDevInfo) -> Iterator[Fact]:
    data = info.devData
    hw = data.hwVersion
    yield _text("HW Version", f"{hw >> 28 & 0xF}.{hw >> 16 & 0xFFF}.{hw >> 8 & 0xFF}.{hw & 0xFF}")
    yield _text("HW Serial", data.serial)
    yield _text(
        "FW Version",
        _version(data.fwVersionMajor, data.fwVersionMinor, data.fwVersionPatch, data.fwVersionBuild),
    )
    yield _text("FW QC_IMAGE_VERSION", data.fwQCImageVersionString)
    yield _text("FW OEM_IMAGE_VERSION", data.fwOEMImageVersionString)
    yield _text("FW IMAGE_VARIANT", data.fwImageVariantString)
    if data.fwFeaturesBitmap:
        yield _text("FW Features", "[FUSA]" if data.fwFeaturesBitmap & _FUSA else "")
    nsp = info.nspData.nspFwVersion
    yield _text("NSP Version", _version(nsp.major, nsp.minor, nsp.patch, nsp.build))
    yield _text("NSP QC_IMAGE_VERSION", nsp.qc)
    yield _text("NSP OEM_IMAGE_VERSION", nsp.oem)
    yield _text("NSP IMAGE_VARIANT", nsp.variant)


def _resources(info: rt.QDevInfo) -> Iterator[Fact]:
    data, resources = info.devData, info.devData.resourceInfo
    yield _count("Dram Total", resources.dramTotal, " MB")
    yield _count("Dram Free", resources.dramFree, " MB")
    yield Fact("Dram Fragmentation", f"{data.fragmentationStatus:.2f}%", float(data.fragmentationStatus))
    yield _count("Vc Total", resources.vcTotal)
    yield _count("Vc Free", resources.vcFree)
    yield _count("Pc Total", resources.pcTotal)
    yield _count("Pc Reserved", resources.pcReserved)
    yield _count("Nsp Total", resources.nspTotal)
    yield _count("Nsp Free", resources.nspFree)
    bandwidth = float(data.performanceInfo.dramBw)
    yield Fact("Last 100ms Average Dram Bw", f"{bandwidth:g} KBps", bandwidth)
    yield _count("MCID Total", resources.mcidTotal)
    yield _count("MCID Free", resources.mcidFree)
    yield _count("Semaphore Total", resources.semTotal)
    yield _count("Semaphore Free", resources.semFree)
    yield _count("Constants Loaded", data.numLoadedConsts)
    yield _count("Constants In-Use", data.numConstsInUse)
    yield _count("Networks Loaded", data.numLoadedNWs)
    yield _count("Networks Active", data.numActiveNWs)


def _clocks_and_images(info: rt.QDevInfo) -> Iterator[Fact]:
    data, clocks = info.devData, info.devData.performanceInfo
    yield _real("NSP Frequency(Mhz)", clocks.nspFrequencyHz / 1e6)
    yield _real("DDR Frequency(Mhz)", clocks.ddrFrequencyHz / 1e6)
    yield _real("COMPNOC Frequency(Mhz)", clocks.compFrequencyHz / 1e6)
    yield _real("MEMNOC Frequency(Mhz)", clocks.memFrequencyHz / 1e6)
    yield _real("SYSNOC Frequency(Mhz)", clocks.sysFrequencyHz / 1e6)
    yield _text("Metadata Version", f"{data.metaVerMaj}.{data.metaVerMin}")
    yield _text(
        "NNC Command Protocol Version",
        f"{data.nncCommandProtocolMajorVersion}.{data.nncCommandProtocolMinorVersion}",
    )
    yield _text("SBL Image", data.sblImageString)
    yield _count("PVS Image Version", data.pvsImageVersion)
    mask = f"0x{data.nspPgMask & 0xFFFFFFFF:X}"
    # The space before the number is the vendor's.
    yield Fact("NSP Defective PG Mask", f" {mask}", mask)
    sku = data.resourceInfo.skuType
    yield _text("Sku Type", _SKUS[sku] if 0 <= sku < len(_SKUS) else _SKUS[0])


def _virtual_board(qid: int) -> str:
    """Return the serial number of a board that several virtual cards share."""
    return f"CPU-BOARD-{qid // _DEVICES_PER_BOARD:04}"


def _board_serial(card: Mapping[str, Any]) -> str:
    firmware = card["firmware"]
    return "" if firmware is None else str(firmware["board_serial"])


def _telemetry(card: Mapping[str, Any]) -> Iterator[Fact]:
    # Sensors of a board are read from its PCI device; an unreadable value is shown as 0.00.
    yield _real("SoC temperature(degree C)", (card.get("soc_temperature_millicelsius") or 0) / 1e3)
    yield _real("Board power(Watts)", (card.get("board_power_microwatts") or 0) / 1e6)
    yield _real("TDP Cap(Watts)", (card.get("tdp_cap_microwatts") or 0) / 1e6)


class DeviceSource:
    """Return the devices of this process. Raises QaicError if devices cannot be listed."""

    def __init__(self) -> None:
        self._context = _core.Context()

    def query(self, wanted: Sequence[int] | None) -> tuple[list[Device], list[int]]:
        """Describe the requested devices. Blocking: cards are queried one after the other.

        `wanted` are device ids, or ``None`` for all. Returns the devices in the order of their ids, and the
        ids that no device has. Raises DeviceNotFoundError if there are none.
        """
        ids = device_ids(self._context)
        unknown = sorted({number for number in wanted or () if number not in ids})
        chosen = sorted(set(ids) if wanted is None else set(ids) & set(wanted))
        return [self._describe(number) for number in chosen], unknown

    def is_card(self, number: int) -> bool:
        """Return True if a device is a real card, and not a virtual card."""
        return self._context.kind(number) == "kmd"

    def reset(self, number: int) -> None:
        """Reset a card, including programs of other processes.

        Raises DeviceError with the reason if the device cannot be reset.
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
    return ("", "") if status != rt.QStatus.QS_SUCCESS else (f"{major}.{minor}.{patch}", variant)


_BOX_WIDTH = 20
_PER_ROW = (8, 4, 2, 1)
_ENTER = "\x1b[?1049h\x1b[?25l"
_LEAVE = "\x1b[?25h\x1b[?1049l"
_TOP, _END_OF_LINE, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_NEXT = {b"\x1b[C", b"\x1b[B", b"\t", b"n"}
_PREVIOUS = {b"\x1b[D", b"\x1b[A", b"\x1b[Z", b"p"}
_LONGEST_KEY_BYTES = 16
_KEYS = "(arrows: device, q: leave)"


class DeviceTable:
    """Shows devices repeatedly.

    `query` returns the current state of the devices; `period_seconds` is the time between two queries.
    """

    def __init__(self, query: Callable[[], list[Device]], *, period_seconds: float) -> None:
        self._query = query
        self._period_seconds = period_seconds
        #: index of the one device shown; None for all
        self._selected: int | None = None

    def run(self) -> int:
        """Show the table until Ctrl-C, ``q`` or the end of the terminal; without a terminal, show it once."""
        if not sys.stdout.isatty():
            sys.stdout.write("\n".join(self._lines(self._query(), 4 * _BOX_WIDTH)) + "\n")
            return SUCCESS
        with _screen(), _keyboard() as keys, _resizes() as resizes:
            self._loop(keys, resizes)
        return SUCCESS

    def _loop(self, keys: int | None, resizes: int) -> None:
        devices: list[Device] = []
        next_query = time.monotonic()
        watched = [resizes] if keys is None else [resizes, keys]
        while True:
            if time.monotonic() >= next_query:
                devices = self._query()
                next_query = time.monotonic() + self._period_seconds
            self._draw(devices)
            ready, _, _ = select.select(watched, [], [], max(0.0, next_query - time.monotonic()))
            if resizes in ready:
                os.read(resizes, 64)
            if keys in ready:
                key = os.read(keys, _LONGEST_KEY_BYTES)
                if key in {b"q", b""}:
                    return
                self._press(key, len(devices))

    def _press(self, key: bytes, count: int) -> None:
        # Positions: all, the first device, ..., the last one.
        place = 0 if self._selected is None else self._selected + 1
        if key in _NEXT:
            place = (place + 1) % (count + 1)
        elif key in _PREVIOUS:
            place = (place - 1) % (count + 1)
        self._selected = None if place == 0 else place - 1

    def _draw(self, devices: Sequence[Device]) -> None:
        size = os.get_terminal_size(sys.stdout.fileno())
        lines = [line[: size.columns] for line in self._lines(devices, size.columns)]
        if len(lines) > size.lines:
            hidden = f"... {len(lines) - size.lines + 1} more; {_KEYS}"
            lines[size.lines - 1 :] = [hidden[: size.columns]]
        sys.stdout.write(_TOP + "\n".join(line + _END_OF_LINE for line in lines) + _BELOW)
        sys.stdout.flush()

    def _lines(self, devices: Sequence[Device], columns: int) -> Iterator[str]:
        selected = self._selected if self._selected is not None and self._selected < len(devices) else None
        shown = list(devices) if selected is None else [devices[selected]]
        which = "all devices" if selected is None else f"DeviceID-{devices[selected].qid}"
        yield f"{time.strftime('%Y-%m-%d %H:%M:%S')}  openqaic {__version__}  {which}  {_KEYS}"
        per_row = next((count for count in _PER_ROW if count * _BOX_WIDTH <= columns), 1)
        for device in shown:
            yield from device_lines(device, per_row=per_row)
        if not shown:
            yield "no device"


def device_lines(device: Device, *, per_row: int) -> Iterator[str]:
    """Yield the lines of a device: a title and eight boxes, several in a row."""
    version = device.text("FW Version") or "Invalid"
    title = f" DeviceID-{device.qid} --- Status: {device.status} --- FW Version: {version} "
    yield title.center(per_row * _BOX_WIDTH, "=")
    boxes = [_box(name, value) for name, value in _values(device)]
    for start in range(0, len(boxes), per_row):
        yield from ("".join(parts) for parts in zip(*boxes[start : start + per_row], strict=True))


def _values(device: Device) -> Iterator[tuple[str, str]]:
    def pair(name: str, first: float | None, second: float | None, unit: str = "") -> tuple[str, str]:
        known = first is not None and second is not None
        return name, f"{first} / {second}{unit}" if known else "Invalid"

    def used(total: str, free: str) -> float | None:
        have, left = device.number(total), device.number(free)
        return None if have is None or left is None else have - left

    def measured(label: str, unit: str) -> str:
        # A sensor or clock that reads 0 could not be read.
        value = device.number(label)
        return f"{value:.2f} {unit}" if value else "Invalid"

    yield pair("NSP Used / Total", used("Nsp Total", "Nsp Free"), device.number("Nsp Total"))
    yield pair("NW Loaded / Active", device.number("Networks Loaded"), device.number("Networks Active"))
    yield pair("DRAM Used / Total", used("Dram Total", "Dram Free"), device.number("Dram Total"), " MB")
    bandwidth = device.number("Last 100ms Average Dram Bw")
    yield "DRAM Bandwidth", "Invalid" if bandwidth is None else f"{bandwidth:.2f} KBps"
    yield "NSP Frequency", measured("NSP Frequency(Mhz)", "Mhz")
    yield "DDR Frequency", measured("DDR Frequency(Mhz)", "Mhz")
    yield "Temperature", measured("SoC temperature(degree C)", "C")
    power, cap = device.number("Board power(Watts)"), device.number("TDP Cap(Watts)")
    yield pair("Power / TDP Cap", power or None, cap or None, " W")


def _box(name: str, value: str) -> tuple[str, str, str]:
    inside = _BOX_WIDTH - 2
    return f"+{name[:inside].center(inside, '-')}+", f"|{value[:inside].center(inside)}|", f"+{'-' * inside}+"


@contextlib.contextmanager
def _screen() -> Iterator[None]:
    """Use the alternate screen of the terminal, and always restore the first."""

    def leave(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    sys.stdout.write(_ENTER)
    try:
        yield
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _keyboard() -> Iterator[int | None]:
    """Yield a descriptor that reads single keys; ``None`` without a keyboard. Ctrl-C is still a signal."""
    if not sys.stdin or not sys.stdin.isatty():
        yield None
        return
    import termios
    import tty

    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys)
    tty.setcbreak(keys)
    try:
        yield keys
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _resizes() -> Iterator[int]:
    """Yield a descriptor that becomes readable when the terminal changes its size."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before_handler = signal.signal(signal.SIGWINCH, lambda *_: None)
    before_descriptor = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(before_descriptor)
        signal.signal(signal.SIGWINCH, before_handler)
        os.close(reader)
        os.close(writer)
