"""The section of a page that holds the timeline: places for the script to draw in, controls, help."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qaic.support.text import counted
from qaic.support.text import escape_html as escape

if TYPE_CHECKING:
    from qaic.page.timeline import Timeline

_KEYS = (
    ("wheel", "zooms once the timeline was clicked, or with Ctrl; with Shift it moves"),
    ("drag", "moves; with Shift it measures an interval; two fingers zoom"),
    ("+ - w s", "zoom"),
    ("\u2190 \u2192 a d", "move"),
    ("\u2191 \u2193", "choose in the row above or below"),
    ("n p", "choose the next or last operation that is searched for"),
    ("Enter", "go to the row of the chosen operation in the tables"),
    ("Home", "everything"),
    ("/", "search"),
    ("Esc", "choose nothing"),
)


def timeline_html(timeline: Timeline) -> str:
    """Return the body of the section."""
    keys = "".join(f"<dt><kbd>{escape(key)}</kbd></dt><dd>{escape(what)}</dd>" for key, what in _KEYS)
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in timeline.notes)
    rows = len(timeline.tracks)
    return f"""<div class="tools">
<label>Search <input type="search" data-part="search" placeholder="name, kind or node"
 aria-describedby="hits"></label>
<span class="count" id="hits" data-part="hits" role="status"></span>
<label>Inference <select data-part="samples"></select></label>
<span class="push"></span>
<button type="button" data-part="left" aria-label="Move left">\u2190</button>
<button type="button" data-part="right" aria-label="Move right">\u2192</button>
<button type="button" data-part="in" aria-label="Zoom in">+</button>
<button type="button" data-part="out" aria-label="Zoom out">\u2212</button>
<button type="button" data-part="all">All</button>
</div>
<div class="timeline">
<canvas data-part="mini" class="mini" aria-hidden="true"></canvas>
<div class="rows" data-part="rows" tabindex="0" role="application"
 aria-label="Timeline of {counted(timeline.operations, "operation")} in {counted(rows, "row")}"
 aria-describedby="timeline-keys">
<div class="spacer" data-part="spacer"></div><canvas data-part="canvas" aria-hidden="true"></canvas></div>
</div>
<p class="note" data-part="wheel" hidden>Click the timeline first, or hold Ctrl, to zoom with the wheel.</p>
<ul class="legend" data-part="legend" aria-label="Kinds by time"></ul>
<div class="panel" data-part="panel" aria-live="polite">\
<p class="note">Select an operation to see its details. Hold Shift and drag to measure an interval.</p></div>
<div class="tip" data-part="tip" role="tooltip" hidden></div>
{notes}
<details class="keys"><summary>Keys and gestures</summary>
<dl class="facts" id="timeline-keys">{keys}</dl></details>
<noscript><p class="note">The timeline needs scripts. The tables below are complete without.</p></noscript>"""
