"""`compare`: compares a model in float32 with the same model in reduced precision."""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import onnx

from qaic.accuracy.capture import capture
from qaic.accuracy.card_outputs import CardOutputs
from qaic.accuracy.decisions import Decide, decision_function
from qaic.accuracy.decoding import Decoder
from qaic.accuracy.prepared import ModelSource, PreparedModel, named, options_among, options_of, prepared
from qaic.accuracy.remedies import Calibration
from qaic.accuracy.reports.precision_accuracy import PrecisionAccuracy
from qaic.accuracy.reports.report import AccuracyReport
from qaic.accuracy.samples import Samples
from qaic.compiler.diagnostics.messages import recorded, silenced, warn
from qaic.compiler.driver import title_of
from qaic.compiler.reports import emit_report
from qaic.errors import OptionError
from qaic.options import resolve
from qaic.options.table import CompileOptions

#: options with samples to run, and with files of measured values
_CALIBRATIONS: Final = frozenset({"input_list_file", "calibration_data", "use_random_input_data"})
_PROFILES: Final = frozenset({"load_profile", "external_quantization_file"})


def compare(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    *,
    to: str | Sequence[str],
    samples: str | os.PathLike[str] | Iterable[Mapping[str, object]],
    tokens: int | None = None,
    against: str | os.PathLike[str] | None = None,
    decide: str | Decide | None = None,
    **compile_options: object,
) -> AccuracyReport:
    """Compare a model in reduced precision with itself in float32, output by output and node by node.

    Blocking: one compilation for each precision, and one run for each sample and precision, of a graph that
    computes the reference, the deployed program and single rounded nodes. Ctrl-C ends it without remaining
    files. The compile cache does not change. One sample is in memory at a time, and tensors inside the
    graph never leave it.

    Parameters
    ----------
    model
        An ONNX model: its path, its content, or an ``onnx.ModelProto``.
    to
        Precisions: ``fp16``, ``int8``, ``int16``, ``mxfp6``; several in a list or separated by commas.
        ``mxfp6+fp16`` combines two.
    samples
        Typical inputs of the model: an iterable of dictionaries of arrays, as for `qaic.Session.run`; the
        path of an input list, of a folder of ``.npz`` files, or of one such file, whose arrays may have a
        leading dimension for samples; or ``"random"``. Integers are
        calibrated with them unless an option states otherwise.
    tokens
        For decoders: number of tokens by which greedy decoding continues each sample. Samples are prompts:
        only ``input_ids``, integers of shape [n] or [prompts, n], without padding. Both programs get the
        tokens of the float32 run. The model has caches as retained state, and shapes for prompts and tokens.
    against
        Outputs of a real card for the same samples: a folder that ``qaic-runner --write-output-dir`` wrote,
        an ``.npz`` file, or a folder of those. The report then first states whether the card loses more than
        the precision explains. Only one precision is allowed.
    decide
        Function for the share of equal decisions, or its name as ``module:function``. It takes the name and
        the array of an output, and returns one decision or an array of decisions. Default: the index of the
        largest value along the last dimension.
    **compile_options
        Compile options of `qaic.compile`; they take precedence over those of a precision.

    Returns
    -------
    AccuracyReport
        The results.

    Raises
    ------
    qaic.errors.OptionError
        An option is wrong, a sample does not fit the model, or there is none.
    qaic.errors.CompileError
        The model cannot be compiled.
    OSError
        A file cannot be read.
    """
    names = named(to)
    check_tokens(tokens)
    if against is not None and (len(names) != 1 or tokens is not None):
        beside = "tokens" if len(names) == 1 else f"the precisions {', '.join(names)}"
        raise OptionError(
            f"against: found {beside}, expected one precision, the one in which the card computed, and "
            "outputs of samples",
            code="option.accuracy_against",
        )
    function = decision_function(decide)
    given = Samples(samples)
    if against is not None and given.is_random:
        raise OptionError(
            "against: found random samples, expected the inputs with which the card computed the outputs",
            code="option.accuracy_against",
            hints=("run the card with input files, and pass the same files: --samples inputs.txt",),
        )
    found: list[PrecisionAccuracy] = []
    for name in names:
        started = time.monotonic()
        card = None if against is None else CardOutputs(against, function)
        with recorded() as diagnostics, given.named_in_errors(compile_options):
            wanted = options_among(names, name, compile_options)
            options = compile_options_of(model, name, given, tokens, wanted)
            if not found:
                warn_of_reports(options)
            keep = None if card is None else card.take
            measured = capture(model, options, given, tokens, keep=keep, decide=function)
            measured.calibration = Calibration(options, needs_samples(options_of(name, wanted)))
        messages = tuple(item.message for item in diagnostics.items if item.severity == "warning")
        seconds = time.monotonic() - started
        found.append(PrecisionAccuracy(name, measured, seconds, messages, card, is_random=given.is_random))
    return AccuracyReport(title_of(model), tuple(found))


