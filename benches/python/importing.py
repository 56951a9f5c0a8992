"""Time of imports, and time from a new process to the first result of a model."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from .harness import models
from .harness.row import Row, at_most
from .harness.spread import Spread, ratios

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
                ("difference from numpy, in pairs", difference),
                ("`import onnxruntime`", spreads["onnxruntime"]),
            ),
            budget="<= numpy + 15 ms",
            met=difference.median <= _LIMIT_S,
        )


#: Seconds after which the compile cache identifies a file by its modification time.
_SETTLED_S = 2.1
#: Programs that compute the sum of two inputs with the tiny model.
_OURS = "import numpy, qaic; a = numpy.ones((1, 16), 'f'); qaic.Session({path!r}).run(x=a, y=a)"
_THEIRS = (
    "import numpy, onnxruntime; a = numpy.ones((1, 16), 'f'); "
    "onnxruntime.InferenceSession({path!r}).run(None, {{'x': a, 'y': a}})"
)


def first_answer_rows(folder: str, effort: Effort) -> Iterator[Row]:
    """Rows about the first result of a new process, which belong to the group `import`."""
    path = str(models.load("tiny", Path(folder)).path)
    ours, theirs = _OURS.format(path=path), _THEIRS.format(path=path)
    results: dict[str, list[float]] = {"theirs": [], "compiled": [], "cached": []}
    with TemporaryDirectory(dir=folder) as cache:
        time.sleep(_SETTLED_S)
        _import_seconds(ours, cache)
        for _ in range(effort.imports):
            results["theirs"].append(_import_seconds(theirs))
            results["cached"].append(_import_seconds(ours, cache))
            with TemporaryDirectory(dir=folder) as empty:
                results["compiled"].append(_import_seconds(ours, empty))
    beside = (("", Spread.of(results["theirs"], "s")),)
    for name, title, limit in (("compiled", "an ONNX file", 1.5), ("cached", "the compile cache", 1.0)):
        spread, ratio = Spread.of(results[name], "s"), ratios(results[name], results["theirs"])
        yield Row(f"first answer of a new process, from {title}", spread, beside, **at_most(ratio, limit))


def _import_seconds(statement: str, cache: str | None = None) -> float:
    """Time a statement in a new interpreter, without the start of the interpreter."""
    code = f"import time; t = time.perf_counter()\n{statement}\nprint(time.perf_counter() - t)"
    environment = os.environ if cache is None else {**os.environ, "QAIC_CACHE_DIR": cache}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    return float(done.stdout)
