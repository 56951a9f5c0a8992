"""``openqaic demo``: classifies real files, and compares with onnxruntime in the same run."""

import argparse
import importlib.util
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qaic import Session
from qaic.cli.console import Parser, print_line, print_message, print_text
from qaic.cli.openqaic.arguments import set_examples
from qaic.cli.openqaic.commands.bench import OnnxRuntimeSession
from qaic.errors import InputError, StateError
from qaic.report.text import rows_text

_NEWEST_KNOWN = "standard_v3_3"
_PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class FileTypeModel:
    """The model file and the preparation of its inputs.

    Features (Magika's model card): up to 1024 bytes from the start of a file and 1024 from its end, white
    space stripped, padded with the token 256.
    """

    path: Path
    labels: tuple[str, ...]
    begin_bytes: int
    end_bytes: int
    block_bytes: int
    padding: int
    smallest_file_bytes: int

    @classmethod
    def installed(cls) -> "FileTypeModel":
        """Find the model in the installed package, without importing it.

        Raises StateError if the package is not installed.
        """
        spec = importlib.util.find_spec("magika")
        folders = list(spec.submodule_search_locations or ()) if spec else []
        models = sorted(
            path.parent for folder in folders for path in Path(folder).glob("models/*/model.onnx")
        )
        if not models:
            raise StateError(
                "the demo's model is not installed: no package magika with a model.onnx was found",
                code="demo.model_missing",
                hints=("pip install --no-deps magika",),
            )
        folder = next((path for path in models if path.name == _NEWEST_KNOWN), models[-1])
        config = json.loads((folder / "config.min.json").read_text())
        return cls(
            path=folder / "model.onnx",
            labels=tuple(config["target_labels_space"]),
            begin_bytes=config["beg_size"],
            end_bytes=config["end_size"],
            block_bytes=config["block_size"],
            padding=config["padding_token"],
            smallest_file_bytes=config["min_file_size_for_dl"],
        )

    def features(self, path: Path) -> NDArray[np.int32] | None:
        """Return features of one file, int32 of shape (1, begin + end); ``None`` for a very small file."""
        with path.open("rb") as file:
            first = file.read(self.block_bytes)
            size = path.stat().st_size
            file.seek(max(0, size - self.block_bytes))
            last = file.read(self.block_bytes)
        begin = first.lstrip()[: self.begin_bytes]
        end = last.rstrip()[-self.end_bytes :]
        if len(begin) < self.smallest_file_bytes:
            return None
        tokens = np.full(self.begin_bytes + self.end_bytes, self.padding, np.int32)
        tokens[: len(begin)] = np.frombuffer(begin, np.uint8)
        tokens[len(tokens) - len(end) :] = np.frombuffer(end, np.uint8)
        return tokens.reshape(1, -1)


_SKIPPED_FOLDERS = {
    ".git",
    ".venv",
    "target",
    "__pycache__",
    "node_modules",
    ".hypothesis",
    ".mypy_cache",
    ".ruff_cache",
}
_MOST_FILES = 200
LATENCY_RUNS = 300
THROUGHPUT_ROUNDS = 5
_THROUGHPUT_SECONDS = 0.4
_TOLERANCE = 1e-4


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="files or folders (default: the current folder)"
    )
    parser.add_argument(
        "--limit", type=int, default=12, metavar="N", help="number of files to list (default: %(default)s)"
    )
    set_examples(parser, "openqaic demo", "openqaic demo ~/Downloads --limit 30")


