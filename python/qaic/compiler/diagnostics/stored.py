"""The diagnostics of a compilation as a section of its container, if there are any.

The same model and options give the same bytes, so a message names an option and not the path of its file.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from qaic import _core
from qaic.compiler.diagnostics.record import Diagnostic
from qaic.errors import QpcError
from qaic.support.program_names import DIAGNOSTICS_SECTION

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from os import PathLike

#: of nodes for each diagnostic, so that the section stays small
_MOST_NODES: Final = 100
_SEVERITIES: Final = ("warning", "note")


def encode(items: Sequence[Diagnostic]) -> bytes:
    """Write the diagnostics of a program as the content of the section; what is no text becomes a `?`."""
    entries = [
        {
            "severity": item.severity,
            "code": item.code,
            "message": item.message,
            "nodes": item.nodes[:_MOST_NODES],
        }
        for item in items
        if item.is_of_program
    ]
    text = json.dumps(entries, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "replace")


def read(program: _core.Qpc) -> tuple[Diagnostic, ...]:
    """Read the diagnostics of a container; entries that are none are left out."""
    try:
        section = program.elf_section(DIAGNOSTICS_SECTION)
    except QpcError:
        # Slices have no program, and a damaged one is the business of whatever reads the program.
        return ()
    return () if section is None else tuple(_decoded(bytes(section)))


def load(path: str | PathLike[str]) -> tuple[Diagnostic, ...]:
    """Read the diagnostics of a container file; see `read`."""
    return read(_core.Qpc(path))


def _decoded(content: bytes) -> Iterator[Diagnostic]:
    try:
        entries = json.loads(content)
    except (ValueError, RecursionError):
        return
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict) or entry.get("severity") not in _SEVERITIES:
            continue
        nodes = entry.get("nodes")
        yield Diagnostic(
            entry["severity"],
            str(entry.get("code", "")),
            str(entry.get("message", "")),
            tuple(map(str, nodes)) if isinstance(nodes, list) else (),
        )
