"""The reference page of the passes: their order, and the first sentence of each.

The page is committed as ``docs/reference/passes.md``; a test compares the two.
"""

from __future__ import annotations

import inspect
import sys

from qaic.compiler.pipeline import PHASES

_INTRODUCTION = """\
# Passes of the compiler

<!-- Written by `make docs`. Edit the sources, not this page. -->

`compiler/pipeline.py` defines this order. A pass runs if the options require it. `time_passes` shows the time
of each pass. `enable_debug` writes the graph after each pass that changed it, and verifies it after each one.
"""

#: Phase -> its purpose.
_PURPOSES = {
    "legalize": "The user's model is converted to the form that the other passes expect.",
    "shapes": "Every dimension gets a size, and every value a type and a shape.",
    "precision": "Floats become float32, values are measured, and each node gets its precision.",
    "quantize": "Weights and nodes get their reduced formats.",
    "compare": "Results of the quantized graph are compared with those of the float graph.",
    "emulate": "Kernels compute in float32; values are rounded where the card rounds.",
    "interface": "Inputs and outputs get their final form.",
    "state": "State on the device is updated in place.",
    "annotate": "Data for statistics is recorded.",
}


def render() -> str:
    """Write the page."""
    parts = [_INTRODUCTION]
    for phase, steps in PHASES.items():
        rows = [f"| `{step.name}` | {(inspect.getdoc(step.run) or '').splitlines()[0]} |" for step in steps]
        table = "\n".join(["| pass | effect |", "| --- | --- |", *rows])
        parts.append(f"\n## {phase}\n\n{_PURPOSES[phase]}\n\n{table}\n")
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(render())
