"""NNCF's `quantize_with_accuracy_control` on the recognizer: its result for the same target."""

from __future__ import annotations

import importlib.util
import logging
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from . import tasks as accuracy_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from numpy.typing import NDArray

#: Lines for the ranking, in which NNCF runs them once for each operation that it could revert.
_RANKED = 8


def sentence(samples: int, drop: float) -> str:
    """Quantize, evaluate like the searches of openqaic, and report the result.

    Parameters
    ----------
    samples
        Lines; the last fifth is held out, as a search does.
    drop
        Share of decisions that may differ from float32.
    """
    if not all(map(importlib.util.find_spec, ("nncf", "openvino"))):
        return "NNCF and OpenVINO are not installed, so `quantize_with_accuracy_control` was not run."
    import nncf
    import openvino as ov

    logging.getLogger("nncf").setLevel(logging.ERROR)
    task = accuracy_tasks.recognizer(32, samples)
    with tempfile.TemporaryDirectory(prefix="openqaic-accuracy-") as folder:
        model = ov.Core().read_model(task.fixed(Path(folder)))
    seen, back = task.evaluation[: -(samples // 5)], task.evaluation[-(samples // 5) :]
    plain = _compiled(model)
    expected = {id(feeds): _decisions(plain, feeds[task.input_name]) for feeds in task.evaluation}

    def same(program: Any, given: Iterable[dict[str, NDArray[Any]]]) -> tuple[float, list[float]]:
        shares = [
            float(np.mean(_decisions(program, feeds[task.input_name]) == expected[id(feeds)]))
            for feeds in given
        ]
        return float(np.mean(shares)), shares

    def inputs(feeds: dict[str, NDArray[Any]]) -> NDArray[Any]:
        return feeds[task.input_name]

    begin, wall = time.process_time(), time.monotonic()
    whole = nncf.quantize(model, nncf.Dataset(task.calibration, inputs))
    before, _ = same(_compiled(whole), seen)
    result = nncf.quantize_with_accuracy_control(
        model,
        nncf.Dataset(task.calibration, inputs),
        nncf.Dataset(seen),
        validation_fn=same,
        max_drop=drop,
        drop_type=nncf.DropType.ABSOLUTE,
        advanced_accuracy_restorer_parameters=nncf.AdvancedAccuracyRestorerParameters(
            ranking_subset_size=_RANKED
        ),
    )
    program = _compiled(result)
    after, held = same(program, seen)[0], same(program, back)[0]
    quantized = [_quantizers(item) for item in (whole, result)]
    return (
        f"For comparison, NNCF {version('nncf')}'s `quantize_with_accuracy_control` (OpenVINO "
        f"{version('openvino')}) quantized the recognizer with {len(seen)} lines, a limit of {drop:.0%} for "
        f"the loss, and {_RANKED} lines for its ranking. The share of equal decisions was {before:.1%} "
        f"before and {after:.1%} after, and {held:.1%} on the {len(back)} lines that were held out. "
        f"NNCF reverted {quantized[0] - quantized[1]} of {quantized[0]} quantizers, in "
        f"{time.process_time() - begin:.0f} s of processor time and {time.monotonic() - wall:.0f} s."
    )


def _decisions(program: Any, array: NDArray[Any]) -> NDArray[np.int64]:
    found: NDArray[np.int64] = program(array)[0].argmax(axis=-1)
    return found


def _compiled(model: Any) -> Any:
    import openvino as ov

    # float32 for nodes without integers: by default, OpenVINO uses bfloat16 if the processor has it.
    return ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def _quantizers(model: Any) -> int:
    return sum(node.get_type_name() == "FakeQuantize" for node in model.get_ops())
