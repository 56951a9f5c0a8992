"""Comparing node by node and searching nodes to keep: time, memory, and what is found."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import numpy as np

import qaic
from qaic import accuracy
from qaic.accuracy.capture import instrumented, load
from qaic.accuracy.comparison import compile_options_of
from qaic.accuracy.precisions import options_of
from qaic.accuracy.samples import Samples

from . import accuracy_tasks
from .accuracy_settings import FINE
from .row import table
from .spread import Spread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .accuracy_tasks import Task

#: task, precision, target
SEARCHES = (
    ("magika", "fp16", "same>=99.5%"),
    ("magika", "fp16", "sqnr>=40"),
    # Not the recognizer in int8: some 260 programs are calibrated anew, which takes hours on these samples.
)
COMPARISONS = (("magika", "fp16"), ("recognizer", "fp16"), ("recognizer", "int8"))

_TEXT = """
## Which nodes have to stay in float32

`qaic.accuracy.search` ([guide](guide/accuracy.md)) on the same models: the set is found on the first four
fifths of the samples, and "kept back" is the target on the others. By hand, Magika in fp16 keeps all nodes of
the kinds ReduceSum and Mul. polygraphy's `debug precision` bisects over layers on a GPU, AIMET's
QuantAnalyzer switches quantizers one at a time; neither chooses between float32 and float16 for this card,
and neither runs here. NNCF's `quantize_with_accuracy_control` is for int8 on OpenVINO, and was not installed.
"""

_COST = """
### What a comparison costs

Processor time of one sample: one instrumented run, beside one run of the program in float32 and one in the
precision, which a comparison of outputs alone needs. Memory is the largest resident size of a process that
compiles and compares, over that of one that compiles and runs; four samples.
"""


def lines(samples: int) -> Iterator[str]:
    """Measure and write."""
    yield _TEXT
    header = ["model", "to", "target", "nodes", "of", "before", "after", "kept back", "programs", "seconds"]
    yield from table(header, [_search(*entry, samples) for entry in SEARCHES])
    yield _COST
    header = ["model", "to", "nodes", "instrumented", "float32", "precision", "ratio", "memory ratio"]
    yield from table(header, [_comparison(*entry) for entry in COMPARISONS])


def _task(name: str, samples: int) -> tuple[Task, dict[str, object]]:
    task = getattr(accuracy_tasks, name)(8, samples)
    return task, dict(task.options)


def _search(name: str, to: str, target: str, samples: int) -> list[str]:
    task, options = _task(name, samples)
    if to == "int8":
        options |= {**FINE, "calibration_data": task.calibration}
    plan = accuracy.search(task.path, to=to, samples=task.evaluation, target=target, **options)
    show = plan.target.show
    return [
        task.title.partition(",")[0],
        to,
        target,
        str(len(plan.nodes)),
        str(plan.of),
        show(plan.before),
        show(plan.after),
        "none" if np.isnan(plan.held_out) else show(plan.held_out),
        str(plan.runs),
        f"{plan.seconds:.1f}",
    ]


def _comparison(name: str, to: str) -> list[str]:
    task, options = _task(name, 4)
    samples = Samples(task.evaluation)
    calibration = samples.calibration() if to == "int8" else {}
    plain = [
        load(qaic.compile(task.path, **chosen).path)
        for chosen in (options, options_of(to, {**options, **calibration}))
    ]
    with instrumented(task.path, compile_options_of(to, samples, options)) as program:
        arrays = list(program.samples(samples))
        runs = [program.run, *(lambda x, p=one: p.run(x, None, None, None) for one in plain)]
        times: list[list[float]] = [[], [], []]
        for _ in range(6):
            for at, run in enumerate(runs):
                begin = time.process_time()
                for sample in arrays:
                    run(sample)
                times[at].append((time.process_time() - begin) / len(arrays))
        count = len(program.twin.nodes)
    # The first round warms up.
    all_of, float32, low = (np.array(one[1:]) for one in times)
    ratio = np.median(all_of) / (np.median(float32) + np.median(low))
    memory = _resident(name, to, "compare") / _resident(name, to, "run")
    return [
        task.title.partition(",")[0],
        to,
        str(count),
        str(Spread.of(all_of, "s")),
        str(Spread.of(float32, "s")),
        str(Spread.of(low, "s")),
        f"{ratio:.1f} x",
        f"{memory:.2f} x",
    ]


def _resident(name: str, to: str, what: str) -> float:
    """Largest resident size of a process of its own."""
    command = [sys.executable, "-m", "python.precision_search", name, to, what]
    found = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=__file__.rsplit("/", 2)[0]
    )
    return float(found.stdout.split()[-1])


def _measure_resident(name: str, to: str, what: str) -> None:
    import resource

    task, options = _task(name, 4)
    samples = Samples(task.evaluation)
    calibration = samples.calibration() if to == "int8" else {}
    if what == "compare":
        accuracy.compare(task.path, to=to, samples=task.evaluation, **options)
    else:
        with qaic.Session(task.path, **options_of(to, {**options, **calibration})) as session:
            for sample in task.evaluation:
                session.run(sample)
    sys.stdout.write(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}\n")


if __name__ == "__main__":
    _measure_resident(*sys.argv[1:])
