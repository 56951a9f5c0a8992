"""Comparison node by node, and search for nodes in a higher precision: time, memory, and results."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import qaic
from python.harness import machine
from python.harness.row import table
from python.harness.spread import Spread, digits3
from qaic import accuracy
from qaic.accuracy.capture import Totals, instrumented
from qaic.accuracy.comparison import compile_options_of
from qaic.accuracy.prepared import options_of
from qaic.accuracy.samples import Samples
from qaic.compiler.calibration.collector import load_program

from . import nncf_control
from .search_tasks import task

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Task, precision, target, precision of kept nodes, samples.
SEARCHES = (
    ("magika", "fp16", "same>=99.5%", "fp32", 96),
    ("magika", "fp16", "sqnr>=40", "fp32", 96),
    ("silero", "int8", "python.accuracy.search_tasks:same_speech>=99%", "fp32", 96),
    ("recognizer", "int8", "same>=95%", "fp32", 120),
    ("minilm", "int8", "python.accuracy.search_tasks:same_order>=97%", "fp32", 120),
    ("recognizer", "int8", "same>=95%", "fp16", 60),
)
COMPARISONS = (
    ("magika", "fp16"),
    ("recognizer", "fp16"),
    ("recognizer", "int8"),
    ("transformer", "fp16"),
    ("transformer", "int8"),
)
#: Rounds of a measurement; the first one is a warm-up.
_ROUNDS = 6

TITLE = "## Nodes that stay in a higher precision"
_TEXT = f"""
{TITLE}

`qaic.accuracy.search` ([guide](guide/accuracy.md)) uses the first four fifths of the samples to search for
the smallest set of nodes. On these samples, the target must hold with a margin of three standard errors.
The column "held out" shows the result on the other samples. For each frame, Silero VAD decides between
speech and no speech. MiniLM-L6 decides which of two sentences is more similar to a third sentence; all
sentences are first sentences of docstrings. For Magika in float16, the best set found by hand contains all
nodes of the operators ReduceSum and Mul.

polygraphy and AIMET were not measured. polygraphy's `debug precision` bisects over layers on a GPU, and
AIMET's QuantAnalyzer switches quantizers one at a time. Neither chooses between float32 and float16 for
this card, and neither runs on this machine. onnxruntime's quantizer does not search; the tables below
contain its results.
"""

_COST = """
### Cost of a comparison

The table shows the processor time for one sample. The ratio compares one instrumented run with two runs
that a comparison of outputs always needs: one in float32 and one in the target precision. The budget is 5
times these two runs. The memory ratio is the peak resident memory of a process that compares, divided by
that of a process that only runs. Both processes compile the model and use four samples; the budget is a
factor of 2. The benchmark stops if the outputs of the instrumented run do not equal those of the program bit
for bit.
"""


def lines() -> Iterator[str]:
    """Measure and write, row by row."""
    yield _TEXT
    facts = dict(machine.facts())
    yield (
        f"These rows were measured on {facts['date']} at commit {facts['commit']}, with a load average of "
        f"{facts['load average before']}. On a busy machine, processor time is more reliable than elapsed "
        "time."
    )
    yield ""
    header = [
        *("model", "precision", "target", "kept in", "operations kept", "of", "samples", "before", "after"),
        *("held out", "programs", "processor time", "time"),
    ]
    yield from table(header, [_told(_search(*entry)) for entry in SEARCHES])
    yield ""
    yield nncf_control.sentence(60, 0.05)
    yield _COST
    header = [
        "model",
        "precision",
        "results",
        "instrumented run",
        "run in float32",
        "run in the target precision",
        "ratio",
        "memory ratio",
    ]
    yield from table(header, [_told(_comparison(*entry)) for entry in COMPARISONS])


def _told(row: list[str]) -> list[str]:
    """Show a row at once, because all rows take many minutes."""
    sys.stderr.write(" | ".join(row) + "\n")
    return row


def _search(name: str, to: str, target: str, keep: str, samples: int) -> list[str]:
    sys.stderr.write(f"searching: {name} {to} {target} {keep}\n")
    found = task(name, samples)
    begin = time.process_time()
    plan = accuracy.search(
        found.model, to=to, samples=found.samples, target=target, keep=keep, **found.options_for(to)
    )
    show = plan.target.show
    return [
        found.title,
        to,
        target.rpartition(":")[2],
        keep,
        str(plan.operations),
        str(plan.of),
        str(plan.samples),
        show(plan.before),
        show(plan.after),
        "none" if np.isnan(plan.held_out) else show(plan.held_out),
        str(plan.runs),
        f"{digits3(time.process_time() - begin)} s",
        f"{digits3(plan.seconds)} s",
    ]


def _comparison(name: str, to: str) -> list[str]:
    sys.stderr.write(f"comparing: {name} {to}\n")
    found = task(name, 4)
    options = found.options_for(to)
    samples = Samples(found.samples)
    plain = [
        load_program(Path(str(qaic.compile(found.model, **chosen).path)))
        for chosen in (found.options, options_of(to, options))
    ]
    with instrumented(found.model, compile_options_of(found.model, to, samples, None, options)) as program:
        total = Totals(program.twin)
        arrays = list(program.samples(samples))
        for sample in arrays:
            both = program.run(sample), plain[1].run(sample, None, None, None)
            if any(both[0][output].tobytes() != array.tobytes() for output, array in both[1].items()):
                raise SystemExit(f"{name} in {to}: measuring changes the outputs of the program")
        runs = [
            lambda: list(program.passages(samples, None, total)),
            *(lambda p=one: [p.run(sample, None, None, None) for sample in arrays] for one in plain),
        ]
        times: list[list[float]] = [[], [], []]
        for _ in range(_ROUNDS):
            for at, run in enumerate(runs):
                begin = time.process_time()
                run()
                times[at].append((time.process_time() - begin) / len(arrays))
        count = len(program.twin.nodes)
    all_of, float32, low = (np.array(one[1:]) for one in times)
    ratio = np.median(all_of) / (np.median(float32) + np.median(low))
    memory = _resident(name, to, "compare") / _resident(name, to, "run")
    return [
        found.title,
        to,
        str(count),
        str(Spread.of(all_of, "s")),
        str(Spread.of(float32, "s")),
        str(Spread.of(low, "s")),
        f"{ratio:.1f} x",
        f"{memory:.2f} x",
    ]


def _resident(name: str, to: str, what: str) -> float:
    """Largest resident size of a separate process."""
    command = [sys.executable, "-m", "python.accuracy.precision_search", name, to, what]
    found = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=__file__.rsplit("/", 3)[0]
    )
    return float(found.stdout.split()[-1])


def _measure_resident(name: str, to: str, what: str) -> None:
    found = task(name, 4)
    options = found.options_for(to)
    if what == "compare":
        accuracy.compare(found.model, to=to, samples=found.samples, **options)
    else:
        with qaic.Session(found.model, **options_of(to, options)) as session:
            for sample in found.samples:
                session.run(sample)
    # getrusage is not suitable: its value is at least that of the parent process.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    sys.stdout.write(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")) + "\n")


if __name__ == "__main__":
    _measure_resident(*sys.argv[1:])
