"""Properties that a card would refuse, collected while a model is compiled."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Survey:
    """Findings, each with its nodes or values.

    Parameters
    ----------
    findings
        What a card is unlikely to take.
    refusals
        What the card's compiler is known to refuse.
    """

    findings: dict[str, list[str]] = field(default_factory=dict)
    refusals: dict[str, list[str]] = field(default_factory=dict)

    def note(self, what: str, where: str) -> None:
        """Add one finding."""
        self.findings.setdefault(what, []).append(where)

    def note_refusal(self, what: str, where: str) -> None:
        """Add something that the card's compiler refuses."""
        self.refusals.setdefault(what, []).append(where)
