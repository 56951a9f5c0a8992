"""Decoders of real size in the performance report, from the table that `language_models.py` writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .harness.row import table
from .harness.spread import digits3

if TYPE_CHECKING:
    from collections.abc import Iterable

_DOCS = Path(__file__).parents[2] / "docs"
PAGE = _DOCS / "language-models.md"
_REPORT = _DOCS / "performance.md"
HEADING = "Time per token of decoders of real size"
_BEGIN, _END = "<!-- benches/language_models.py -->\n", "<!-- end of the table -->\n"
_KEPT = ("program", "weights", "threads", "bytes per weight", "prompt, tokens/s", "tokens/s")
_HEADS = [*_KEPT, "limit, tokens/s", "share of the limit"]


def _parts() -> tuple[str, list[str], str]:
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    written, _, after = rest.partition(_END)
    return before, written.splitlines(), after


def note() -> str:
    """Return the text before the table of limits, with the machine of the measurement."""
    _, (where, *_), _ = _parts()
    return (
        "The limit is the rate of tokens if a token takes only the time that the same threads need to read "
        "its weights from memory. This time was measured between tokens. `python benches/language_models.py "
        "--peers PYTHON --write` measures all rows in one run and also updates this page. [Speed of language "
        "models](language-models.md) describes the programs and shows all columns. Decoder and "
        f"machine: {where[:-1]}."
    )


def limits() -> tuple[list[str], list[list[str]]]:
    """Return the table of limits, from the written table."""
    _, lines, _ = _parts()
    heads, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"
    ]
    made = []
    for row in rows:
        of = dict(zip(heads, row, strict=True))
        # Each token reads the same number of bytes.
        limit = float(of["tokens/s"]) * float(of["limit, GB/s"]) / float(of["read, GB/s"])
        made.append([*(of[head] for head in _KEPT), digits3(limit), of["share of the limit"]])
    return _HEADS, made


def section() -> str:
    """Return the section of the report."""
    lines = ["", f"## {HEADING}", "", note(), "", *table(*limits())]
    return "\n".join(lines) + "\n"


def write(lines: Iterable[str]) -> None:
    """Write a measured table to the page of language models, and its limits to the report."""
    before, _, after = _parts()
    PAGE.write_text(before + _BEGIN + "\n".join(lines) + "\n" + _END + after)
    text, _, rest = _REPORT.read_text().partition(f"\n## {HEADING}\n")
    _, mark, rest = rest.partition("\n## ")
    _REPORT.write_text(text + section() + mark + rest)
