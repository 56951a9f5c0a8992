"""Cost of calibration with one more sample, compared with an ordinary inference of the same model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .harness import models
from .harness.row import Row, at_most
from .harness.spread import Spread
from .harness.worker import measure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qaic.compiler.ir.quantization import CalibrationProfile

    from .harness.effort import Effort

#: Samples for calibrations of two sizes, so that costs of each calibration cancel.
_FEW = 3

#: New processes for each row.
_PROCESSES = 5

#: Title -> `quantization_calibration`.
_KINDS = {"ranges": "None", "histograms": "MSE"}


def calibrating(folder: str, name: str, calibration: str, samples: int) -> dict[str, float]:
    """Processor time per sample: calibration, an ordinary inference, and processing of values (in a worker).

    All work runs on one thread, so processor time equals time even on a busy machine. It excludes loading,
    lowering and other work that runs once.
    """
    import qaic

    model = models.load(name, Path(folder))
    counted, _ = _profiled(model, "MSE", 1)
    _, first = _profiled(model, calibration, _FEW)
    _, more = _profiled(model, calibration, _FEW + samples)
    with qaic.Session(model.path, aic_num_cores=1, **model.options) as session:
        session.run(model.feeds)
        started = time.process_time()
        for _ in range(samples):
            session.run(model.feeds)
        plain = (time.process_time() - started) / samples
    return {
        "calibrating": (more - first) / samples,
        "plain": plain,
        "counting": _counting(counted, calibration),
    }


def _profiled(model: models.Model, calibration: str, samples: int) -> tuple[CalibrationProfile, float]:
    from qaic.compiler.diagnostics.progress import Progress
    from qaic.compiler.frontend.files import onnx_file
    from qaic.compiler.pipeline import lower
    from qaic.options import resolve

    options = resolve(
        {
            "convert_to_quantize": True,
            "calibration_data": [model.feeds] * samples,
            "quantization_calibration": calibration,
            "profiling_threads": 1,
            **model.options,
        },
        options_path=None,
        model_is_container=False,
    )
    started = time.process_time()
    with onnx_file.open_model(model.path) as source, Progress("benchmark") as progress:
        _, context = lower(source, options.compile, progress)
    seconds = time.process_time() - started
    assert context.profile is not None
    return context.profile, seconds


def _counting(profile: CalibrationProfile, calibration: str) -> float:
    """Measure the processing of arrays with the sizes of the tensors."""
    from qaic.compiler.calibration.collector import HistogramRecord, RangeRecord

    generator = np.random.default_rng(0)
    # Tensors with equal values are measured once.
    measured = {id(tensor): tensor.histogram for tensor in profile.tensors.values()}
    arrays = [
        generator.standard_normal(int(histogram.sum(dtype=np.float64)), np.float32)
        for histogram in measured.values()
        if histogram is not None
    ]
    kind = RangeRecord if calibration == "None" else HistogramRecord
    records = [kind() for _ in arrays]
    best = float("inf")
    for _ in range(5):
        started = time.process_time()
        for record, array in zip(records, arrays, strict=True):
            record.add(array)
        best = min(best, time.process_time() - started)
    return best


def calibrate_rows(folder: str, effort: Effort) -> Iterator[Row]:
    """Rows of the group `calibrate`."""
    samples = 30 if effort.quick else 60
    for name in models.NAMES[1:]:
        for title, calibration in _KINDS.items():
            found = [
                measure("calibrating", folder=folder, name=name, calibration=calibration, samples=samples)
                for _ in range(min(effort.processes, _PROCESSES))
            ]
            ratio = Spread.of([(one["calibrating"] - one["counting"]) / one["plain"] for one in found], "x")
            beside = tuple(
                (label, Spread.of([one[key] for one in found], "s"))
                for label, key in (("one run", "plain"), (f"{title} alone", "counting"))
            )
            yield Row(
                f"{models.TITLES[name]}: one more sample, {title}",
                Spread.of([one["calibrating"] for one in found], "s"),
                beside,
                **at_most(ratio, 1.3),
            )
