"""The reference page of the passes: their order, and the first sentence of each.

The page is checked in as ``docs/reference/passes.md``; a test compares the two.
"""

from __future__ import annotations

import inspect
import sys

from qaic.compiler.pipeline import PHASES

_INTRODUCTION = """\
# Passes of the compiler

<!-- Written by `make docs`. Edit the sources, not this page. -->

`compiler/pipeline.py` states this order and nothing else does. A pass runs where the options ask for it;
`time_passes` shows the time of each, and `enable_debug` keeps the graph after each that changed it and checks
it after every one.
"""

#: phase -> what it is for
_PURPOSES = {
    "legalize": "The model of the user becomes one that the other passes understand.",
    "shapes": "Every dimension gets a size, and every value a type and a shape.",
    "precision": "Floats become float32, values are measured, and each node gets what it computes in.",
    "quantize": "Weights and nodes get their reduced formats.",
    "emulate": "Kernels stay in float32; values are rounded where the card would round.",
    "interface": "Inputs and outputs get their final form.",
    "state": "What stays on the device is written where it lies.",
    "annotate": "What statistics need is noted.",
}


def render() -> str:
    """Write the page."""
    parts = [_INTRODUCTION]
    for phase, steps in PHASES.items():
        rows = [f"| `{step.name}` | {(inspect.getdoc(step.run) or '').splitlines()[0]} |" for step in steps]
        table = "\n".join(["| pass | what it does |", "| --- | --- |", *rows])
        parts.append(f"\n## {phase}\n\n{_PURPOSES[phase]}\n\n{table}\n")
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(render())
