"""Parts that the JSON files of ``qaic-runner`` share: an object, texts, and paths relative to the file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final, NoReturn

from qaic.cli.runner.inputs.requests import resolve
from qaic.errors import InputError

# Halves of characters: JSON can write them, no name of a file or binding has them.
_SURROGATES: Final = re.compile("[\ud800-\udfff]")


def refuse(where: str, why: str) -> NoReturn:
    """Refuse the content of a file.

    Raises
    ------
    InputError
        With the place in the file and the reason.
    """
    raise InputError(f"{where}: {why}", code="runner.batch_json")


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file; what holds no object gives an empty one."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        refuse(str(path), f"not JSON: {error}")
    return document if isinstance(document, dict) else {}


def text_of(entry: dict[str, Any], name: str, where: str) -> str:
    """Return a value that is a text.

    Raises
    ------
    InputError
        It is missing, empty or no text.
    """
    if name not in entry:
        refuse(where, f'"{name}" is missing')
    value = entry[name]
    if not isinstance(value, str) or not value or "\0" in value or _SURROGATES.search(value):
        refuse(where, f'"{name}" is {value!r}; a text is expected')
    return value


def located(entry: dict[str, Any], name: str, folder: Path, where: str) -> Path:
    """Return a value that is a path, completed by the folder of the file, which a relative one may not leave.

    Raises
    ------
    InputError
        It is no text, or leaves the folder.
    """
    text = text_of(entry, name, where)
    path = resolve(text, folder)
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
    except RuntimeError:  # links in a circle
        inside = False
    if not inside and not Path(text).is_absolute():
        refuse(
            where,
            f'"{name}" is {text!r}, which leads out of {str(folder)!r}, the folder of this file; '
            "put the data there, or write an absolute path",
        )
    return path
