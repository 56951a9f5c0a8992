"""Generates `docs/adr/README.md`: the index of decisions with their status, from the records."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs" / "adr"
_TITLE: Final = re.compile(r"# (\d+)\. (.+)")
_STATUS: Final = re.compile(r"Superseded (in part )?by \[.+\.")
_INTRODUCTION: Final = """\
# Decisions

Each record states a decision, its reasons and its costs ([1](0001-record-decisions.md)). A record is in
force unless its second paragraph names the one that replaces it. Missing numbers were merged into
[CONTRIBUTING.md](../../CONTRIBUTING.md). `make docs` writes this page from the records.

| | decision | status |
|---:|---|---|
"""


def render() -> str:
    """Write the page.

    Raises
    ------
    ValueError
        A record does not begin with ``# NUMBER. TITLE``, or its number is not that of its file.
    """
    rows = []
    for path in sorted(FOLDER.glob("[0-9]*.md")):
        lines = path.read_text().splitlines()
        title = _TITLE.fullmatch(lines[0])
        if title is None or int(title[1]) != int(path.name[:4]):
            message = f"{path.name}: found {lines[0]!r}, expected '# {int(path.name[:4])}. TITLE'"
            raise ValueError(message)
        status = next((line.removesuffix(".") for line in lines[1:4] if _STATUS.fullmatch(line)), "in force")
        rows.append(f"| {title[1]} | [{title[2]}]({path.name}) | {status} |\n")
    return _INTRODUCTION + "".join(rows)


if __name__ == "__main__":
    sys.stdout.write(render())
