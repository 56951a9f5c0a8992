"""Option names in messages as the flags of a command line.

The compiler does not know how it was called, and the cache keeps its messages. So messages name options as
keywords, and a tool that takes flags writes these in their place when it prints.
"""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from typing import TYPE_CHECKING, Final

from qaic.options.argv import written
from qaic.options.table import SPECS

if TYPE_CHECKING:
    from qaic.options.spec import OptionSpec

#: keywords that are no word of English: those of several words, and this
_ONE_WORD: Final = frozenset({"batchsize"})
_QUOTED: Final = r"""(?<!\w)'(?:[^'\\\n]|\\.)*'(?!\w)|"(?:[^"\\\n]|\\.)*"|`[^`\n]*`"""
#: a name as it is written in an options file
_IN_FILE: Final = r" \([^()\n]*, line \d+\)"
_CLOSING: Final = {"{": "}", "[": "]", "(": ")"}


def with_flags(text: str, dashes: str) -> str:
    """Return a message with flags in place of keywords.

    Parameters
    ----------
    text
        Message; ``keyword=value`` with a value as Python writes it becomes the flags that give it. What is in
        quotes is a name or text of a user and stays.
    dashes
        What flags of several letters begin with, ``-`` or ``--``.
    """
    by_name = _by_name()
    parts = []
    place = 0
    for found in _pattern().finditer(text):
        if found.start() < place or (name := found.group("name")) is None:
            continue
        spec = by_name[name]
        value, end = _value(text, found.end())
        flags = _flags(spec, value, dashes) if end > found.end() else None
        if flags is None:
            flags, end = _dashed(f"-{spec.flag.text}" if spec.flag else name, dashes), found.end()
        parts += [text[place : found.start()], flags]
        place = end
    return "".join([*parts, text[place:]])


@cache
def _by_name() -> dict[str, OptionSpec]:
    named = (spec for spec in SPECS if "_" in spec.name or spec.name in _ONE_WORD)
    return {spec.name: spec for spec in named if spec.flag is not None}


@cache
def _pattern() -> re.Pattern[str]:
    names = "|".join(sorted(_by_name(), key=len, reverse=True))
    return re.compile(rf"{_QUOTED}|(?<![\w./\\-])(?P<name>{names})(?![\w/\\-]|\.\w|{_IN_FILE})")


def _value(text: str, place: int) -> tuple[object, int]:
    """Read ``={...}`` or ``=[...]`` after a keyword; returns the value and where it ends."""
    closing = _CLOSING.get(text[place + 1 : place + 2]) if text[place : place + 1] == "=" else None
    end = place
    while closing is not None and (end := text.find(closing, end + 1)) >= 0:
        try:
            return ast.literal_eval(text[place + 1 : end + 1]), end + 1
        except (ValueError, SyntaxError):
            continue
    return None, place


def _flags(spec: OptionSpec, value: object, dashes: str) -> str | None:
    from qaic.options.codecs.scalars import ValueMismatchError

    try:
        arguments = written(spec, spec.codec.parse(value))
    except ValueMismatchError:
        return None
    return shlex.join(_dashed(argument, dashes) for argument in arguments)


def _dashed(flag: str, dashes: str) -> str:
    word = flag.removeprefix("-")
    return f"{dashes}{word}" if len(word.partition("=")[0]) > 1 else flag
