"""Text for people: values in messages, and names that come from files and devices."""

from __future__ import annotations

_LONGEST_VALUE = 60


def format_value(value: object) -> str:
    """Return a short printable form of a value for an error message."""
    if value is None:
        return "nothing"
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        # Python refuses to print integers of thousands of digits.
        text = f"a huge {type(value).__name__}"
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def escape_unprintable(text: str) -> str:
    r"""Replace what could move a cursor or reorder a line by its escape, as in ``\u202e``."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
