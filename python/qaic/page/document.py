"""One HTML file with its parts, styles and scripts, which a browser opens without a network.

The content policy allows only the styles and scripts with the hashes computed here. Markup that passes the
escaping can therefore neither run code nor send data.
"""

import base64
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template

from qaic import __version__
from qaic.page.kind_colors import OTHER, PALETTE
from qaic.report.html import prose_html
from qaic.support.atomic_io import replace_bytes
from qaic.support.text import escape_html as escape

_SCRIPTS = ("tables", "payload", "tracks", "timeline_model", "timeline_drawing", "timeline")
#: additional files of pages with a graph
_GRAPH_SCRIPTS = ("graph/layout", "graph/drawing", "graph/graph")


@cache
def _style() -> str:
    return "\n" + _source("page.css")


@cache
def _script(*, graph: bool) -> str:
    names = (*_SCRIPTS, *(_GRAPH_SCRIPTS if graph else ()), "start")
    colors = f"const PALETTE = {json.dumps(PALETTE)};\nconst OTHER = {json.dumps(OTHER)};\n"
    return '\n"use strict";\n{\n' + colors + "\n".join(_source(f"{name}.js") for name in names) + "}\n"


def _source(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def filled(template: str, **values: str) -> str:
    """Return the HTML of a template of this package with values, which are HTML too."""
    return Template(_source(f"{template}.html")).substitute(values)


def notes_html(notes: Iterable[str]) -> str:
    """Return sentences below a picture."""
    return "".join(f'<p class="note">{escape(note)}</p>' for note in notes)


def _hash(content: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() + "'"


#: id, title and HTML of a part of a page; with a fourth text, it is closed at first and shows this text
Part = tuple[str, str, str] | tuple[str, str, str, str]


def section(name: str, title: str, body: str, line: str | None = None) -> str:
    """Return one part of a page; ``title`` and ``line`` are text, ``body`` is HTML."""
    head = f"<h2>{escape(title)}</h2>"
    if line is None:
        return f'<section id="{escape(name)}">{head}\n{body}\n</section>\n'
    summary = f"<summary>{head}<span>{prose_html(line)}</span></summary>"
    return f'<section id="{escape(name)}" class="folded"><details>{summary}\n{body}\n</details></section>\n'


def document(
    title: str,
    subtitle: str,
    parts: Sequence[Part],
    *,
    data: str | None = None,
    graph: str | None = None,
    by: str = "",
) -> str:
    """Return a page with some sections.

    `data` is the result of :func:`qaic.page.timeline.pack` if the page has a timeline, and `graph` that of
    :func:`qaic.page.graph.pack` if it has a graph. `title`, `subtitle` and `by`, the device that measured,
    are text.
    """
    script = _script(graph=graph is not None)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(_style())}; "
        "base-uri 'none'; form-action 'none'"
    )
    measured = f"; measured by {by}" if by else ""
    foot = (
        f"Written by openqaic {__version__}{measured}. This file contains all its data and needs no network."
    )
    links = "".join(
        f'<li><a href="#{escape(name)}">{escape(heading)}</a></li>' for name, heading, *_ in parts
    )
    carried = "".join(
        f'<script type="text/plain" id="{name}-data">{held}</script>\n'
        for name, held in (("timeline", data), ("graph", graph))
        if held is not None
    )
    return filled(
        "document",
        policy=escape(policy),
        title=escape(title),
        style=_style(),
        subtitle=escape(subtitle),
        links=links,
        sections="".join(section(*part) for part in parts),
        foot=escape(foot),
        data=carried,
        script=script,
    )


def write_bytes(path: str | os.PathLike[str], content: bytes) -> Path:
    """Write a file atomically; returns its path."""
    target = Path(path)
    replace_bytes(target, content)
    return target
