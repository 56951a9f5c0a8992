"""What the import costs a program that uses numpy anyway."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from .harness.row import Row
from .harness.spread import Spread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .harness.effort import Effort

_LIMIT_S = 0.015
_SUBJECTS = {
    "numpy": "import numpy",
    "qaic": "import qaic",
    "Session": "import qaic; qaic.Session",
    "onnxruntime": "import onnxruntime",
}


def import_rows(effort: Effort) -> Iterator[Row]:
    """Rows of the group `import`."""
    results: dict[str, list[float]] = {name: [] for name in _SUBJECTS}
    for turn in range(effort.imports + 1):
        for name, statement in _SUBJECTS.items():
            seconds = _import_seconds(statement)
            if turn:  # the first one fills the file cache
                results[name].append(seconds)
    spreads = {name: Spread.of(values, "s") for name, values in results.items()}
    for name, title in (("qaic", "`import qaic`"), ("Session", "`import qaic; qaic.Session`")):
        more = [ours - numpy for ours, numpy in zip(results[name], results["numpy"], strict=True)]
        difference = Spread.of(more, "s")
        yield Row(
            title,
            spreads[name],
            (
                ("`import numpy`", spreads["numpy"]),
                ("more than numpy, pair by pair", difference),
                ("`import onnxruntime`", spreads["onnxruntime"]),
            ),
            budget="<= numpy + 15 ms",
            met=difference.median <= _LIMIT_S,
            judged=difference,
        )


def _import_seconds(statement: str) -> float:
    """Time a statement in a fresh interpreter, without the interpreter's own start."""
    code = f"import time; t = time.perf_counter()\n{statement}\nprint(time.perf_counter() - t)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)
