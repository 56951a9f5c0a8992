"""One row of the report, and the verdict on its budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .spread import Spread


MET, MISSED = "met", "**missed**"


@dataclass(frozen=True)
class Row:
    """A measurement, the values that it is compared with, and its budget."""

    what: str
    ours: Spread
    beside: tuple[tuple[str, Spread], ...] = ()
    ratio: Spread | None = None
    budget: str = ""
    met: bool | None = None

    @property
    def verdict(self) -> str:
        """Return a word that states whether the median meets the budget."""
        return {None: "", True: MET, False: MISSED}[self.met]

    def cells(self) -> list[str]:
        """Return the cells of the report's table."""
        beside = "<br>".join(f"{label}: {spread}" if label else str(spread) for label, spread in self.beside)
        return [self.what, str(self.ours), beside, str(self.ratio or ""), self.budget, self.verdict]


HEADER = ["measurement", "openqaic", "compared with", "ratio", "budget", "verdict"]


def at_most(ratio: Spread, limit: float) -> dict[str, object]:
    """Return the budget "at most `limit` times the other", judged by the median."""
    return {"ratio": ratio, "budget": f"<= {limit:g} x", "met": ratio.median <= limit}


def at_least(ratio: Spread, limit: float) -> dict[str, object]:
    """Return the budget "at least `limit` times the other", judged by the median."""
    return {"ratio": ratio, "budget": f">= {limit:g} x", "met": ratio.median >= limit}


def table(header: list[str], rows: list[list[str]]) -> Iterator[str]:
    """Write a Markdown table."""
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
