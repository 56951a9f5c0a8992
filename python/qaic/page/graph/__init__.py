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

from qaic.page.document import Part, document
from qaic.page.graph.groups import grouped
from qaic.page.kind_colors import OTHER, PALETTE
from qaic.support.text import counted, escape_unprintable
from qaic.support.text import escape_html as escape

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


_KEYS: Final = (
    ("wheel", "zoom, after a click on the graph or with Ctrl"),
    ("drag", "move; two fingers zoom"),
    ("click", "select a node and show its details"),
    ("double click, Enter", "open a group"),
    ("Backspace", "close the group around the selected node"),
    ("\u2190 \u2192 \u2191 \u2193", "select a neighbor: in the same row, an input, a reader"),
    ("n p", "select the next or previous match"),
    ("+ -", "zoom"),
    ("Home", "show everything"),
    ("/", "search"),
    ("Esc", "clear the selection"),
)


def graph_page(*graphs: DrawnGraph, title: str, subtitle: str, parts: Sequence[Part]) -> str:
    """Return a page as HTML, which opens with the first graph and has a switch between them.

    `title` and `subtitle` are text; `parts` has id, title and HTML of each section below the picture.
    """
    sections = [("graph", "Graph", graph_html(graphs)), *parts]
    return document(title, subtitle, sections, graph=pack(graphs))


def graph_html(graphs: Sequence[DrawnGraph]) -> str:
    """Return the body of the section with the picture."""
    keys = "".join(f"<dt><kbd>{escape(key)}</kbd></dt><dd>{escape(what)}</dd>" for key, what in _KEYS)
    notes = "".join(
        f'<p class="note">{escape(note)}</p>'
        for note in dict.fromkeys(note for graph in graphs for note in graph.notes)
    )
    return f"""<div class="tools">
<label>Search <input type="search" data-part="search" placeholder="name, operator or value"
 aria-describedby="graph-hits"></label>
<span class="count" id="graph-hits" data-part="hits" role="status"></span>
<label>Show <select data-part="which"></select></label>
<label>Color <select data-part="coloring"></select></label>
<span class="push">
<button type="button" data-part="open">Open all</button>
<button type="button" data-part="close">Close all</button>
<button type="button" data-part="in" aria-label="Zoom in">+</button>
<button type="button" data-part="out" aria-label="Zoom out">\u2212</button>
<button type="button" data-part="all">Fit</button></span>
</div>
<div class="graph" data-part="area" tabindex="0" role="application"
 aria-label="Graph of {counted(len(graphs[0].nodes), "node")}" aria-describedby="graph-keys">
<canvas data-part="canvas" aria-hidden="true"></canvas></div>
<p class="note" data-part="wheel" hidden>Click the graph first, or hold Ctrl, to zoom with the wheel.</p>
<ul class="legend" data-part="legend" aria-label="Colors"></ul>
<div class="panel" data-part="panel" aria-live="polite">\
<p class="note">Select a node to see its details. A double click opens a group.</p></div>
{notes}
<details class="keys"><summary>Keys and gestures</summary>
<dl class="facts" id="graph-keys">{keys}</dl></details>
<noscript><p class="note">The graph needs scripts; the tables below have the same data.</p></noscript>"""
