"""``openqaic devices``: the devices there are, once or until Ctrl-C."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qaic.cli.console import DEVICE, SUCCESS, print_json, print_line
from qaic.cli.openqaic.arguments import add_json, duration_s, set_examples

if TYPE_CHECKING:
    import argparse

    from qaic.cli.console import Parser


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--watch",
        nargs="?",
        const=1.0,
        type=duration_s,
        metavar="SECONDS",
        help="table on the whole screen, until Ctrl-C",
    )
    add_json(parser)
    set_examples(
        parser, "openqaic devices", "openqaic devices --watch", "QAIC_CPU_DEVICES=4 openqaic devices"
    )


def run(arguments: argparse.Namespace) -> int:
    """List the devices. The exit code is 3 when there is none."""
    if arguments.watch is not None:
        if arguments.json:
            from qaic.errors import OptionConflictError

            raise OptionConflictError(
                "--watch is a table for people; it goes without --json", code="devices.json"
            )
        return _watch(arguments.watch)
    from qaic import _core
    from qaic.cli.info import device_lines

    devices = _core.Context().devices()
    if arguments.json:
        print_json(devices)
    else:
        for line in device_lines(devices):
            print_line(line)
        print_line(f"next: {_next_step(devices)}")
    return SUCCESS if devices else DEVICE


def _next_step(devices: list[dict[str, Any]]) -> str:
    """Say what a user does next: run where a device is ready, else see what the runtime found."""
    ready = any(device["status"] == "ready" for device in devices)
    return "openqaic run MODEL" if ready else "openqaic info"


def _watch(period_seconds: float) -> int:
    from qaic.cli.util.source import DeviceSource
    from qaic.cli.util.table import DeviceTable

    source = DeviceSource()
    try:
        return DeviceTable(lambda: source.query(None)[0], period_seconds=period_seconds).run()
    except KeyboardInterrupt:
        # Ctrl-C is how one leaves the table, not a failure.
        return SUCCESS