def compile_options_of(
    model: ModelSource, name: str, samples: Samples, tokens: int | None, given: Mapping[str, object]
) -> CompileOptions:
    """Return the typed compile options of a precision."""
    wanted = calibrated_options(model, name, samples, tokens, given)
    return resolve(wanted, options_path=None, model_is_container=False).compile


def warn_of_reports(options: CompileOptions) -> None:
    """Warn of options for reports of a compilation."""
    if wanted := emit_report.wanted(options):
        text = "no effect, because a comparison of precisions does not produce compiler reports"
        warn("option.accuracy_reports", f"{', '.join(wanted)}: {text}")


def calibrated_options(
    model: ModelSource, name: str, samples: Samples, tokens: int | None, given: Mapping[str, object]
) -> dict[str, object]:
    """Return the compile options of a precision; samples calibrate integers unless options do."""
    wanted = options_of(name, given)
    if _PROFILES & wanted.keys():
        # Such a file implies integers.
        wanted.pop("convert_to_quantize", None)
    if needs_samples(wanted):
        if tokens is not None:
            wanted |= _prefill(model, samples, tokens, wanted)
        elif samples.is_folder:
            wanted |= _archived(model, samples, wanted)
        else:
            wanted |= samples.calibration()
    return wanted


def needs_samples(wanted: Mapping[str, object]) -> bool:
    """Return True if samples calibrate the integers of a precision: no option states another way."""
    return bool(wanted.get("convert_to_quantize")) and not (_CALIBRATIONS | _PROFILES) & wanted.keys()


def check_tokens(tokens: object) -> None:
    """Refuse an invalid number of tokens."""
    if tokens is not None and (not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1):
        raise OptionError(
            f"tokens: found {tokens!r}, expected the number of tokens to generate, at least 1",
            code="option.accuracy_tokens",
        )


def _prefill(
    model: ModelSource, samples: Samples, tokens: int, wanted: Mapping[str, object]
) -> dict[str, object]:
    """Return the option that calibrates with the inferences of prompts, in the form of the model."""
    with _inputs_of(model, wanted) as source:
        decoder = Decoder(source.inputs, source.shaped)
    prompts = decoder.prompts(samples, tokens)
    return {"calibration_data": [feed for prompt in prompts for feed, _ in decoder.prefill(prompt)]}


def _archived(model: ModelSource, samples: Samples, wanted: Mapping[str, object]) -> dict[str, object]:
    """Return the option that calibrates with the archives of a folder."""
    with _inputs_of(model, wanted) as source:
        return {"calibration_data": list(samples.read(source.inputs, source.shaped))}


@contextmanager
def _inputs_of(model: ModelSource, wanted: Mapping[str, object]) -> Iterator[PreparedModel]:
    """Open a model to read its inputs, without calibration."""
    options = {**wanted, "use_random_input_data": True}
    read = resolve(options, options_path=None, model_is_container=False).compile
    with silenced(), prepared(model, read, "reading") as source:
        yield source
