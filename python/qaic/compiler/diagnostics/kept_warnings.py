"""Warnings of a compilation, kept beside its container in the cache.

A second compilation of a model takes the container from the cache, and warns all the same.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from typing import TYPE_CHECKING, Final

from qaic.compiler.diagnostics.log_tap import tapped
from qaic.support.atomic_io import write_replacing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NAME: Final = "warnings.json"
#: what is longer was not written by us
_LARGEST_BYTES: Final = 1 << 20


@contextlib.contextmanager
def collected() -> Iterator[list[str]]:
    """Collect the warnings of the compiler that this thread logs meanwhile; they are shown as well."""
    texts: list[str] = []
    own = threading.get_ident()

    def take(record: logging.LogRecord) -> None:
        is_ours = record.name.partition(".report")[0] == "qaic.compiler"
        if is_ours and record.thread == own and record.levelno == logging.WARNING:
            texts.append(record.getMessage())

    with tapped(take):
        yield texts


def keep(program: Path, texts: list[str]) -> None:
    """Keep the warnings about a program; without any, forget earlier ones."""
    path = program.with_name(_NAME)
    with contextlib.suppress(OSError):
        if texts:
            write_replacing(path, lambda temporary: _write(temporary, texts))
        else:
            path.unlink(missing_ok=True)


def _write(path: Path, texts: list[str]) -> None:
    path.write_text(json.dumps(texts, ensure_ascii=False), encoding="utf-8")


def repeat(program: Path) -> None:
    """Log the warnings that were kept about a program."""
    path = program.with_name(_NAME)
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            return
        texts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        # None were kept; a damaged file costs no more than its warnings.
        return
    if isinstance(texts, list):
        for text in texts:
            logging.getLogger("qaic.compiler").warning("%s", text)
