"""Compares `openqaic bench` with OpenVINO's benchmark_app on the same models: ``docs/benchmark-app.md``.

python benches/benchmark_app.py                     a conv net and a stack of products, to standard output
python benches/benchmark_app.py --write             rewrites the page
python benches/benchmark_app.py MODEL.onnx ...      your models, with fixed shapes

Both tools run as commands. In both, a stream has one thread, computes in float32 and runs one inference at a
time.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from python.harness import machine
from python.harness.models import load
from python.harness.row import table

TARGET = Path(__file__).parents[1] / "docs" / "benchmark-app.md"
TURNS = 5

INTRODUCTION = """\
# Comparison with benchmark_app

This page compares `openqaic bench` with OpenVINO's benchmark_app for the same models in float32. The two
commands ran alternately, with one thread and one inference at a time in each stream. Each figure is the
median of all runs, with its range. A ratio above 1 means that openqaic is faster; the engine of its CPU
device is onnxruntime. `python benches/benchmark_app.py --write` writes this page.
"""


def main() -> None:
    """Parse the command line, measure, print or write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", type=Path, help="default: the conv net and FFN of `make bench`")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=int, default=2, help="of each measurement (default %(default)s)")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--peer", default="benchmark_app", help="command (default %(default)s)")
    parser.add_argument("--note", default="", help="a sentence about the run, for the page")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    facts = dict(machine.facts())
    with tempfile.TemporaryDirectory() as folder:
        models = arguments.models or [load(name, Path(folder)).path for name in ("conv", "ffn")]
        facts["openvino"] = _version(shlex.split(arguments.peer), models[0])
        rows = [_row(model, streams, arguments) for model in models for streams in arguments.streams]
    header = [
        "model", "streams", "openqaic p50", "benchmark_app median", "ratio", "openqaic inferences/s",
        "benchmark_app inferences/s", "ratio",
    ]  # fmt: skip
    text = "\n".join(
        [
            INTRODUCTION,
            *([arguments.note, ""] if arguments.note else []),
            *table(["", ""], [[f"**{name}**", str(value)] for name, value in facts.items()]),
            "",
            *table(header, rows),
            "",
        ]
    )
    if arguments.write:
        TARGET.write_text(text)
    else:
        sys.stdout.write(text)


def _row(model: Path, streams: int, arguments: argparse.Namespace) -> list[str]:
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    for turn in range(arguments.turns):
        sides = [(ours, _ours), (theirs, _theirs)]
        # The sides start in turn, so neither always has the warmer machine.
        for found, measure in sides if turn % 2 == 0 else sides[::-1]:
            found.append(measure(model, streams, arguments))
    cells = [f"`{model.name}`", str(streams)]
    for place, digits, unit in ((0, 3, " ms"), (1, 1, "")):
        mine, other = ([pair[place] for pair in side] for side in (ours, theirs))
        cells += [_spread(mine, digits, unit), _spread(other, digits, unit)]
        ratios = [other / own if place == 0 else own / other for own, other in zip(mine, other, strict=True)]
        cells.append(_spread(ratios, 2, "x"))
    return cells


def _ours(model: Path, streams: int, arguments: argparse.Namespace) -> tuple[float, float]:
    """Measure with openqaic: milliseconds, inferences per second."""
    command = [sys.executable, "-m", "qaic", "bench", str(model), "--json"]
    found = _json([*command, "--streams", str(streams), "--seconds", str(arguments.seconds)])
    (row,) = found["measurements"]
    return row["latency"]["p50_us"] / 1e3, row["inferences_per_s"]


def _theirs(model: Path, streams: int, arguments: argparse.Namespace) -> tuple[float, float]:
    """Measure with benchmark_app: milliseconds, inferences per second."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *shlex.split(arguments.peer), "-m", str(model), "-d", "CPU", "-hint", "none", "-api", "async",
            "-nstreams", str(streams), "-nireq", str(streams), "-nthreads", str(streams),
            "-infer_precision", "f32", "-t", str(arguments.seconds),
            "-json_stats", "-report_type", "no_counters", "-report_folder", folder,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        reports = list(Path(folder).glob("*.json"))
        if done.returncode or not reports:
            sys.exit(f"{shlex.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        results = json.loads(reports[0].read_text())["execution_results"]
    return float(results["latency (ms)"]), float(results["throughput"])


def _json(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{shlex.join(command)}\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _version(peer: list[str], model: Path) -> str:
    done = subprocess.run(
        [*peer, "-m", str(model), "-d", "CPU", "-niter", "1"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{shlex.join(peer)} does not run: {done.stderr[-500:]}\npip install openvino brings it")
    build = re.search(r"Build\W+(\d[\w.-]*)", done.stdout)
    return build.group(1) if build else "unknown"


def _spread(values: list[float], digits: int, unit: str) -> str:
    return (
        f"{statistics.median(values):.{digits}f}{unit} ({min(values):.{digits}f} to {max(values):.{digits}f})"
    )


if __name__ == "__main__":
    main()
