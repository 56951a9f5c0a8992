"""Compilation with a setting, quantization with onnxruntime, and comparison of results with float32."""

from __future__ import annotations

import contextlib
import io
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    calibrate,
    quantize_static,
    shape_inference,
)

import qaic

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray

    from .tasks import Feeds, Task

SCHEMAS = ("symmetric_with_uint8", "asymmetric", "symmetric", "symmetric_with_power2_scale")
CALIBRATIONS = ("None", "KLMinimization", "KLMinimizationV2", "Percentile", "MSE", "SQNR")
#: Percentage of the values that the Percentile calibrations of both sides keep.
PERCENTILE = 99.99
#: One scale for each output channel of a convolution and each column of a matrix.
FINE: dict[str, object] = {"enable_channelwise": True, "enable_rowwise": True}
#: Kinds that multiply a value by many weights: most of the work, and the purpose of integer kernels.
WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True)
class Score:
    """Differences of the results from those of float32."""

    sqnr_db: float
    cosine: float
    #: Share of equal decisions.
    agreement: float
    #: Share of the truth that was found, if the truth is known.
    truth: float | None
    size_bytes: int

    @classmethod
    def of(
        cls, task: Task, reference: list[NDArray[Any]], found: list[NDArray[Any]], size_bytes: int
    ) -> Score:
        """Compare outputs, sample by sample."""
        pairs = [
            (a.astype(np.float64).ravel(), b.astype(np.float64).ravel())
            for a, b in zip(reference, found, strict=True)
        ]
        noise = sum(float(np.sum((a - b) ** 2)) for a, b in pairs)
        signal = sum(float(np.sum(a**2)) for a, _ in pairs)
        lengths = [np.linalg.norm(a) * np.linalg.norm(b) for a, b in pairs]
        same = [
            task.decisions(a).argmax(axis=1) == task.decisions(b).argmax(axis=1)
            for a, b in zip(reference, found, strict=True)
        ]
        return cls(
            sqnr_db=10 * np.log10(signal / noise) if noise else np.inf,
            cosine=float(
                np.mean([a @ b / max(length, 1e-30) for (a, b), length in zip(pairs, lengths, strict=True)])
            ),
            agreement=float(np.mean(np.concatenate(same))),
            truth=task.truth(found) if task.truth else None,
            size_bytes=size_bytes,
        )

    @property
    def rank(self) -> tuple[float, float]:
        """Larger is better: equal decisions first, then the signal-to-noise ratio."""
        return self.agreement, self.sqnr_db


def reference(task: Task) -> tuple[list[NDArray[Any]], Score]:
    """Return the results of onnxruntime in float32."""
    session = their_session(task.path)
    outputs = [session.run(None, feeds)[0] for feeds in task.evaluation]
    return outputs, Score.of(task, outputs, outputs, task.path.stat().st_size)


def profile(task: Task, target: Path, bins: int) -> None:
    """Measure the tensors of the model on the calibration samples, once for all settings."""
    options = {"dump_profile": target, "calibration_data": task.calibration, "num_histogram_bins": bins}
    qaic.Session(task.path, **task.options, **options).setup()


def our_session(task: Task, **options: object) -> qaic.Session:
    """Compile with this setting."""
    session = qaic.Session(task.path, **task.options, **options)
    session.setup()
    return session


def our_score(task: Task, expected: list[NDArray[Any]], folder: Path, **options: object) -> Score:
    """Compile with a setting, and judge the results."""
    target = folder / "container"
    with our_session(task, output_dir=target, **options) as session:
        found = [next(iter(session.run(feeds).values())) for feeds in task.evaluation]
    return Score.of(task, expected, found, (target / "programqpc.bin").stat().st_size)


class _Reader(CalibrationDataReader):
    def __init__(self, samples: Iterable[Feeds]) -> None:
        self._samples = iter(samples)

    def get_next(self) -> Feeds:
        """Return the next sample, or None."""
        return next(self._samples, {})


#: Bins of openqaic's histograms, unless a setting selects another number. onnxruntime's Entropy calibration
#: also has this number, because its default of 128 gives only one candidate.
BINS = 512
#: Bins of onnxruntime's Percentile calibration.
FINE_BINS = 2048


def their_model(
    task: Task, folder: Path, method: str, *, per_channel: bool, kinds: tuple[str, ...] = ()
) -> Path:
    """Quantize with onnxruntime's tool: QDQ form, uint8 activations, int8 weights, as its guide recommends.

    `method` is one of its calibrations, or ``Entropy512`` for Entropy with the number of bins of openqaic.
    """
    prepared = folder / f"{task.path.stem}.prepared.onnx"
    ranges = folder / f"{task.path.stem}.{method}.{len(kinds)}.json"
    target = folder / f"{task.path.stem}.{method}.{per_channel}.{len(kinds)}.onnx"
    # The tool warns about its normal steps, and prints while it works.
    logging.disable(logging.WARNING)
    with contextlib.redirect_stdout(io.StringIO()):
        if not prepared.exists():
            shape_inference.quant_pre_process(task.fixed(folder), prepared, skip_symbolic_shape=True)
        if method == "Entropy512" and not ranges.exists():
            _calibrate_finely(task, prepared, ranges)

        def quantized(**options: object) -> None:
            quantize_static(
                prepared,
                target,
                _Reader(task.calibration),
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=list(kinds) or None,
                per_channel=per_channel,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                calibrate_method=getattr(CalibrationMethod, method.removesuffix("512")),
                extra_options={"CalibPercentile": PERCENTILE, **options},
                calibration_cache_path=ranges,
            )

        try:
            quantized()
        except ValueError:
            # Per channel, its adjustment of weights to biases fails on a convolution of Magika.
            quantized(QDQDisableWeightAdjustForInt32Bias=True)
    logging.disable(logging.NOTSET)
    return target


def _calibrate_finely(task: Task, model: Path, ranges: Path) -> None:
    calibrator = calibrate.create_calibrator(
        model,
        augmented_model_path=str(ranges.with_suffix(".onnx")),
        calibrate_method=CalibrationMethod.Entropy,
        extra_options={"num_bins": BINS, "num_quantized_bins": 128},
    )
    calibrator.collect_data(_Reader(task.calibration))
    calibrate.save_tensors_data(calibrator.compute_data(), ranges)


def their_session(model: Path) -> onnxruntime.InferenceSession:
    """One thread; all other settings are defaults."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def their_score(task: Task, expected: list[NDArray[Any]], model: Path) -> Score:
    """Judge a model that onnxruntime's tool quantized."""
    session = their_session(model)
    found = [session.run(None, feeds)[0] for feeds in task.evaluation]
    return Score.of(task, expected, found, model.stat().st_size)
