"""Errors of nodes, which a report of ``openqaic accuracy --json`` contains, as colors of a drawn graph."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from qaic.accuracy.metrics import decibel_text
from qaic.errors import InputError
from qaic.page.graph import Coloring
from qaic.page.kind_colors import OTHER
from qaic.support.json import parse_json
from qaic.support.open_regular import read_text

_NOT_COMPARED: Final = "not compared"
#: SQNR in dB below which a step begins, its text and its color
_STEPS: Final = (
    (20.0, "below 20 dB", "#e25f4c"),
    (40.0, "20 to 40 dB", "#f5a765"),
    (60.0, "40 to 60 dB", "#fbe3b5"),
    (math.inf, "60 dB or more", "#cfe8d5"),
)
_COLORS: Final = {text: color for _, text, color in _STEPS} | {_NOT_COMPARED: OTHER}


@dataclass(frozen=True)
class NodeErrors:
    """Errors of the nodes of a model in one precision."""

    #: Name of the precision, such as ``fp16``.
    to: str
    #: Output of a node, or of a node that is fused with it -> own and inherited SQNR in dB, reason of a loss.
    nodes: dict[str, tuple[tuple[float, float], str]]

    def facts(self, outputs: Iterable[str]) -> list[tuple[str, str]]:
        """Return the errors of the node with these outputs as facts; empty if it was not compared."""
        found = next((self.nodes[name] for name in outputs if name in self.nodes), None)
        if found is None:
            return []
        sides, reason = found
        facts = [*zip(("own SQNR", "inherited SQNR"), map(decibel_text, sides), strict=True)]
        facts += [] if reason == "none" else [("reason", reason)]
        return [(f"{name} in {self.to}", text) for name, text in facts]

    def colorings(self, outputs: Sequence[Sequence[str]]) -> list[Coloring]:
        """Return colorings by own and by inherited errors; ``outputs`` contains the outputs of each node."""
        places = [next((name for name in names if name in self.nodes), None) for names in outputs]
        return [
            Coloring(
                f"{side} error in {self.to}",
                [_NOT_COMPARED if name is None else _step(self.nodes[name][0][at]) for name in places],
                colors=_COLORS,
            )
            for at, side in enumerate(("own", "inherited"))
        ]


def _step(sqnr_db: float) -> str:
    # NaN is not below any limit.
    if math.isnan(sqnr_db):
        return _NOT_COMPARED
    return next((text for limit, text, _ in _STEPS if sqnr_db < limit), _STEPS[-1][1])


def read_errors(path: Path, hints: tuple[str, ...]) -> list[NodeErrors]:
    """Read a report of ``openqaic accuracy --json``, an entry for each precision. Blocking.

    Raises OSError if the file cannot be read, and InputError with `hints` if it is no such report, or has no
    nodes.
    """
    try:
        report = parse_json(read_text(path).encode())
        read = [_of(item) for item in report["precisions"]]
    except KeyError as error:
        found = f"no {error}"
    except TypeError:
        found = "other values"
    except ValueError as error:
        found = f"other text ({error})"
    else:
        if any(item.nodes for item in read):
            return read
        found = "no nodes"
    raise InputError(
        f"--errors {path}: found {found}, expected the errors of nodes that "
        "`openqaic accuracy --json FILE` writes",
        code="input.accuracy_report",
        hints=hints,
        context={"path": str(path)},
    )


def _of(item: dict[str, Any]) -> NodeErrors:
    nodes = {}
    for node in item["nodes"]:
        sides = (_number(node["own_sqnr_db"]), _number(node["inherited_sqnr_db"]))
        for name in (*node["fused"], node["name"]):
            nodes[str(name)] = (sides, str(node["reason"]))
    return NodeErrors(str(item["to"]), nodes)


def _number(value: float | str | None) -> float:
    return math.nan if value is None else float(value)
