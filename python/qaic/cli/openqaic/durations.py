"""Times in the units that people read: three digits, and the unit beside them."""

from __future__ import annotations


def seconds_text(seconds: float) -> str:
    """Write a time, as ``1.25 ms``."""
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        if seconds * factor < 999.5:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:.0f} s"
