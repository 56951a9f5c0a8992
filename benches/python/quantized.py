"""int8 compared with float32, and with onnxruntime's quantizer for the same model and samples."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .harness import models
from .harness.row import Row, at_most
from .harness.spread import Spread, ratios
from .harness.worker import measure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .harness.effort import Effort

#: Model -> its heading.
_SUBJECTS = {
    "products": "MatMul-Gelu-MatMul 128 x 768 x 3072",
    "convolutions": "Conv-Relu-Conv 64 channels 56 x 56",
    "conv": models.TITLES["conv"],
    "magika": models.TITLES["magika"],
}
_OURS, _FLOAT, _THEIRS, _THEIR_FLOAT = "int8", "float32", "onnxruntime int8", "onnxruntime float32"
_SAMPLES = 8


def int8_latency(folder: str, name: str, batches: int, seconds: float) -> dict[str, list[float]]:
    """Time a run of each side on one thread (in a worker)."""
    import qaic

    from .harness import sessions
    from .harness.timing import in_turns

    model = models.load(name, Path(folder))
    samples = _samples(model)
    ours = sessions.ours(
        model,
        aic_num_cores=1,
        convert_to_quantize=True,
        calibration_data=samples,
        enable_channelwise=True,
        enable_rowwise=True,
    )
    assert isinstance(ours, qaic.Session)
    subjects = {
        _OURS: partial(ours.run, model.feeds),
        _FLOAT: partial(sessions.ours(model, aic_num_cores=1).run, model.feeds),
        _THEIR_FLOAT: partial(sessions.theirs(model, 1).run, None, model.feeds),
        _THEIRS: partial(_quantized_by_onnxruntime(model, samples).run, None, model.feeds),
    }
    return in_turns(subjects, batches, seconds)


def _samples(model: models.Model) -> list[dict[str, Any]]:
    generator = np.random.default_rng(5)
    return [
        {
            name: generator.standard_normal(value.shape, np.float32)
            if value.dtype == np.float32
            else generator.integers(0, 257, value.shape).astype(value.dtype)
            for name, value in model.feeds.items()
        }
        for _ in range(_SAMPLES)
    ]


def _quantized_by_onnxruntime(model: models.Model, samples: list[dict[str, Any]]) -> Any:
    """Quantize statically: QDQ, unsigned activations, signed weights per channel, MinMax."""
    import onnxruntime
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = iter(samples)

        def get_next(self) -> dict[str, Any] | None:
            return next(self._left, None)

    with tempfile.TemporaryDirectory(prefix="openqaic-bench-") as folder:
        prepared, quantized = Path(folder, "prepared.onnx"), Path(folder, "quantized.onnx")
        quant_pre_process(str(model.path), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            prepared,
            quantized,
            Reader(),
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            # Without this setting, version 1.31 fails on Magika.
            extra_options={"QDQDisableWeightAdjustForInt32Bias": True},
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        return onnxruntime.InferenceSession(str(quantized), options, providers=["CPUExecutionProvider"])


def int8_rows(folder: str, effort: Effort) -> Iterator[Row]:
    """Rows of the group `int8`."""
    for name, title in _SUBJECTS.items():
        found = measure(
            "int8_latency", folder=folder, name=name, batches=effort.batches, seconds=effort.batch_s
        )
        float_ratio = ratios(found[_OURS], found[_FLOAT])
        theirs_gain = Spread.of(found[_THEIRS], "s").median < Spread.of(found[_THEIR_FLOAT], "s").median
        ours = Spread.of(found[_OURS], "s")
        yield Row(
            f"{title}: int8, compared with float32",
            ours,
            (("float32", Spread.of(found[_FLOAT], "s")),),
            **(at_most(float_ratio, 1) if theirs_gain else {"ratio": float_ratio}),
        )
        yield Row(
            f"{title}: int8, compared with onnxruntime's",
            ours,
            (
                ("int8", Spread.of(found[_THEIRS], "s")),
                ("float32", Spread.of(found[_THEIR_FLOAT], "s")),
            ),
            ratios(found[_OURS], found[_THEIRS]),
        )
