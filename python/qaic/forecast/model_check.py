"""``qaic.check``: forecasts support, fit and speed of a model on a card, and the best options."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qaic.accuracy.comparison import calibrated_options, needs_samples
from qaic.accuracy.prepared import PRECISIONS, name_of, named, options_of
from qaic.accuracy.samples import Samples
from qaic.compilation import model_content
from qaic.compiler.diagnostics.messages import recorded
from qaic.compiler.driver import compile_resolved
from qaic.errors import CompileError, OptionConflictError, OptionError
from qaic.forecast import calibration, speed
from qaic.forecast.analysis import analyze
from qaic.forecast.checked import Checked
from qaic.forecast.configurations import Fixed
from qaic.forecast.memory import memory_of
from qaic.forecast.report import CheckReport
from qaic.forecast.speed import CARDS
from qaic.options import resolve
from qaic.support.lazy_module import LazyModule
from qaic.support.text import format_value, nearest_name

if TYPE_CHECKING:
    import onnx

    from qaic.forecast.speed import Card
    from qaic.options.resolution import ResolvedOptions
else:
    # The import takes long, and is needed only to evaluate the annotations of `check`.
    onnx = LazyModule("onnx")

#: cards in one computer
_MOST_CARDS: Final = 16


def check(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    *,
    precision: str = "fp16",
    card: str = "standard",
    cards: int = 1,
    samples: str | os.PathLike[str] | Iterable[Mapping[str, object]] | None = None,
    measured: str | os.PathLike[str] | None = None,
    **options: object,
) -> CheckReport:
    """Check without a card whether a card supports a model and whether it fits, and forecast its speed.

    Blocking: one compilation, which goes to the compile cache, and with ``samples`` the runs of
    `qaic.accuracy.compare`. Speed is a forecast; ``docs/forecast.md`` has its errors on measured models.

    Parameters
    ----------
    model
        An ONNX model: its path, its content, or an ``onnx.ModelProto``.
    precision
        ``fp16``, ``int8``, ``int16``, ``mxfp6``, ``fp32``, or some joined by ``+``.
    card
        ``standard`` (14 cores, 16 GiB), ``pro`` (16 cores, 32 GiB) or ``ultra`` (four devices of 16 cores).
    cards
        Number of cards, at least 1.
    samples
        Inputs as for `qaic.accuracy.compare`, which also calibrate integers; without them, the verdict on
        precision uses only the weights.
    measured
        Runs of this model on a card that correct the forecast: a CSV table with the columns ``cores``,
        ``instances``, ``batch``, ``set_size``, ``inferences_per_s`` (samples per second) and ``latency_ms``,
        or a latency report of ``qaic-runner``.
    **options
        Compile options of `qaic.compile`; they override those of the precision. ``aic_num_cores``,
        ``num_activations``, ``batchsize`` and ``set_size`` fix a part of the configuration.

    Returns
    -------
    CheckReport
        The findings; for a model that does not compile, the reason.

    Raises
    ------
    FileNotFoundError
        The model or another file does not exist.
    qaic.errors.InputError
        The file of measurements has other columns, units or values.
    qaic.errors.OptionError
        An option is wrong; options that exclude each other are an ``OptionConflictError``.

    Examples
    --------
    >>> import qaic
    >>> report = qaic.check("model.onnx")  # doctest: +SKIP
    >>> report.to_json()["sections"]["speed"]["throughput"][0]["samples_per_s"]  # doctest: +SKIP
    """
    asked, chosen, count = _precision(precision), _card(card), _count(cards)
    given = {key: value for key, value in options.items() if value is not None}
    resolved = resolve(options_of(asked, given), options_path=None, model_is_container=False)
    # Options may require more than the precision.
    name = name_of(resolved.set_compile) or "fp32"
    fixed = _fixed(resolved, chosen)
    content = model_content(model)
    if isinstance(samples, Iterator):
        # The compilation and the comparison read the samples.
        samples = list(samples)
    dataset = None if samples is None else Samples(samples)
    calibration_options: Mapping[str, object] = {}
    if dataset is not None and needs_samples(options_of(asked, given)):
        calibration_options = {"calibration_data": ()} if dataset.is_folder else dataset.calibration()
    runs = None if measured is None else calibration.read(measured, fixed, chosen)
    checked = Checked(
        title=Path(content).name if isinstance(content, Path) else "model",
        path=str(content) if isinstance(content, Path) else "model.onnx",
        precision=name,
        samples=os.fspath(samples) if isinstance(samples, str | os.PathLike) else None,
        card=chosen,
        cards=count,
        fixed=fixed,
        given=given,
        calibration=calibration_options,
        symbols=dict(resolved.compile.onnx_define_symbol or {}),
        fitted=speed.shipped(),
        measurements=runs,
    )
    with recorded() as diagnostics:
        try:
            checked.analysis = analyze(content, resolved.compile)
            if dataset is not None and calibration_options:
                with dataset.named_in_errors(given):
                    wanted = calibrated_options(content, asked, dataset, None, given)
                    resolved = resolve(wanted, options_path=None, model_is_container=False)
                    compile_resolved(content, resolved)
            else:
                compile_resolved(content, resolved)
        except CompileError as error:
            checked.failure = error
    if checked.analysis is not None and (fixed.batch or 1) == 1:
        # The numbers of a declared shape are those of the given batch.
        is_declared = any(set(map(type, dims)) == {int} for dims in resolved.compile.output_shapes.values())
        checked.has_batches = not (is_declared or checked.has_sample_batch) and _compiles(
            content, checked.with_options(batchsize=2)
        )
    checked.warnings = [item for item in diagnostics.items if item.severity == "warning"]
    if checked.analysis is not None:
        checked.memory = memory_of(checked.analysis, name, chosen, chosen.devices * count)
    if samples is not None and checked.failure is None:
        from qaic.accuracy import compare

        checked.accuracy = compare(
            model, to=name, samples=samples, tokens=None, against=None, decide=None, **given
        )
    return CheckReport(checked)


def _compiles(content: Path | bytes | onnx.ModelProto, options: Mapping[str, object]) -> bool:
    """Return True if shapes fit with other options."""
    with recorded():
        try:
            analyze(content, resolve(options, options_path=None, model_is_container=False).compile)
        except (CompileError, OptionError):
            return False
    return True


def _precision(precision: object) -> str:
    try:
        (name,) = named(precision)
    except (OptionError, ValueError):
        near = nearest_name(str(precision), PRECISIONS)
        raise OptionError(
            f"precision: found {format_value(precision)}{f' (did you mean {near}?)' if near else ''}, "
            f"expected one of {', '.join(PRECISIONS)}, or several joined by +",
            code="option.to",
        ) from None
    return name


def _card(card: object) -> Card:
    if not isinstance(card, str) or card not in CARDS:
        raise OptionError(
            f"card: found {format_value(card)}, expected one of {', '.join(CARDS)}", code="option.check_card"
        )
    return CARDS[card]


def _count(cards: object) -> int:
    if not isinstance(cards, int) or isinstance(cards, bool) or not 1 <= cards <= _MOST_CARDS:
        raise OptionError(
            f"cards: found {format_value(cards)}, expected a number from 1 to {_MOST_CARDS}",
            code="option.check_cards",
        )
    return cards


def _fixed(resolved: ResolvedOptions, card: Card) -> Fixed:
    """Return the settings from options. Raises OptionConflictError if the card has fewer cores."""
    asked = resolved.as_given
    fixed = Fixed(
        resolved.compile.aic_num_cores if "aic_num_cores" in asked else None,
        resolved.runtime.num_activations if "num_activations" in asked else None,
        resolved.compile.batchsize,
        resolved.runtime.set_size if "set_size" in asked else None,
    )
    needed = (fixed.cores or 1) * (fixed.instances or 1)
    if needed > card.cores:
        raise OptionConflictError(
            f"aic_num_cores x num_activations: found {fixed.cores or 1} x {fixed.instances or 1}, expected "
            f"at most the {card.cores} cores of a device of the {card.name} card",
            code="option.check_cores",
            context={"cores": needed},
        )
    return fixed
