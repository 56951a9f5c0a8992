"""Report of a check: sections with a verdict and the next line to paste, as text, JSON and page."""

import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from qaic import __version__
from qaic.errors import CompileError
from qaic.forecast.checked import Checked
from qaic.forecast.configurations import Configuration, Fixed
from qaic.forecast.sections import Section, sections_of
from qaic.page.document import document, write_bytes
from qaic.report import Report
from qaic.report.html import report_html
from qaic.report.text import to_text


class CheckReport:
    """Findings of `qaic.check`.

    Parameters
    ----------
    checked : Checked
        The findings.
    """

    def __init__(self, checked: Checked) -> None:
        self.checked = checked

    def __repr__(self) -> str:
        """Return the verdicts."""
        verdicts = ", ".join(f"{one.report.name} {one.verdict}" for one in self.sections)
        return f"<CheckReport {self.checked.title}: {verdicts}>"

    def __str__(self) -> str:
        """Return the sections as text, 120 columns wide."""
        return self.text()

    def text(self, width: int = 120) -> str:
        """Return the sections as text of at most `width` columns; commands are lines of any length."""
        return "\n".join(to_text(section.report, width=width) for section in self.sections).rstrip("\n")

    @property
    def compiles(self) -> bool:
        """True if the model compiles for the precision."""
        return self.checked.failure is None

    @property
    def failure(self) -> CompileError | None:
        """The error of a model that does not compile."""
        return self.checked.failure

    @cached_property
    def sections(self) -> list[Section]:
        """Sections in their order: operators, memory, precision, speed, suggestions."""
        return sections_of(self.checked)

    def forecast(self, cores: int, instances: int, batch: int, set_size: int) -> Configuration:
        """Return the forecast of one configuration, with its intervals.

        Parameters
        ----------
        cores, instances, batch, set_size : int
            Cores of one instance, instances at a time, samples of one inference, inferences in flight for
            each instance.

        Raises
        ------
        qaic.errors.CompileError
            The model does not compile.
        """
        one = self.checked
        if one.analysis is None:
            assert one.failure is not None  # noqa: S101  # one of the two is there
            raise one.failure
        return one.ranking(one.analysis.sets[0], fixed=Fixed(cores, instances, batch, set_size)).at(0)

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        one = self.checked
        return {
            "model": one.title,
            "precision": one.precision,
            "card": one.card.name,
            "cards": one.cards,
            "compiles": self.compiles,
            "sections": {section.report.name: section.to_json() for section in self.sections},
        }

    def page(self, path: str | os.PathLike[str]) -> Path:
        """Write an HTML page that needs no network, atomically; return its path."""
        return write_page(self.checked, [section.report for section in self.sections], path)


def write_page(one: Checked, reports: Iterable[Report], path: str | os.PathLike[str]) -> Path:
    """Write the reports of a check as a page, atomically; return its path."""
    parts = [(report.name, report.title, report_html(report)) for report in reports]
    subtitle = f"{one.types} \u00b7 cards: {one.cards} x {one.card.name} \u00b7 openqaic {__version__}"
    return write_bytes(path, document(f"Check of {one.title}", subtitle, parts).encode())
