"""Text of files, made safe and visible: no name can become markup or reorder the lines of a page."""

from __future__ import annotations

import html
import re

# C0 and C1 controls, what reorders text (bidirectional controls), separators of lines, halves of pairs, and
# the two places that are never characters.
_UNSHOWABLE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff\ufffe\uffff]"
)


def visible(text: str) -> str:
    r"""Replace what cannot be shown by its escape, as in ``\u202e``."""
    return _UNSHOWABLE.sub(
        lambda found: found.group().encode("unicode_escape", "surrogatepass").decode(), text
    )


def escape(text: object) -> str:
    """Text as it is written between tags and in quoted attributes of HTML and SVG."""
    return html.escape(visible(str(text)), quote=True)
