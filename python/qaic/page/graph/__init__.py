"""A drawn graph: boxes, arrows and colors, and its encoding in a page.

A graph of 9,000 nodes must open immediately. Nodes are therefore in groups, closed at first if there are
many, and the page contains deflated columns with each text once.
"""

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from qaic.page.document import Part, document, filled, notes_html
from qaic.page.graph.groups import grouped
from qaic.page.kind_colors import OTHER, PALETTE
from qaic.support.text import counted, escape_unprintable

#: largest number of characters of a text; names in models may have megabytes
_LONGEST: Final = 2000
#: largest number of facts of one node, such as its inputs
_MOST_FACTS: Final = 64


@dataclass
class DrawnNode:
    """One box."""

    #: Name of the node; ``/`` in it divides the groups that contain the node.
    name: str
    #: Operator, the larger text in the box.
    kind: str
    #: Names and values that the page shows when the node is selected.
    facts: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Coloring:
    """One way to color the boxes: by a text, or by an amount."""

    #: Name of the coloring, such as ``precision``.
    name: str
    #: A text for each node, or "".
    texts: Sequence[str] = ()
    #: Microseconds for each node instead of texts; None if the node was not measured.
    amounts: Sequence[float | None] = ()
    #: Color of each text, in the order of the legend; without them, the most frequent text comes first.
    colors: Mapping[str, str] = field(default_factory=dict)


@dataclass
class DrawnGraph:
    """Boxes in an order in which arrows point forward, and arrows."""

    #: Nodes in an order in which the producer of a value comes before its readers.
    nodes: list[DrawnNode]
    #: Indices of the nodes at the start and end of an arrow, and the name of its value.
    edges: list[tuple[int, int, str]]
    #: Colorings; the page opens with the first.
    colorings: list[Coloring]
    #: Sentences below the picture.
    notes: list[str] = field(default_factory=list)
    #: Name of the graph, if a page has several.
    label: str = ""


def pack(graphs: Sequence[DrawnGraph]) -> str:
    """Return base64 of deflated JSON: a list with an entry for each graph."""
    body = json.dumps([_held(graph) for graph in graphs], separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(zlib.compress(body, 6)).decode()


def _held(graph: DrawnGraph) -> dict[str, Any]:
    texts = _Texts()
    return {
        "label": graph.label,
        "names": [texts.add(node.name) for node in graph.nodes],
        "kinds": [texts.add(node.kind) for node in graph.nodes],
        "facts": [
            [texts.add(text) for fact in node.facts[:_MOST_FACTS] for text in fact] for node in graph.nodes
        ],
        "edges": [part for begin, end, value in graph.edges for part in (begin, end, texts.add(value))],
        "groups": [
            [group.first, group.end, group.parent, texts.add(group.label)]
            for group in grouped([node.name for node in graph.nodes], [node.kind for node in graph.nodes])
        ],
        "colorings": [_coloring(coloring) for coloring in graph.colorings],
        "texts": texts.known,
    }


class _Texts:
    """Distinct texts in the order of their first use."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def add(self, text: str) -> int:
        if len(text) > _LONGEST:
            text = f"{text[: _LONGEST // 2]}..{text[-_LONGEST // 2 :]}"
        return self._places.setdefault(text, len(self._places))

    @property
    def known(self) -> list[str]:
        return [escape_unprintable(text) for text in self._places]


def _coloring(coloring: Coloring) -> dict[str, Any]:
    if coloring.amounts:
        return {"name": coloring.name, "amounts": list(coloring.amounts)}
    values = ordered(coloring.texts)
    if coloring.colors:
        values.sort(key=[*coloring.colors, *values].index)
    places = {value: place for place, value in enumerate(values)}
    return {
        "name": coloring.name,
        "values": [escape_unprintable(value) or "not known" for value in values],
        "colors": [
            coloring.colors.get(value) or color_of(value, place) for place, value in enumerate(values)
        ],
        "codes": [places[text] for text in coloring.texts],
    }


def ordered(texts: Iterable[str]) -> list[str]:
    """Return distinct texts, the most frequent first."""
    counts: dict[str, int] = {}
    for text in texts:
        counts[text] = counts.get(text, 0) + 1
    return sorted(counts, key=lambda text: (-counts[text], text))


#: Precisions have the same color on every page, so that two graphs are easy to compare.
_PRECISIONS: Final = (
    "float32", "float16", "int8", "uint8", "bfloat16", "int32", "int64", "bool", "int16", "uint16", "float64",
)  # fmt: skip


def color_of(value: str, place: int) -> str:
    """Return the color of a text; ``place`` is its index in the order of texts."""
    if value in _PRECISIONS:
        return PALETTE[_PRECISIONS.index(value)]
    return PALETTE[place] if value and place < len(PALETTE) else OTHER


def graph_page(*graphs: DrawnGraph, title: str, subtitle: str, parts: Sequence[Part]) -> str:
    """Return a page as HTML, which opens with the first graph and has a switch between them.

    `title` and `subtitle` are text; `parts` has id, title and HTML of each section below the picture.
    """
    sections = [("graph", "Graph", graph_html(graphs)), *parts]
    return document(title, subtitle, sections, graph=pack(graphs))


def graph_html(graphs: Sequence[DrawnGraph]) -> str:
    """Return the body of the section with the picture."""
    notes = dict.fromkeys(note for graph in graphs for note in graph.notes)
    nodes = counted(len(graphs[0].nodes), "node")
    return filled("graph/viewer", nodes=nodes, notes=notes_html(notes))
