"""Findings of a check: sections with a verdict and the next line to paste, as text, JSON and page."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from qaic import __version__
from qaic.accuracy import AccuracyReport
from qaic.accuracy.prepared import options_of
from qaic.compiler.diagnostics.record import Diagnostic
from qaic.errors import CompileError, OptionError
from qaic.forecast import sections
from qaic.forecast.analysis import Analysis, ShapeSet
from qaic.forecast.calibration import Measurements, correct
from qaic.forecast.configurations import Configuration, Correction, Fixed, Ranking, candidates
from qaic.forecast.memory import Memory
from qaic.forecast.sections import Section
from qaic.forecast.speed import Card, Fitted, reasons_outside
from qaic.options.argv import to_argv
from qaic.options.resolution import resolve
from qaic.support.atomic_io import replace_bytes

#: options that a line does not repeat: samples have no form there, and lines set the others themselves
_NOT_REPEATED: Final = frozenset(
    {"calibration_data", "aic_num_cores", "batchsize", "num_activations", "set_size"}
)
_WIDEST: Final = 8.0


@dataclass(slots=True, kw_only=True)
class Checked:
    """Request and findings of one check."""

    title: str
    path: str
    precision: str
    samples: str | None
    card: Card
    cards: int
    fixed: Fixed
    given: Mapping[str, object]
    symbols: Mapping[str, int]
    fitted: Fitted
    measurements: Measurements | None
    analysis: Analysis | None = None
    memory: Memory | None = None
    failure: CompileError | None = None
    warnings: list[Diagnostic] = field(default_factory=list)
    accuracy: AccuracyReport | None = None

    @property
    def devices(self) -> int:
        """Devices of all cards."""
        return self.card.devices * self.cards

    def compile_line(self, **options: object) -> str:
        """Return the command line that compiles the model for the precision, with some more options."""
        return self._line("compile", "-o", "program", **{**options_of(self.precision, {}), **options})

    def accuracy_line(self) -> str:
        """Return the command line that compares the precision with float32."""
        name = "fp16" if self.precision == "fp32" else self.precision
        samples = () if self.samples is None else ("--samples", self.samples)
        return self._line("accuracy", "--to", name, *samples, "-o", "accuracy.html")

    def check_line(
        self, precision: str = "", cards: int = 0, options: Mapping[str, object] | None = None
    ) -> str:
        """Return the command line of this check with another precision, more cards or more options."""
        words: list[str] = []
        if (precision or self.precision) != "fp16":
            words += ["--precision", precision or self.precision]
        if self.card.name != "standard":
            words += ["--card", self.card.name]
        if (cards or self.cards) > 1:
            words += ["--cards", str(cards or self.cards)]
        return self._line("check", *words, **(options or {}))

    def template_line(self, path: str) -> str:
        """Return the command line that writes a template for the types of inputs and outputs."""
        kept = {**self._kept({}), "dump_custom_io_config_template_file": path}
        return shlex.join(["qaic-compile", f"-m={self.path}", *_flags(kept)])

    def _kept(self, options: Mapping[str, object]) -> dict[str, object]:
        """Return the options that a command line repeats; a batch replaces the sizes of its symbols."""
        kept = {key: value for key, value in self.given.items() if key not in _NOT_REPEATED}
        symbols = self.symbols
        if "batchsize" in options and self.analysis is not None and symbols:
            kept["onnx_define_symbol"] = {
                name: size for name, size in symbols.items() if name not in self.analysis.batch_symbols
            }
        return kept

    def _line(self, command: str, *words: str, **options: object) -> str:
        kept = {**self._kept(options), **options}
        batch = options.get("batchsize")
        if isinstance(batch, int) and kept.get("model_inputs"):
            # Shapes and a batch would give the first dimension two sizes.
            del kept["batchsize"]
            shapes = resolve(kept, options_path=None, model_is_container=False).compile.model_inputs
            kept["model_inputs"] = [
                replace(one, input_shape=(batch, *one.input_shape[1:]))
                if one.input_shape[:1] == (1,)
                else one
                for one in shapes
            ]
        flags = (f"-{flag}" for flag in _flags(kept))
        return shlex.join(["openqaic", command, self.path, *words, *flags])


def _flags(options: Mapping[str, object]) -> list[str]:
    """Return options as flags; an option that was given as the content of a file names a file to write."""
    resolved = resolve(options, options_path=None, model_is_container=False)
    try:
        return to_argv(resolved)
    except OptionError as error:
        names = error.context.get("options")
        if error.code != "option.no_flag_text" or not isinstance(names, list):
            raise
        return to_argv(resolved, files={name: Path(f"{name}.json") for name in names})


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
        return "\n\n".join(map(str, self.sections))

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
        return sections.sections_of(self)

    def reasons(self, shapes: ShapeSet) -> list[str]:
        """Return the differences of a forecast from the measured rows; each doubles its intervals."""
        one = self.checked
        settings = candidates(one.card, one.fixed)
        return reasons_outside(shapes.table, settings, one.fitted, one.card, one.precision)

    def ranking(self, shapes: ShapeSet, precision: str | None = None, fixed: Fixed | None = None) -> Ranking:
        """Return forecasts of the configurations for one set of shapes.

        Parameters
        ----------
        shapes : ShapeSet
            Shapes.
        precision : str or None
            Another precision than that of the check.
        fixed : Fixed or None
            Other fixed settings.
        """
        one, table = self.checked, shapes.table
        used = precision or one.precision
        settled = fixed or one.fixed
        if table.state_bytes or table.samples > 1:
            # Caches have the batch in their shape.
            settled = replace(settled, batch=settled.batch or table.samples)
        settings = candidates(one.card, settled)
        return Ranking(
            table,
            settings,
            one.fitted.parameters,
            one.card,
            precision=used,
            correction=self.correction(shapes),
        )

    def correction(self, shapes: ShapeSet) -> Correction:
        """Return the factors of measurements and the widths of intervals."""
        one = self.checked
        widening = min(2.0 ** len(self.reasons(shapes)), _WIDEST)
        return correct(
            shapes.table,
            one.card,
            one.precision,
            one.fitted,
            widening=widening,
            measurements=one.measurements,
        )

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
        return self.ranking(one.analysis.sets[0], fixed=Fixed(cores, instances, batch, set_size)).at(0)

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
        from qaic.page.document import document
        from qaic.page.report_tables import report_html

        one = self.checked
        parts = [
            (
                section.report.name,
                f"{section.report.title}: {section.verdict}",
                report_html(section.report) + section.lines_html,
            )
            for section in self.sections
        ]
        subtitle = f"{one.precision} on {one.cards} x {one.card.name} \u00b7 openqaic {__version__}"
        target = Path(path)
        replace_bytes(target, document(f"Check of {one.title}", subtitle, parts).encode())
        return target
