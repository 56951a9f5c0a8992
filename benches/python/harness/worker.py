"""Measurements in separate processes, so that the effects of earlier measurements do not count."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from os import environ
from pathlib import Path
from typing import Any

REPORT = Path(__file__).parents[2] / "report.py"


def measure(name: str, /, **arguments: object) -> Any:
    """Run the measurement `name` of `measurements` in a new process with an empty compile cache."""
    with tempfile.TemporaryDirectory(prefix="openqaic-bench-cache-") as cache:
        process = subprocess.run(
            [sys.executable, str(REPORT), "--measure", name, json.dumps(arguments)],
            env={**environ, "QAIC_CACHE_DIR": cache},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return json.loads(process.stdout.splitlines()[-1])


def in_process(script: str, /, *, interpreter: str = sys.executable, **arguments: object) -> Any:
    """Call a script with ``--measure`` and its arguments as JSON; returns the JSON that it prints."""
    process = subprocess.run(
        [interpreter, script, "--measure", json.dumps(arguments)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(process.stdout.splitlines()[-1])


def status_bytes(field: str) -> int:
    """Return a field of ``/proc/self/status`` with a value in kB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)
