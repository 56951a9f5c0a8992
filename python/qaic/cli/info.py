"""``openqaic info``: shows installed versions and available devices."""

import argparse
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from qaic import __version__, _core
from qaic.cli.console import Parser, print_json, print_line, print_text
from qaic.cli.openqaic.arguments import add_json, set_examples
from qaic.device_list import NO_DEVICES
from qaic.errors import DeviceError
from qaic.report.text import facts_text, rows_text


def add_arguments(parser: Parser) -> None:
    add_json(parser)
    set_examples(parser, "openqaic info", "openqaic info --json")


def run(arguments: argparse.Namespace) -> int:
    """Print versions, the engine and the devices. The exit code is 0 even without an engine."""
    facts = gather()
    if arguments.json:
        print_json(facts)
        return 0
    engine = facts["engine"]
    pairs = [("openqaic", facts["openqaic"]), ("python", f"{facts['python']} on {facts['platform']}")]
    pairs += [(package, version or "not installed") for package, version in facts["packages"].items()]
    error = engine.get("error")
    pairs.append(("engine", f"none: {error}" if error else "onnxruntime {version}, {path}".format(**engine)))
    print_text(facts_text(pairs))
    print_line()
    for line in device_lines(facts["devices"]):
        print_text(line)
    return 0


def device_lines(devices: list[dict[str, Any]]) -> Iterator[str]:
    """Write devices as a table, followed by the reasons why devices cannot be used."""
    facts = ("id", "kind", "status", "nsp_total", "nsp_free", "dram_total_mb", "name")
    yield rows_text(
        "device:int | kind | status | cores:int | free:int | memory:int MB | name",
        [[device[fact] for fact in facts] for device in devices],
    )
    if not devices:
        yield NO_DEVICES
    for device in devices:
        if device["reason"]:
            # Errors of a card begin with its number.
            name = f"device {device['id']}"
            yield device["reason"] if device["reason"].startswith(name) else f"{name}: {device['reason']}"


def gather() -> dict[str, Any]:
    """Return all facts as values for JSON."""
    try:
        path, version = _core.engine_info()
        engine = {"path": str(path), "version": version}
    except DeviceError as error:
        engine = {"error": error.message}
    return {
        "openqaic": __version__,
        "python": sys.version.split()[0],
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": {name: _version(name) for name in ("numpy", "onnx", "onnxruntime")},
        "engine": engine,
        "devices": _core.Context().devices(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
