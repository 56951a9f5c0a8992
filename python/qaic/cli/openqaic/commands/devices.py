"""``openqaic devices``: lists devices once, or until Ctrl-C."""

import argparse
import json
from collections.abc import Callable

from qaic import _core
from qaic.cli.console import DEVICE, SUCCESS, Parser, print_json, print_line, print_text
from qaic.cli.openqaic.arguments import add_json, positive, set_examples
from qaic.errors import OptionConflictError, QaicError


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--watch",
        nargs="?",
        const=1.0,
        type=positive,
        metavar="SECONDS",
        help="show a full-screen table until Ctrl-C",
    )
    add_json(parser)
    parser.add_argument(
        "--format",
        choices=sorted(_FORMATS),
        help="print the ready devices for a scheduler: JSON for Spark's resource discovery, "
        "or the value of --resources for a Dask worker or a Ray node",
    )
    set_examples(
        parser,
        "openqaic devices",
        "openqaic devices --watch",
        "QAIC_CPU_DEVICES=4 openqaic devices",
        "openqaic devices --format spark",
    )


def run(arguments: argparse.Namespace) -> int:
    """List the devices. The exit code is 3 if there are none."""
    others = [f"--{name}" for name in ("json", "format") if getattr(arguments, name)]
    if arguments.watch is not None and others:
        raise _conflict(f"--watch shows a table on a terminal; omit {others[0]}")
    if len(others) > 1:
        raise _conflict("--format and --json are different outputs; give one of them")
    if arguments.watch is not None:
        return _watch(arguments.watch)
    from qaic.cli.info import device_lines

    devices = _core.Context().devices()
    if arguments.format:
        devices = [device for device in devices if device["status"] == "ready"]
        print_line(_FORMATS[arguments.format]([device["id"] for device in devices]))
    elif arguments.json:
        print_json(devices)
    else:
        for line in device_lines(devices):
            print_text(line)
        if not any(device["status"] == "ready" for device in devices):
            print_line("next: openqaic info")
    return SUCCESS if devices else DEVICE


_FORMATS: dict[str, Callable[[list[int]], str]] = {
    "dask": lambda ids: f"QAIC={len(ids)}",
    "ray": lambda ids: json.dumps({"QAIC": len(ids)}),
    "spark": lambda ids: json.dumps({"name": "qaic", "addresses": list(map(str, ids))}),
}


def _conflict(message: str) -> QaicError:
    return OptionConflictError(message, code="devices.json")


def _watch(period_seconds: float) -> int:
    from qaic.cli.device_info import DeviceSource, DeviceTable

    source = DeviceSource()
    try:
        return DeviceTable(lambda: source.query(None)[0], period_seconds=period_seconds).run()
    except KeyboardInterrupt:
        # Ctrl-C is the usual end of the table, so it is not a failure.
        return SUCCESS
