"""Facts about the machine and the software, without which figures have no meaning."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .criterion import ROOT

_PACKAGES = ("numpy", "onnx", "onnxruntime", "magika", "openvino", "rapidocr-onnxruntime")


def facts() -> list[tuple[str, str]]:
    """Return the name and value of each fact."""
    from qaic import __version__

    cpu = _field("/proc/cpuinfo", "model name")
    family, model = _field("/proc/cpuinfo", "cpu family"), _field("/proc/cpuinfo", "model\t")
    memory_gib = int(_field("/proc/meminfo", "MemTotal").split()[0]) / (1 << 20)
    commit = _output("git", "rev-parse", "--short", "HEAD")
    # The report itself changes, so it is excluded.
    changed = _output("git", "status", "--porcelain", "--untracked-files=no", "--", ":!docs/performance.md")
    return [
        ("date", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())),
        ("commit", commit + (" with local changes" if changed else "")),
        ("CPU", f"{cpu} (family {family}, model {model}), {len(os.sched_getaffinity(0))} usable"),
        ("memory", f"{memory_gib:.0f} GiB"),
        ("kernel", f"{platform.system()} {platform.release()}, {platform.machine()}"),
        ("load average before", " ".join(f"{load:.2f}" for load in os.getloadavg())),
        ("Python", platform.python_version()),
        ("Rust", _output("rustc", "--version").removeprefix("rustc ")),
        ("openqaic", __version__),
        *((name, _version(name)) for name in _PACKAGES),
    ]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return "unknown"


def _output(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"
