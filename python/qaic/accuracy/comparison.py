"""`compare`: a model in float32 beside the same model as it would be deployed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qaic.accuracy.capture import capture
from qaic.accuracy.precisions import named, options_of
from qaic.accuracy.report import AccuracyReport, PrecisionAccuracy
from qaic.accuracy.samples import Samples
from qaic.compiler.diagnostics.record import recorded
from qaic.options.resolution import resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import onnx

    from qaic.options.models import CompileOptions

#: options with samples that are run, and with files of what was measured
_CALIBRATIONS: Final = frozenset({"input_list_file", "calibration_data", "use_random_input_data"})
_PROFILES: Final = frozenset({"load_profile", "external_quantization_file"})


def compare(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    *,
    to: str | Sequence[str],
    samples: str | os.PathLike[str] | Iterable[Mapping[str, object]],
    **compile_options: object,
) -> AccuracyReport:
    """Compare a model in reduced precision with itself in float32, output by output and node by node.

    Blocking: one compilation and one run for each sample and precision, of a graph that computes the
    reference, the deployed program and single rounded nodes beside each other. Ctrl-C ends it; nothing is
    left behind, and nothing goes to the compile cache. One sample is in memory at a time, and tensors
    inside of the graph never leave it.

    Parameters
    ----------
    model
        An ONNX model: its path, its content, or an ``onnx.ModelProto``.
    to
        Precisions: ``fp16``, ``int8``, ``int16``, ``mxfp6``, some of them joined by commas or in a list;
        ``mxfp6+fp16`` is both at once.
    samples
        Inputs as the model gets them in use: an iterable of dictionaries from names of inputs to arrays, as
        `qaic.Session.run` takes them; the path of an input list, of a folder of ``.npz`` files or of one
        such file, whose arrays may have a dimension for samples in front; or ``"random"``. Integers are
        calibrated with them unless an option says otherwise.
    **compile_options
        Compile options of `qaic.compile`; they win over those of a precision.

    Returns
    -------
    AccuracyReport
        What was found.

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
    given = Samples(samples)
    found = []
    for name in names:
        started = time.monotonic()
        options = compile_options_of(name, given, compile_options)
        with recorded() as diagnostics:
            measured = capture(model, options, given)
        messages = tuple(item.message for item in diagnostics.items if item.severity == "warning")
        found.append(PrecisionAccuracy(name, measured, time.monotonic() - started, messages))
    return AccuracyReport(title_of(model), tuple(found))


def compile_options_of(name: str, samples: Samples, given: Mapping[str, object]) -> CompileOptions:
    """Return the typed compile options of a precision; samples calibrate integers unless options do."""
    wanted = options_of(name, given)
    if _PROFILES & wanted.keys():
        # Such a file asks for integers by itself.
        wanted.pop("convert_to_quantize", None)
    if wanted.get("convert_to_quantize") and not _CALIBRATIONS & wanted.keys():
        wanted |= samples.calibration()
    return resolve(wanted, options_path=None, model_is_container=False).compile


def title_of(model: object) -> str:
    """Name a model for people."""
    return Path(model).name if isinstance(model, str | os.PathLike) else "model"
