"""Patterns for names of programs: the regular expressions that ECMAScript and Python read alike."""

from __future__ import annotations

import re

# What may follow "(?" in ECMAScript; everything else there is Python's own.
_GROUPS = (":", "=", "!")

# Escapes of ECMAScript that mean the same in Python; others with a letter are refused.
_ESCAPES = frozenset("dDwWsSbBtnrfvxu0")


def compile_pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern, which the whole name of a program has to match.

    Classes of characters are those of ASCII, as in ECMAScript.

    Raises
    ------
    ValueError
        It is not a regular expression, or uses what one of the two languages does not have.
    """
    position = 0
    in_class = False
    while position < len(text):
        rest = text[position:]
        if rest[0] == "\\" and len(rest) > 1:
            letter = rest[1]
            if letter.isalpha() and letter not in _ESCAPES:
                raise ValueError(f"it has the escape \\{letter}, which is not supported")
            position += 2
            continue
        if in_class:
            if rest.startswith(("[:", "[.", "[=")):
                raise ValueError(
                    f"it has {rest[:2]!r} in a class, which is not supported; name the characters"
                )
            in_class = rest[0] != "]"
        elif rest[0] == "[":
            in_class = True
            # In ECMAScript a class may be empty; in Python its first bracket is a character.
            if rest.startswith(("[]", "[^]")):
                raise ValueError("it has an empty class, which is not supported")
        elif rest.startswith("(?") and not rest.startswith(_GROUPS, 2):
            raise ValueError(f"it has the group {rest[:3]!r}, which is not supported")
        elif rest.startswith(("*+", "++", "?+", "}+")):
            raise ValueError(f"it has {rest[:2]!r}, which is no quantifier")
        position += 1
    try:
        return re.compile(text, re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"it is no regular expression: {error}") from None
