"""The two trained models of the accuracy report, their samples, and a measure of their results."""

from __future__ import annotations

import importlib.util
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from . import data as accuracy_data

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from numpy.typing import NDArray

    Feeds = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Task:
    """A model, samples for calibration, and other samples for evaluation."""

    title: str
    path: Path
    input_name: str
    input_type: str
    shape: tuple[int, ...]
    calibration: list[Feeds]
    evaluation: list[Feeds]
    #: Class probabilities of an output: (decisions, classes).
    decisions: Callable[[NDArray[np.float32]], NDArray[np.float32]]
    #: Share of the truth that was found, from the outputs; None if the truth is not known.
    truth: Callable[[Sequence[NDArray[np.float32]]], float] | None
    #: Kinds with values beyond the range of float16, and the reason.
    beyond_fp16: tuple[tuple[str, ...], str] = ((), "")

    @property
    def options(self) -> dict[str, object]:
        """Options that fix the shapes of the model."""
        spec = {"input_name": self.input_name, "input_type": self.input_type, "input_shape": list(self.shape)}
        return {"model_inputs": [spec]}

    def fixed(self, folder: Path) -> Path:
        """The same model with fixed shapes and a recent operator set, for onnxruntime's quantizer."""
        from onnx import version_converter

        target = folder / f"{self.path.stem}.fixed.onnx"
        if not target.exists():
            model = onnx.load(self.path)
            (entry,) = [entry for entry in model.graph.input if entry.name == self.input_name]
            for dim, size in zip(entry.type.tensor_type.shape.dim, self.shape, strict=True):
                dim.dim_value = size
            del model.graph.value_info[:]
            if model.opset_import[0].version < 17:
                model = version_converter.convert_version(model, 17)
            onnx.save(model, target)
        return target


def magika(calibration: int, evaluation: int) -> Task:
    """Magika, the file-type classifier: an embedding, a convolution over 512 positions, two dense layers."""
    from qaic.cli.demo import FileTypeModel

    model = FileTypeModel.installed()
    feeds = []
    with tempfile.TemporaryDirectory() as folder:
        for _, content in accuracy_data.contents(calibration + evaluation):
            file = Path(folder, "content")
            file.write_bytes(content)
            tokens = model.features(file)
            if tokens is not None:
                feeds.append({"bytes": tokens})
    return Task(
        title="Magika, file types (3 MB)",
        path=model.path,
        input_name="bytes",
        input_type="int32",
        shape=(1, model.begin_bytes + model.end_bytes),
        calibration=feeds[:calibration],
        evaluation=feeds[calibration:],
        decisions=lambda output: output.reshape(-1, output.shape[-1]),
        truth=None,
        beyond_fp16=(
            ("ReduceSum", "Mul"),
            "A normalization sums the squares of its values in one ReduceSum. The sum exceeds 65504, so it "
            "becomes infinite if every result is rounded to float16. Keep such a sum in float32 with "
            "`keep_original_precision_for_nodes`.",
        ),
    )


def recognizer(calibration: int, evaluation: int) -> Task:
    """PP-OCRv4's recognizer of text lines: a convolutional net, two attention blocks, 40 decisions a line."""
    path = _packaged("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx")
    properties = {
        entry.key: entry.value for entry in onnx.load(path, load_external_data=False).metadata_props
    }
    # The first class means no character; a space follows the listed characters.
    alphabet = ["", *properties["character"].splitlines(), " "]
    lines = list(accuracy_data.text_lines(calibration + evaluation))
    texts = [text for text, _ in lines[calibration:]]

    def read(output: NDArray[np.float32]) -> str:
        best = output.reshape(-1, output.shape[-1]).argmax(axis=1)
        kept = best[np.flatnonzero(np.append(True, best[1:] != best[:-1]))]
        return "".join(alphabet[index] for index in kept)

    def truth(outputs: Sequence[NDArray[np.float32]]) -> float:
        return float(
            np.mean([_likeness(read(output), text) for output, text in zip(outputs, texts, strict=True)])
        )

    return Task(
        title="PP-OCRv4 recognizer, lines of text (11 MB)",
        path=path,
        input_name="x",
        input_type="float32",
        shape=(1, 3, *accuracy_data.LINE),
        calibration=[{"x": picture} for _, picture in lines[:calibration]],
        evaluation=[{"x": picture} for _, picture in lines[calibration:]],
        decisions=lambda output: output.reshape(-1, output.shape[-1]),
        truth=truth,
    )


def _packaged(package: str, file: str) -> Path:
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if Path(folder, file).exists():
            return Path(folder, file)
    raise SystemExit(f"{package} is not installed: pip install --no-deps --group accuracy")


def _likeness(found: str, expected: str) -> float:
    """1 minus the edit distance per character, without spaces, at least 0."""
    found, expected = found.replace(" ", ""), expected.replace(" ", "")
    row = list(range(len(expected) + 1))
    for i, a in enumerate(found, 1):
        previous, row[0] = row[0], i
        for j, b in enumerate(expected, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (a != b))
    return max(0.0, 1 - row[-1] / max(1, len(expected)))
