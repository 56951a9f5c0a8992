"""Results of a search: the nodes, their gain, and the file that keeps them in higher precision."""

import json
import math
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from qaic.accuracy.metrics import json_value
from qaic.accuracy.precision_search.targets import Target
from qaic.options.files.node_precision import NodePrecision
from qaic.support.atomic_io import replace_bytes
from qaic.support.text import counted

#: precision -> key of a node precision file, and its name for people
_LISTS: Final = {"fp32": "FP32NodeInstanceNames", "fp16": "FP16NodeInstanceNames"}
_WORDS: Final = {"fp32": "float32", "fp16": "float16"}


@dataclass(frozen=True, slots=True)
class PrecisionPlan:
    """Nodes that stay in a higher precision, and the improvement.

    Parameters
    ----------
    model, to, target, keep
        The requested settings.
    nodes
        First outputs of the nodes, in the order of the graph. The list contains all nodes of a fused
        operation, which rounds once.
    operations, of
        Number of operations with these nodes, and of all operations that round.
    before, after
        Value of the target's measure on the samples of the search, before and after the nodes are kept.
    standard_error
        Standard error of `after` over these samples.
    held_out
        Value of the measure, with the nodes, on samples that the search did not use; NaN if there were too
        few samples.
    is_reached
        True if the target holds on all samples.
    is_safe
        True if the search required a margin of three standard errors. It requires none if the margin is
        missed even with all nodes in the higher precision.
    samples
        Number of samples of the search.
    runs
        Number of programs that were compiled and run.
    seconds
        Duration of the search.
    lists
        Content of the file: these nodes, and those of the given node precision file.
    """

    model: str
    to: str
    target: Target
    keep: str
    nodes: tuple[str, ...]
    operations: int
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
        """Write a node precision file atomically; the same plan gives the same bytes."""
        import yaml

        target = Path(path)
        head = f"# {self._count}: {self.target.text} for {self.to}\n"
        lists = {
            title: [*getattr(self.lists, name)]
            for name, title in _LISTS.items()
            if name == self.keep or getattr(self.lists, name)
        }
        text = head + yaml.safe_dump(lists, sort_keys=False, allow_unicode=True, width=1 << 20)
        replace_bytes(target, text.encode())
        return target

    def write_json(self, path: str | os.PathLike[str]) -> Path:
        """Write the result of `to_json` to a file atomically, and return its path."""
        target = Path(path)
        replace_bytes(target, json.dumps(self.to_json(), indent=1, allow_nan=False).encode() + b"\n")
        return target

    def to_json(self) -> dict[str, object]:
        """Return all fields as JSON values; NaN becomes None."""
        names = [one.name for one in fields(self) if one.name != "lists"]
        return {name: json_value(getattr(self, name)) for name in names} | {"target": self.target.text}

    @property
    def keeps_all(self) -> bool:
        """True if no operation rounds to the requested precision."""
        return 0 < self.of == self.operations

    @property
    def _count(self) -> str:
        nodes = f" ({counted(len(self.nodes), 'node')})" if len(self.nodes) != self.operations else ""
        return f"{self.operations} of {self.of} operations{nodes} stay in {_WORDS[self.keep]}"

    def __str__(self) -> str:
        """Return the plan as text."""
        show = self.target.show
        back = (
            "no held-out samples"
            if math.isnan(self.held_out)
            else f"on held-out samples {show(self.held_out)}"
        )
        lines = [
            f"{self.model} in {self.to}: {self._count} for {self.target.text}",
            f"before {show(self.before)}, after {show(self.after)} on {counted(self.samples, 'sample')}, "
            f"{back}; {counted(self.runs, 'program')}, {self.seconds:.1f} s",
            *(f"  {name}" for name in self.nodes),
        ]
        if self.keeps_all:
            lines.append(f"no operation is left in {self.to}, so {self.to} has no effect on this model")
        if not self.is_safe:
            lines.append(
                f"no margin: even with all operations in {_WORDS[self.keep]}, the result is within three "
                "standard errors of the bound"
            )
        if not self.is_reached:
            lines.append("the held-out samples miss the target: search with more samples")
        return "\n".join(lines)
