"""The page of a drawn graph: the picture, what it counts, and a table that is complete without scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from qaic.page.document import document
from qaic.page.graph import pack
from qaic.support.text import counted
from qaic.support.text import escape_html as escape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qaic.page.document import Part
    from qaic.page.graph import DrawnGraph

_KEYS: Final = (
    ("wheel", "zooms once the graph was clicked, or with Ctrl"),
    ("drag", "moves; two fingers zoom"),
    ("click", "chooses a node and shows what it is"),
    ("double click, Enter", "opens a group"),
    ("Backspace", "closes the group around the selected node"),
    ("\u2190 \u2192 \u2191 \u2193", "select a neighbor: in the same row, an input, a reader"),
    ("n p", "select the next or previous match"),
    ("+ -", "zoom"),
    ("Home", "everything"),
    ("/", "search"),
    ("Esc", "choose nothing"),
)


def graph_page(*graphs: DrawnGraph, title: str, subtitle: str, parts: Sequence[Part]) -> str:
    """Return a page as HTML.

    Parameters
    ----------
    graphs
        Graphs to draw; the page opens with the first and has a switch between them.
    title, subtitle
        Text.
    parts
        Of each section below the picture its id, title and HTML.
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
<span class="push"></span>
<button type="button" data-part="open">Open all</button>
<button type="button" data-part="close">Close all</button>
<button type="button" data-part="in" aria-label="Zoom in">+</button>
<button type="button" data-part="out" aria-label="Zoom out">\u2212</button>
<button type="button" data-part="all">All</button>
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
<noscript><p class="note">The picture needs scripts. The tables below are complete without.</p></noscript>"""
