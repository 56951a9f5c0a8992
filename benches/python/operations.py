"""Locks and atomic read-modify-write operations of an inference, as the tests of the runtime count them."""

from __future__ import annotations

import re
import subprocess
from os import environ

from .harness.criterion import ROOT

_LINE = re.compile(r"operations on ([^,]+), (.+): (\d+) locks, (\d+) read-modify-writes")


def operations_table() -> tuple[list[str], list[list[str]]]:
    """Counts by device and by the way in which an inference runs."""
    from qaic import _core

    command = ["cargo", "test", "--quiet", "-p", "qaic-runtime", "--lib", "--"]
    command += ["--nocapture", "--test-threads", "1", "tests::costs::operations::"]
    environment = {**environ, "QAIC_ONNXRUNTIME_LIB": str(_core.engine_info()[0])}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    found = _LINE.findall(done.stdout)
    if done.returncode or not found:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return ["device", "inference", "locks", "atomic read-modify-writes"], [list(row) for row in found]
