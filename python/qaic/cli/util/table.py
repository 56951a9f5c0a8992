"""The table of ``qaic-util -t``: a whole screen until Ctrl-C, once where there is none."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING

from qaic import __version__
from qaic.cli.console import SUCCESS

if TYPE_CHECKING:
    from qaic.cli.util.device_info import Device

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
    """Shows devices again and again.

    Parameters
    ----------
    query
        Gives the devices as they are now.
    period_seconds
        Time between two queries.
    """

    def __init__(self, query: Callable[[], list[Device]], *, period_seconds: float) -> None:
        self._query = query
        self._period_seconds = period_seconds
        #: index of the one device shown; None for all
        self._selected: int | None = None

    def run(self) -> int:
        """Show the table until Ctrl-C, ``q`` or the end of the terminal; once where there is no terminal."""
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
        # The places are: all, the first device, ..., the last one.
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
            hidden = f"... {len(lines) - size.lines + 1} more lines; {_KEYS}"
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
    """One device: a title and its eight boxes, several in a row."""
    version = device.text("FW Version") or "Invalid"
    title = f" DeviceID-{device.qid} --- Status: {device.status} --- FW Version: {version} "
    yield title.center(per_row * _BOX_WIDTH, "=")
    boxes = [_box(name, value) for name, value in _values(device)]
    for start in range(0, len(boxes), per_row):
        for parts in zip(*boxes[start : start + per_row], strict=True):
            yield "".join(parts)


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
    """Use the terminal's second screen, and give the first back whatever happens."""

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
    """Read keys as they are pressed; ``None`` where there is no keyboard. Ctrl-C stays a signal."""
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
    """Descriptor that becomes readable when the terminal changes its size."""
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