def run(arguments: argparse.Namespace) -> int:
    """Compile the model, classify files, measure, and compare. The exit code is 1 if results differ."""
    model = FileTypeModel.installed()
    paths = arguments.paths or ["."]
    files = _collect(paths)
    features = {path: tokens for path in files if (tokens := model.features(path)) is not None}
    if not features:
        raise InputError(
            f"{', '.join(paths)}: no regular file with {model.smallest_file_bytes} bytes of content "
            "or more was found",
            code="demo.no_files",
        )
    if len(files) > len(features):
        count = len(files) - len(features)
        print_message("note", f"{count} too short to classify (less than {model.smallest_file_bytes} bytes)")
    print_line(f"model: {model.path} (Magika, a trained file-type classifier)")
    threads = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="openqaic-demo-") as folder:
        started = time.perf_counter()
        session = _compile(model, features, folder, cores=1, activations=threads)
        print_line(
            f"compiled {model.path.name} ({model.path.stat().st_size / 1e6:.1f} MB) to programqpc.bin in "
            f"{time.perf_counter() - started:.2f} s"
        )
        with session:
            reference = OnnxRuntimeSession(model.path)
            largest_difference = _classify(model, features, session, reference, arguments.limit)
            _measure(next(iter(features.values())), session, reference, threads)
    agree = largest_difference <= _TOLERANCE
    print_line()
    print_line(
        f"answers {'agree' if agree else 'DIFFER'} on {len(features)} inputs: "
        f"largest difference of a probability {largest_difference:.1e}"
    )
    return 0 if agree else 1


def _collect(paths: Sequence[str]) -> list[Path]:
    files: list[Path] = []
    for name in paths:
        path = Path(name)
        if path.is_dir():
            for folder, folders, names in os.walk(path):
                folders[:] = sorted(set(folders) - _SKIPPED_FOLDERS)
                files += [Path(folder, name) for name in sorted(names)]
        else:
            # A file that the user named must exist; stat() raises if it does not.
            path.stat()
            files.append(path)
    regular = [path for path in files if path.is_file()]
    if len(regular) > _MOST_FILES:
        print_message("note", f"{len(regular)} files found, the first {_MOST_FILES} are used")
    return regular[:_MOST_FILES]


def _compile(
    model: FileTypeModel, features: dict[Path, NDArray[Any]], folder: str, *, cores: int, activations: int
) -> Session:
    (tokens,) = {tokens.shape for tokens in features.values()}
    return Session(
        model.path,
        output_dir=folder,
        model_inputs=[{"input_name": "bytes", "input_type": "int32", "input_shape": list(tokens)}],
        aic_num_cores=cores,
        num_activations=activations,
        set_size=2,
    )


def _classify(
    model: FileTypeModel,
    features: dict[Path, NDArray[Any]],
    session: Session,
    reference: OnnxRuntimeSession,
    shown: int,
) -> float:
    (output,) = session.model_output_shape_dict
    rows = []
    largest_difference = 0.0
    for path, tokens in features.items():
        scores = session.run({"bytes": tokens})[output]
        largest_difference = max(
            largest_difference, float(np.abs(scores - reference.run({"bytes": tokens})[0]).max())
        )
        best = int(scores[0].argmax())
        rows.append([path, model.labels[best], 100 * float(scores[0, best])])
    print_line()
    print_text(rows_text("file | label | confidence:percent", rows[:shown]))
    if len(rows) > shown:
        print_line(f"... and {len(rows) - shown} more")
    return largest_difference


def _measure(tokens: NDArray[Any], session: Session, reference: OnnxRuntimeSession, threads: int) -> None:
    print_line()
    print_line("comparing with onnxruntime, a few seconds")
    feeds = {"bytes": tokens}
    ours: list[float] = []
    theirs: list[float] = []
    # Both run alternately, so the load of the machine is the same for both.
    for _ in range(LATENCY_RUNS):
        ours.append(_milliseconds(lambda: session.run(feeds)))
        theirs.append(_milliseconds(lambda: reference.run(feeds)))
    ours_per_second: list[float] = []
    theirs_per_second: list[float] = []
    for _ in range(THROUGHPUT_ROUNDS):
        ours_per_second.append(session.run_benchmark(inf_time=_THROUGHPUT_SECONDS, input_dict=feeds)[1])
        theirs_per_second.append(reference.measure(feeds, threads=threads, duration_s=_THROUGHPUT_SECONDS)[1])
    rows = [
        ["openqaic", *np.percentile(ours, _PERCENTILES), median(ours_per_second)],
        ["onnxruntime", *np.percentile(theirs, _PERCENTILES), median(theirs_per_second)],
    ]
    figures = " | ".join(f"p{rank}:float ms" for rank in _PERCENTILES)
    print_line()
    print_text(rows_text(f"engine | {figures} | inferences/s on {threads} threads:float", rows))


def _milliseconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3
