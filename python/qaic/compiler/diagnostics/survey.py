"""What a card would not take, collected while a model is compiled."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Survey:
    """Findings of level 2: what was found, then the nodes or values it was found at."""

    findings: dict[str, list[str]] = field(default_factory=dict)

    def note(self, what: str, where: str) -> None:
        """Add one finding."""
        self.findings.setdefault(what, []).append(where)
