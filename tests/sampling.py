"""The share of long sweeps that a run uses: a sample, or the whole sweep.

Only tests that `make test-pins` runs completely are sampled; every CI run includes this stage. A property
draws two of five examples, cases with the mark `whole` are skipped, and some tests draw their own sample.
``--whole`` runs everything. Files that the command line names with ``::`` also run completely, so a pasted id
repeats its failure.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import re
import shlex
from pathlib import Path

from hypothesis import settings

#: Share of the examples of a property, in percent.
_EXAMPLES = 40

_ROOT = Path(__file__).parents[1]


@functools.cache
def _stage():
    """Return the folders that `make test-pins` runs, and the patterns of files that it ignores."""
    makefile = (_ROOT / "Makefile").read_text().replace("\\\n", " ")
    words = shlex.split(re.search(r"^PINS_TESTS := (.*)", makefile, re.MULTILINE)[1])
    ignored = [word.partition("=")[2] for word in words if word.startswith("--ignore-glob=")]
    return [_ROOT / word for word in words if not word.startswith("-")], ignored


@functools.cache
def is_in_whole_stage(path):
    """Return True if `make test-pins` runs the tests of a file."""
    folders, ignored = _stage()
    return any(map(path.is_relative_to, folders)) and not any(
        fnmatch.fnmatch(str(path), pattern) for pattern in ignored
    )


def is_sampled(node):
    """Return True if a test, or a module of tests, runs a sample."""
    config = node.config
    named = [arg.partition("::")[0] for arg in config.args if "::" in arg]
    return not (
        config.getoption("--whole")
        or str(node.path) in {os.path.normpath(config.invocation_params.dir / name) for name in named}
        # The engine of that stage cannot run these tests.
        or node.get_closest_marker("run_profiles")
        or not is_in_whole_stage(node.path)
    )


def take_samples(config, items):
    """Omit cases, and let each property draw fewer examples."""
    sampled = [item for item in items if is_sampled(item)]
    left_out = {item for item in sampled if item.get_closest_marker("whole")}
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    # Cases with parameters share a function.
    for test in {item.obj for item in sampled if hasattr(item.obj, "hypothesis")}:
        asked = test._hypothesis_internal_use_settings
        count = -(-asked.max_examples * _EXAMPLES // 100)
        test._hypothesis_internal_use_settings = settings(asked, max_examples=count)
