"""Results of a search: the nodes, their gain, and the file that keeps them in higher precision."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qaic.accuracy.precision_search.targets import Target
from qaic.options.files.node_precision import NodePrecision
from qaic.support.atomic_io import replace_bytes
from qaic.support.text import counted

#: precision -> key of a node precision file, and its name for people
_LISTS: Final = {"fp32": "FP32NodeInstanceNames", "fp16": "FP16NodeInstanceNames"}
_WORDS: Final = {"fp32": "float32", "fp16": "float16"}


@dataclass(frozen=True, slots=True)
class PrecisionPlan:
    """Nodes that stay in a higher precision, and what that gains.

    Parameters
    ----------
    model, to, target, keep
        The requested settings.
    nodes
        First outputs of the nodes, as node precision files have them, in the order of the graph; of a unit
        that rounds once all its nodes.
    units, of
        Number of units that were chosen, and that could have been.
    before, after
        The metric of the target on the samples that were searched on, without the nodes and with them.
    standard_error
        Of `after`: how far it depends on which samples those are.
    held_out
        The metric on samples that the search has not seen, with the nodes; NaN where there were too few
        samples.
    is_reached
        Whether the target holds on all samples.
    is_safe
        Whether it was searched with a margin of three standard errors, which is left out where even all nodes
        in the higher precision do not have it.
    samples
        Number of samples that were searched on.
    runs
        Number of programs that were compiled and run.
    seconds
        How long it took.
    lists
        Content of the file: these nodes, and those of the node precision file among the compile options.
    """

    model: str
    to: str
    target: Target
    keep: str
    nodes: tuple[str, ...]
    units: int
    of: int
    before: float
    after: float
    standard_error: float
    held_out: float
    is_reached: bool
    is_safe: bool
    samples: int
    runs: int
    seconds: float
    lists: NodePrecision

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write a node precision file, complete or not at all; the same plan gives the same bytes."""
        import yaml

        target = Path(path)
        count = f"{self.units} of {self.of} units stay in {_WORDS[self.keep]}"
        head = f"# {count}: {self.target.text} for {self.to}\n"
        lists = {
            title: [*getattr(self.lists, name)]
            for name, title in _LISTS.items()
            if name == self.keep or getattr(self.lists, name)
        }
        text = head + yaml.safe_dump(lists, sort_keys=False, allow_unicode=True, width=1 << 20)
        replace_bytes(target, text.encode())
        return target

    def to_json(self) -> dict[str, object]:
        """Return everything as values that JSON has."""
        return {
            "model": self.model,
            "to": self.to,
            "target": self.target.text,
            "keep": self.keep,
            "nodes": list(self.nodes),
            "units": self.units,
            "of": self.of,
            "before": _json(self.before),
            "after": _json(self.after),
            "standard_error": _json(self.standard_error),
            "held_out": _json(self.held_out),
            "is_reached": self.is_reached,
            "is_safe": self.is_safe,
            "samples": self.samples,
            "runs": self.runs,
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        """Return the plan as text."""
        show = self.target.show
        names = f" ({len(self.nodes)} names)" if len(self.nodes) != self.units else ""
        back = (
            "no held-out samples"
            if math.isnan(self.held_out)
            else f"on held-out samples {show(self.held_out)}"
        )
        lines = [
            f"{self.model} in {self.to}: {self.units} of {self.of} units{names} stay in "
            f"{_WORDS[self.keep]} for {self.target.text}",
            f"before {show(self.before)}, after {show(self.after)} on {counted(self.samples, 'sample')}, "
            f"{back}; {counted(self.runs, 'program')}, {self.seconds:.1f} s",
            *(f"  {name}" for name in self.nodes),
        ]
        if not self.is_safe:
            lines.append(
                "no margin: even if all units stay, the result is within three standard errors of the bound"
            )
        if not self.is_reached:
            lines.append("the held-out samples miss the target: search with more samples")
        return "\n".join(lines)


def _json(value: float) -> object:
    if math.isfinite(value):
        return value
    return None if math.isnan(value) else "inf" if value > 0 else "-inf"
