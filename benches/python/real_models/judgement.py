"""Comparison of one model in one precision with onnxruntime on the original file, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .catalog import RealModel

#: Compile options of each precision.
PRECISIONS: dict[str, dict[str, object]] = {
    "float32": {},
    "float16": {"convert_to_fp16": True},
    "int8": {
        "convert_to_quantize": True,
        "quantization_precision": "Int8",
        "enable_channelwise": True,
        "enable_rowwise": True,
    },
}
SAMPLES = 4
#: Seconds after which a process is ended: a safety limit, not a measurement.
LIMIT_S = 900


@dataclass(frozen=True)
class Judgement:
    """Result of one model in one precision.

    ``sqnr_db`` is of the output that is farthest from onnxruntime's, over all samples; None where every
    output is equal bit for bit. ``equal`` is the share of equal elements in outputs of integers and booleans.
    """

    outcome: str
    sqnr_db: float | None = None
    largest: float | None = None
    equal: float | None = None
    nonfinite: int = 0
    #: Largest difference that onnxruntime's own graph optimizations cause, measured with float32.
    optimized: float | None = None
    message: str = ""


def judged(model: RealModel, file: Path, precision: str) -> Judgement:
    """Compile and run the model in a child process, which can crash."""
    command = [sys.executable, "-m", "python.real_models.judgement", str(file), precision]
    specification = {"symbols": model.symbols, "inputs": model.inputs, "options": model.options}
    home = Path(__file__).parents[2]
    try:
        # A cache can contain programs of the same version that other code compiled.
        with tempfile.TemporaryDirectory() as cache:
            child = subprocess.run(
                command,
                input=json.dumps(specification),
                capture_output=True,
                text=True,
                cwd=home,
                env={**os.environ, "QAIC_CACHE_DIR": cache},
                timeout=LIMIT_S,
                check=False,
            )
    except subprocess.TimeoutExpired:
        return Judgement("endless", message=f"not done after {LIMIT_S} s")
    if child.returncode < 0:
        return Judgement("died", message=f"signal {-child.returncode}")
    lines = child.stdout.splitlines()
    if child.returncode or not lines:
        return Judgement("traceback", message=(child.stderr.strip().splitlines() or ["no output"])[-1])
    return Judgement(**json.loads(lines[-1]))


def _judge(file: Path, precision: str, specification: dict[str, Any]) -> Judgement:
    import onnxruntime

    import qaic
    from qaic.errors import QaicError

    levels = onnxruntime.GraphOptimizationLevel
    try:
        # The reference excludes the optimizations of the engine.
        original = _engine_session(file, specification, levels.ORT_DISABLE_ALL)
        samples = _samples(original, file, specification)
        expected = [original.run(None, sample) for sample in samples]
    except Exception as error:  # noqa: BLE001 (the engine's own refusal is a result, of any type)
        return Judgement("not run by onnxruntime", message=_line(error))
    shapes = {"onnx_define_symbol": specification["symbols"]} if specification["symbols"] else {}
    calibration = {"calibration_data": samples} if precision == "int8" else {}
    wanted = {**PRECISIONS[precision], **shapes, **calibration, **specification["options"]}
    if any("shape" in item for item in specification["inputs"].values()):
        wanted["model_inputs"] = [f"{name},{x.dtype},{list(x.shape)}" for name, x in samples[0].items()]
    try:
        with tempfile.TemporaryDirectory() as folder:
            names = [item.name for item in original.get_outputs()]
            with qaic.Session(file, output_dir=Path(folder) / "qpc", **wanted) as session:
                found = [[outputs[name] for name in names] for outputs in map(session.run, samples)]
    except QaicError as error:
        return Judgement(
            "refused", message=_line("; fix: ".join([f"{error.code}: {error.message}", *error.hints]))
        )
    judgement = _compared(expected, found)
    if precision == "float32":
        optimized = _engine_session(file, specification, levels.ORT_ENABLE_ALL)
        theirs = _compared(expected, [optimized.run(None, sample) for sample in samples])
        judgement = replace(judgement, optimized=theirs.largest)
    return judgement


def _engine_session(file: Path, specification: dict[str, Any], level: Any) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 4
    for symbol, size in specification["symbols"].items():
        options.add_free_dimension_override_by_name(symbol, size)
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def _compared(expected: list[list[NDArray[Any]]], found: list[list[NDArray[Any]]]) -> Judgement:
    worst, largest, equal, nonfinite = None, 0.0, None, 0
    for ours, theirs in zip(zip(*found, strict=True), zip(*expected, strict=True), strict=True):
        if any(np.shape(a) != np.shape(b) for a, b in zip(ours, theirs, strict=True)):
            return Judgement("other shape", message=f"{np.shape(ours[0])} for {np.shape(theirs[0])}")
        a = np.concatenate([np.ravel(array) for array in ours])
        b = np.concatenate([np.ravel(array) for array in theirs])
        if b.dtype.kind != "f":
            share = float(np.mean(a == b)) if b.size else 1.0
            equal = share if equal is None else min(equal, share)
            continue
        a, b = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(b)
        nonfinite += int(np.sum(~np.isfinite(a) & finite))
        both = finite & np.isfinite(a)
        noise = float(np.sum((a[both] - b[both]) ** 2))
        signal = float(np.sum(b[both] ** 2))
        if noise and signal:
            sqnr = float(10 * np.log10(signal / noise))
            worst = sqnr if worst is None else min(worst, sqnr)
            largest = max(largest, float(np.max(np.abs(a - b)[both]) / np.max(np.abs(b[both]))))
        elif noise:
            worst, largest = -np.inf, np.inf
    return Judgement("ran", worst, largest, equal, nonfinite, None)


def _samples(session: Any, file: Path, specification: dict[str, Any]) -> list[dict[str, NDArray[Any]]]:
    draw = np.random.default_rng(zlib.crc32(file.name.encode()))
    types = {"float": np.float32, "double": np.float64, "float16": np.float16, "bool": np.bool_}
    types |= {
        kind: np.dtype(kind).type for kind in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
    }
    samples = []
    for _ in range(SAMPLES):
        sample = {}
        for item in session.get_inputs():
            how = specification["inputs"].get(item.name, {})
            sizes = how.get("shape") or item.shape
            shape = [size if isinstance(size, int) else specification["symbols"][size] for size in sizes]
            kind = types[item.type.removeprefix("tensor(").removesuffix(")")]
            sample[item.name] = _array(draw, shape, kind, how)
        samples.append(sample)
    return samples


def _array(draw: np.random.Generator, shape: list[int], kind: type[Any], how: dict[str, Any]) -> NDArray[Any]:
    if "values" in how:
        return np.broadcast_to(np.asarray(how["values"], kind), shape).copy()
    if kind is np.bool_:
        return draw.integers(0, 2, shape).astype(kind)
    low, high = how.get("low", 0), how.get("high", 1 if issubclass(kind, np.floating) else 2)
    if issubclass(kind, np.floating):
        return draw.uniform(low, high, shape).astype(kind)
    return draw.integers(low, high, shape).astype(kind)


def _line(text: object) -> str:
    return " ".join(str(text).split())[:400]


if __name__ == "__main__":
    given = json.loads(sys.stdin.read())
    print(json.dumps(asdict(_judge(Path(sys.argv[1]), sys.argv[2], given))))
