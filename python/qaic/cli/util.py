"""``qaic-util``: shows devices and their state, and resets them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qaic.cli import console
from qaic.cli.console import DEVICE, SUCCESS, print_line, print_message, print_text
from qaic.errors import DeviceError, OptionError
from qaic.support.text import escape_json, nearest_name

if TYPE_CHECKING:
    from qaic.cli.device_info import Device, DeviceSource

_SHORTEST_PERIOD_SECONDS = 0.1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns its exit code."""
    return console.run(_tool, argv)


def tool_parser() -> console.Parser:
    """Build the parser."""
    parser = console.Parser(prog="qaic-util", description="List and query Cloud AI 100 devices.")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("-q", "--query", action="store_true", help="list devices (default action)")
    action.add_argument(
        "-t", "--table", type=_seconds, metavar="SECONDS", help="show a full-screen table until Ctrl-C"
    )
    action.add_argument("-s", "--soc-reset", action="store_true", help="reset all cards, or those of -d, -p")
    action.add_argument("-a", "--enable-mdp", action="store_true", help="enable multi-device features")
    action.add_argument("-V", "--version", action="store_true", help="show the version")
    parser.add_argument(
        "-d", "--aic-device-id", type=int, action="append", metavar="ID", help="only this device; repeatable"
    )
    parser.add_argument(
        "-f", "--filter", metavar="KEY==VALUE", help="only devices with this property, for -q, -t and -j"
    )
    parser.add_argument("-j", "--json", metavar="FILE", help="write JSON; - for standard output")
    parser.add_argument("-p", dest="address", metavar="PCI_ADDRESS", help="for -s: the device to reset")
    return parser


def _seconds(text: str) -> float:
    try:
        period = float(text)
    except ValueError:
        period = float("nan")
    # The comparison is written so that "not a number" fails it.
    if not _SHORTEST_PERIOD_SECONDS <= period < float("inf"):
        message = f"{text!r} is not a number of seconds of at least {_SHORTEST_PERIOD_SECONDS}"
        raise argparse.ArgumentTypeError(message)
    return period


def _tool(argv: Sequence[str]) -> int:
    parser = tool_parser()
    arguments = parser.parse_args(argv)
    if arguments.json is not None and (arguments.table or arguments.soc_reset or arguments.enable_mdp):
        parser.error("-j needs a query, without -t, -s or -a")
    if arguments.address is not None and not arguments.soc_reset:
        parser.error("-p names the device to reset; it needs -s")
    if arguments.filter is not None and "==" not in arguments.filter:
        parser.error(f"-f {arguments.filter!r} is not KEY==VALUE, such as 'Status==Ready'")
    if arguments.version:
        from qaic import __version__

        print_line(f"qaic-util {__version__}")
        return SUCCESS
    if arguments.soc_reset or arguments.enable_mdp:
        return _act(arguments)
    return _table(arguments) if arguments.table is not None else _query(arguments)


def _query(arguments: argparse.Namespace) -> int:
    from qaic.cli.device_info import DeviceSource

    devices, code = _chosen(arguments, DeviceSource())
    if arguments.json is not None:
        _write_json({"device_info": [device.record() for device in devices]}, arguments.json)
    if arguments.json is None or (arguments.query and arguments.json != "-"):
        from qaic.cli.device_info import runtime_version

        version, variant = runtime_version()
        print_line(f"LRT QC_IMAGE_VERSION:{variant}.{version}")
        print_line(f"LRT IMAGE_VARIANT:{variant}")
        print_line(f"Number of devices: {len(devices)}")
        for device in devices:
            print_line(f"QID {device.qid}")
            for fact in device.facts:
                print_line(f"\t{fact.line}")
    return code


def _table(arguments: argparse.Namespace) -> int:
    from qaic.cli.device_info import DeviceSource, DeviceTable

    try:
        source = DeviceSource()
        _, code = _chosen(arguments, source)
        table = DeviceTable(lambda: _chosen(arguments, source)[0], period_seconds=arguments.table)
        return code or table.run()
    except KeyboardInterrupt:
        # Ctrl-C is the way to leave the table, so it is not a failure.
        return SUCCESS


def _chosen(arguments: argparse.Namespace, source: DeviceSource) -> tuple[list[Device], int]:
    """Query the requested devices; the exit code reports missing ones."""
    devices, unknown = source.query(arguments.aic_device_id)
    for number in unknown:
        # The vendor's text, which scripts look for.
        print_line(f"Device {number} invalid", to=sys.stderr)
    code = DEVICE if unknown else SUCCESS
    if arguments.filter is None or not devices:
        return devices, code
    key, _, wanted = arguments.filter.partition("==")
    label = _label(key.strip(), devices)
    return [device for device in devices if device.matches(label, wanted.strip())], code


def _label(key: str, devices: Sequence[Device]) -> str:
    """Return the label of a property, whatever the case of its letters."""
    from qaic.cli.device_info import labels

    known = {label.casefold(): label for label in labels(devices)}
    if key.casefold() in known:
        return known[key.casefold()]
    near = nearest_name(key.casefold(), known)
    suggestion = f"; did you mean {known[near]!r}?" if near else ""
    raise OptionError(f"-f: no device has a property {key!r}{suggestion}", code="option.filter")


def _act(arguments: argparse.Namespace) -> int:
    """Reset devices, or enable their use together; report the result of each."""
    from qaic.cli.device_info import DeviceSource

    source = DeviceSource()
    devices, code = _chosen(arguments, source)
    if arguments.address is not None:
        devices = [device for device in devices if device.matches("PCI Address", arguments.address)]
        if not devices:
            text = f"-p {arguments.address}: no device has this PCI address"
            print_message("error", text, "`qaic-util -q` shows the addresses")
            return DEVICE
    for device in devices:
        if not source.is_card(device.qid):
            why = (
                "a virtual card keeps no state beyond the process that uses it: nothing to reset"
                if arguments.soc_reset
                else "virtual cards run one program together without this setting: nothing to enable"
            )
        elif arguments.enable_mdp:
            why = "cards run only programs for one device: nothing to enable"
        else:
            try:
                source.reset(device.qid)
            except DeviceError as error:
                # The others are reset anyway.
                print_message("error", f"QID {device.qid}: {error.message}", *error.hints, code=error.code)
                code = DEVICE
                continue
            why = "reset; its programs are lost, and it is usable when qaic-util shows it as Ready"
        print_line(f"QID {device.qid}: {why}")
    return code


def _write_json(report: object, target: str) -> None:
    import json
    from pathlib import Path

    from qaic.support.atomic_io import replace_bytes

    text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
    if target == "-":
        print_text(escape_json(text))
    else:
        replace_bytes(Path(target), text.encode(errors="backslashreplace"))


if __name__ == "__main__":
    sys.exit(main())
