"""Ctrl-C while a command imports its modules: exit code 130, one line, and no traceback."""

import os
import random
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from qaic.cli import shims
from session_models import affine, save

ROOT = Path(__file__).parents[2]

# The script sends a signal at one import, given by its name, or by its number from the module with the entry
# points on, and writes the number of imports. Its clock is ahead: the cache stores digests only of files that
# have not changed recently, and then the command imports fewer modules.
HOOK = """
import _signal, atexit, os, sys, time
class Interruption:
    seen = 0
    def find_spec(self, name, path=None, target=None):
        if "qaic.cli.entry" in sys.modules:
            Interruption.seen += 1
            if os.environ["INTERRUPTED_IMPORT"] in {str(Interruption.seen), name}:
                _signal.raise_signal(int(os.environ["SENT_SIGNAL"]))
sys.meta_path.insert(0, Interruption())
now = time.time_ns
time.time_ns = lambda: now() + 3600 * 10**9
atexit.register(lambda: open(os.environ["SEEN_IMPORTS"], "w").write(str(Interruption.seen)))
"""

SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]

PYTHON = [sys.executable, "-P"]


def installed(place):
    module, _, function = place.partition(":")
    return [*PYTHON, "-c", f"import sys; from {module} import {function}; sys.exit({function}())"]


STARTS = {
    "python -m qaic": [*PYTHON, "-m", "qaic"],
    **{name: installed(place) for name, place in SCRIPTS.items()},
    **{f"python -m {module}": [*PYTHON, "-m", module] for module in shims._TOOLS.values()},
    **dict.fromkeys(shims._TOOLS),
}


def started(name, folder, number, prepare=None, arguments=("--help",), sent=signal.SIGINT):
    """Return the ended process and the number of imports; ``number`` may be the name of an import."""
    (folder / "sitecustomize.py").write_text(HOOK)
    seen = folder / "seen"
    seen.unlink(missing_ok=True)
    command = STARTS[name]
    if command is None:
        path = folder / "shim"
        path.write_bytes(shims._script(shims._TOOLS[name]))
        command = ["/bin/sh", path]
    paths = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    environment = {
        **os.environ,
        "PYTHONPATH": paths,
        "INTERRUPTED_IMPORT": str(number),
        "SENT_SIGNAL": str(int(sent)),
        "SEEN_IMPORTS": str(seen),
    }
    ended = subprocess.run(
        [*command, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=prepare,
    )
    return ended, int(seen.read_text()) if seen.exists() else None


@pytest.mark.parametrize("name", STARTS)
def test_interrupt_at_any_import_ends_the_command_without_a_traceback(name, tmp_path):
    whole, imports = started(name, tmp_path, 0)
    assert (whole.returncode, whole.stderr) == (0, "")
    assert imports > 20
    drawn = random.Random(name)
    for number in {1, *drawn.sample(range(2, imports + 1), 3)}:
        ended, _ = started(name, tmp_path, number)
        assert (ended.returncode, ended.stderr) == (130, "error: interrupted\n"), number


def test_interrupt_at_any_import_of_a_run_ends_it_without_a_traceback(tmp_path):
    path = str(save(tmp_path, affine()))
    # The first run compiles; later runs find the program in the cache, with fewer imports.
    started("openqaic", tmp_path, 0, arguments=("run", path))
    whole, imports = started("openqaic", tmp_path, 0, arguments=("run", path))
    assert whole.returncode == 0
    for number in (imports // 3, imports // 2, imports - 1):
        ended, _ = started("openqaic", tmp_path, number, arguments=("run", path))
        assert ended.returncode == 130, number
        assert "Traceback" not in ended.stderr, number
        assert ended.stderr.endswith("error: interrupted\n"), number


@pytest.mark.parametrize(
    ("sent", "code", "said"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_signal_that_a_library_replaces_by_its_error_ends_the_command(tmp_path, sent, code, said):
    """Regression: numpy imports this module from C, and the command reported a bug."""
    path = str(save(tmp_path, affine()))
    ended, _ = started("openqaic", tmp_path, "datetime", arguments=("run", path), sent=sent)
    assert (ended.returncode, ended.stderr) == (code, f"error: {said}\n")


def test_ignored_interrupt_stays_ignored(tmp_path):
    ended, imports = started(
        "openqaic", tmp_path, 9, prepare=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert imports > 20
