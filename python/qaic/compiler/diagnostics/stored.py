"""Diagnostics of a compilation, stored beside its container in the cache.

A second compilation of a model takes the container from the cache, and warns all the same. They do not stand
in the container: the same model and options give the same bytes, and messages name files by their paths.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from qaic.compiler.diagnostics.record import Diagnostic
from qaic.support.atomic_io import write_replacing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NAME: Final = "diagnostics.json"
#: what is longer was not written by us
_LARGEST_BYTES: Final = 1 << 20
#: of nodes for each diagnostic, so that the file stays below that
_MOST_NODES: Final = 100
_SEVERITIES: Final = ("warning", "note")


def store(program: Path, items: Sequence[Diagnostic]) -> None:
    """Store the diagnostics of a program; without any, forget earlier ones."""
    path = program.with_name(NAME)
    with contextlib.suppress(OSError):
        if items:
            held = [asdict(item) | {"nodes": item.nodes[:_MOST_NODES]} for item in items]
            text = json.dumps(held, ensure_ascii=False)
            write_replacing(path, lambda aside: _write(aside, text))
        else:
            path.unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def load(program: Path) -> list[Diagnostic]:
    """Load the diagnostics of a program; a damaged file costs no more than itself."""
    path = program.with_name(NAME)
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            return []
        held = json.loads(path.read_text(encoding="utf-8"))
        return [_diagnostic(entry) for entry in held]
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        return []


def _diagnostic(entry: dict[str, object]) -> Diagnostic:
    severity, code, message, nodes = (entry[key] for key in ("severity", "code", "message", "nodes"))
    if severity not in _SEVERITIES or not isinstance(nodes, list):
        raise ValueError(severity)
    return Diagnostic(str(severity), str(code), str(message), tuple(map(str, nodes)))
