"""Request and findings of a check, forecasts from them, and command lines that repeat the request."""

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from qaic.accuracy import AccuracyReport
from qaic.accuracy.prepared import options_of
from qaic.accuracy.reports.precision_accuracy import TYPES
from qaic.accuracy.samples import TOKENS
from qaic.compiler.diagnostics.messages import Diagnostic
from qaic.errors import CompileError, OptionError
from qaic.forecast.analysis import Analysis, ShapeSet
from qaic.forecast.calibration import Measurements, correct
from qaic.forecast.configurations import Correction, Fixed, Ranking, candidates
from qaic.forecast.memory import Memory
from qaic.forecast.speed import Card, Fitted, reasons_outside
from qaic.options import resolve
from qaic.options.argv import to_argv
from qaic.options.codecs.structures import ModelInput, ModelInputs

#: options that a command line does not repeat: samples have no flag, and lines set the others themselves
_NOT_REPEATED: Final = frozenset({"calibration_data", "aic_num_cores", "num_activations", "set_size"})
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
    #: Options with which the samples calibrate integers.
    calibration: Mapping[str, object]
    fitted: Fitted
    measurements: Measurements | None
    analysis: Analysis | None = None
    memory: Memory | None = None
    #: True unless the model compiles only for its own batch.
    has_batches: bool = True
    failure: CompileError | None = None
    warnings: list[Diagnostic] = field(default_factory=list)
    accuracy: AccuracyReport | None = None

    @property
    def types(self) -> str:
        """Names of the types of the precision, for people."""
        return "+".join(TYPES.get(part, part) for part in self.precision.split("+"))

    @property
    def devices(self) -> int:
        """Devices of all cards."""
        return self.card.devices * self.cards

    @property
    def has_sample_batch(self) -> bool:
        """True if samples that calibrate integers fix the batch."""
        return bool(self.calibration.keys() - {"use_random_input_data"})

    def reasons(self, shapes: ShapeSet) -> list[str]:
        """Return the differences of a forecast from the measured rows; each doubles its intervals."""
        settings = candidates(self.card, self.fixed)
        return reasons_outside(shapes.table, settings, self.fitted, self.card, self.precision)

    def ranking(self, shapes: ShapeSet, precision: str | None = None, fixed: Fixed | None = None) -> Ranking:
        """Return forecasts of the configurations for one set of shapes.

        `precision` and `fixed` replace the precision and the fixed settings of the check.
        """
        table = shapes.table
        settled = fixed or self.fixed
        if table.state_bytes or table.samples > 1 or not self.has_batches:
            # Caches have the batch in their shape.
            settled = replace(settled, batch=settled.batch or table.samples)
        settings = candidates(self.card, settled)
        return Ranking(
            table,
            settings,
            self.fitted.parameters,
            self.card,
            precision=precision or self.precision,
            correction=self.correction(shapes),
        )

    def correction(self, shapes: ShapeSet) -> Correction:
        """Return the factors of measurements and the widths of intervals."""
        widening = min(2.0 ** len(self.reasons(shapes)), _WIDEST)
        return correct(
            shapes.table,
            self.card,
            self.precision,
            self.fitted,
            widening=widening,
            measurements=self.measurements,
        )

    def compile_line(self, folder: str = "program", **options: object) -> str:
        """Return the command line that compiles the model for the precision, with some more options.

        Returns a call in Python if calibration uses arrays, which have no form on a command line.
        """
        wanted = {**options_of(self.precision, {}), **self.calibration, **options}
        if "calibration_data" not in self.calibration:
            return self._line("compile", "-o", folder, **wanted)
        given = self.with_options(**wanted)
        if given.get("model_inputs"):
            given["model_inputs"] = ModelInputs().to_shape_texts(_model_inputs(given))
        given |= {"output_dir": folder}
        del given["calibration_data"]
        keywords = ", ".join(f"{name}={value!r}" for name, value in given.items())
        return f"in Python: qaic.compile({self.path!r}, {keywords}, calibration_data=samples)"

    def accuracy_line(self) -> str:
        """Return the command line that compares the precision with float32."""
        words = ["--to", "fp16" if self.precision == "fp32" else self.precision]
        words += ["--samples", self.samples or "FILE"]
        if self.samples is None and self._is_decoder:
            # Samples are prompts, and decoding computes the other inputs.
            words += ["--tokens", "16"]
        return self._line("accuracy", *words, "-o", "accuracy.html")

    @property
    def _is_decoder(self) -> bool:
        shapes = None if self.analysis is None else self.analysis.sets[0]
        return shapes is not None and TOKENS in shapes.inputs and bool(shapes.table.state_bytes)

    def check_line(
        self, precision: str = "", cards: int = 0, fixed: Fixed | None = None, **options: object
    ) -> str:
        """Return the command line of this check with another precision, cards, settings or more options."""
        settings = fixed or self.fixed
        words: list[str] = []
        if (precision or self.precision) != "fp16":
            words += ["--precision", precision or self.precision]
        if self.card.name != "standard":
            words += ["--card", self.card.name]
        if (cards or self.cards) > 1:
            words += ["--cards", str(cards or self.cards)]
        for flag, number in (("-a", settings.instances), ("-S", settings.set_size)):
            words += [] if number is None else [flag, str(number)]
        compiled = {"aic_num_cores": settings.cores, "batchsize": settings.batch}
        given = {name: number for name, number in compiled.items() if number is not None}
        return self._line("check", *words, **{**given, **options})

    def line_with_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> str:
        """Return the command line of this check with the shapes of more inputs."""
        sized = (ModelInput(name, None, shape) for name, shape in shapes.items())
        return self.check_line(model_inputs=[*_model_inputs(self._kept({})), *sized])

    def template_line(self, path: str) -> str:
        """Return the command line that writes a template for the types of inputs and outputs."""
        kept = {**self._kept({}), "dump_custom_io_config_template_file": path}
        return shlex.join(["qaic-compile", f"-m={self.path}", *_flags(kept, "-")])

    def _kept(self, options: Mapping[str, object]) -> dict[str, object]:
        """Return the options that a command line repeats; a batch replaces the sizes of its symbols."""
        kept = {key: value for key, value in self.given.items() if key not in _NOT_REPEATED}
        symbols = self.symbols
        if "batchsize" in options and self.analysis is not None and symbols:
            kept["onnx_define_symbol"] = {
                name: size for name, size in symbols.items() if name not in self.analysis.batch_symbols
            }
        return kept

    def _needs_batch(self, sized: Collection[str]) -> bool:
        """Return True if a batch changes an input without a shape; the compiler refuses other batches."""
        if self.fixed.batch is not None or self.analysis is None:
            return self.fixed.batch is not None
        shapes = self.analysis.sets[0].inputs
        return "" not in sized and any(
            shape[:1] == (1,) for name, shape in shapes.items() if name not in sized
        )

    def _line(self, command: str, *words: str, **options: object) -> str:
        try:
            flags = _flags(self.with_options(**options), "--")
        except OptionError as error:
            # Flags have no form for shapes of inputs with some names.
            if error.code != "option.no_flag_text":
                raise
            return f"openqaic explain {error.code}"
        return shlex.join(["openqaic", command, self.path, *words, *flags])

    def with_options(self, **options: object) -> dict[str, object]:
        """Return the options of a command line that repeats the request with some more options."""
        kept = {**self._kept(options), **options}
        batch = options.get("batchsize")
        if isinstance(batch, int) and kept.get("model_inputs"):
            sized = _model_inputs(kept)
            if not self._needs_batch({one.input_name for one in sized}):
                del kept["batchsize"]
            # Shapes and a batch would give the first dimension two sizes.
            kept["model_inputs"] = [
                replace(one, input_shape=(batch, *one.input_shape[1:]))
                if one.input_shape[:1] == (self.fixed.batch or 1,)
                else one
                for one in sized
            ]
        return kept


def _model_inputs(options: Mapping[str, object]) -> tuple[ModelInput, ...]:
    return resolve(options, options_path=None, model_is_container=False).compile.model_inputs


def _flags(options: Mapping[str, object], dashes: str) -> list[str]:
    """Return options as flags; an option that was given as the content of a file names a file to write."""
    resolved = resolve(options, options_path=None, model_is_container=False)
    try:
        return to_argv(resolved, dashes=dashes)
    except OptionError as error:
        names = error.context.get("options")
        if error.code != "option.no_flag_text" or not isinstance(names, list):
            raise
        files = {name: Path(f"{name}.json") for name in names}
        return to_argv(resolved, files=files, dashes=dashes)
