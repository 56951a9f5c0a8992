"""Text for people: values in messages, and names that come from files and devices."""

import math
from collections.abc import Iterable
from itertools import islice
from numbers import Integral
from typing import Final

_LONGEST_VALUE: Final = 60
#: largest number of compared characters of a name, and of compared names. The time is quadratic in the
#: number of characters, and models have up to a million names
_LONGEST_NAME: Final = 200
_MOST_NAMES: Final = 5000
#: range of numbers that are written without a power of ten
_SMALLEST, _LARGEST = 1e-7, 1e15
#: largest error of rounding of a percentage
_ROUNDING_PERCENT: Final = 1e-10
#: microseconds of each unit of time
_UNITS: Final = (("s", 1e6), ("ms", 1e3), ("us", 1.0), ("ns", 1e-3))


def duration(us: float) -> str:
    """Return microseconds with three digits, in the unit that suits them, as ``11.0 ms``."""
    if not us:
        return "0 us"
    # A value that rounds to 1000 of a unit is 1.00 of the next unit.
    unit, size = next((pair for pair in _UNITS if abs(us) >= 0.9995 * pair[1]), _UNITS[-1])
    return f"{three_digits(us / size)} {unit}"


def bytes_text(size: float | None) -> str:
    """Return a number of bytes with three digits, by powers of 1024, as ``3.10 KiB``."""
    if size is None:
        return "unknown"
    power = min(4, int(math.log(max(1.0, abs(size)), 1024)))
    shown = three_digits(size / 1024**power)
    return f"{shown} {'KMGT'[power - 1]}iB" if power else counted(round(size), "byte")


def three_digits(value: float) -> str:
    """Return a number of any library with three significant digits; large ones have no point.

    Integers have all digits. Numbers far from 1 have a power of ten.
    """
    if isinstance(value, Integral) and abs(int(value)) < _LARGEST:
        return f"{int(value):,}"
    value = float(value)
    if value and not _SMALLEST <= abs(value) < _LARGEST:
        return f"{value:.2e}"
    if not value or abs(value) >= 99.95:
        return f"{value or 0:,.0f}"
    exponent = math.floor(math.log10(float(f"{abs(value):.2e}")))
    return f"{value:.{2 - exponent}f}"


def percentage(percent: float) -> str:
    """Return a percentage with one decimal, and without one if it is large.

    A percentage that would wrongly round to 0 or 100 has one significant digit of the difference.
    """
    if abs(percent) >= 100.05:
        return three_digits(float(percent))
    missing = 100 - abs(percent)
    # A sum of shares misses 100 by errors of rounding.
    rest = min(abs(percent), missing if abs(missing) > _ROUNDING_PERCENT else 0.0)
    # The exponent after rounding to one digit.
    decimals = -int(f"{rest:.0e}".partition("e")[2]) if 0 < rest <= 0.05 else 1
    return f"{percent:.{decimals}f}"


def counted(number: int, name: str) -> str:
    """Return a number of things, as ``1 node``, ``2 nodes`` and ``2 entries``."""
    if number == 1:
        return f"{number} {name}"
    return f"{number:,} {name.removesuffix('y')}ies" if name.endswith("ry") else f"{number:,} {name}s"


def shape_text(dims: Iterable[object]) -> str:
    """Return a shape as ``1x3x8x8``, for tables, pages and options; sentences contain ``[1, 3, 8, 8]``."""
    return "x".join(map(str, dims)) or "scalar"


def shortened(text: str, size: int) -> str:
    """Return a text of at most ``size`` characters; longer texts lose their middle, more of the start."""
    if len(text) <= size:
        return text
    tail = (size - 2) * 2 // 3
    return f"{text[: size - 2 - tail]}..{text[-tail:]}"


def nearest_name(name: str, names: Iterable[str], least: float = 0.6) -> str | None:
    """Return the name that is most like `name`; None if none has the likeness `least`, from 0 to 1.

    Below the default of `least`, a suggestion is more often confusing than right.
    """
    # This import takes long, and only errors need it.
    from difflib import get_close_matches

    near = get_close_matches(name[:_LONGEST_NAME], islice(names, _MOST_NAMES), 1, least)
    return near[0] if near else None


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
    r"""Escape characters that could move a cursor, end a line or reorder text, as in ``\u202e``.

    Every name that comes from a file or a device passes through this function before a terminal, a page or a
    log shows it; the printers of `qaic.cli.console` call it.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def escape_lines(text: str) -> str:
    """Escape every line of a text, as `escape_unprintable`; tabs stay."""
    return "\n".join("\t".join(map(escape_unprintable, line.split("\t"))) for line in text.split("\n"))


def escape_json(text: str) -> str:
    """Escape the unprintable characters in the strings of a JSON text; its value stays the same."""
    import json

    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)


def escape_html(text: object) -> str:
    """Escape a text for HTML and SVG, between tags and in quoted attributes."""
    import html

    return html.escape(escape_unprintable(str(text)))
