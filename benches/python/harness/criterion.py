"""The Rust benchmarks: run them with cargo and read the files of criterion."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING

from .spread import Spread

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Figure:
    """One benchmark: seconds per iteration, with the confidence interval of the median."""

    function: str
    value: str
    time: Spread
    confident: tuple[float, float]
    bytes: int

    @property
    def rate(self) -> Spread:
        """Bytes per second."""
        return self.time.inverted(self.bytes, "B/s")


def run(benches: list[str], *, quick: bool) -> dict[str, list[Figure]]:
    """Run benches of the crate `qaic-benches`; return their measurements, by criterion's groups."""
    from qaic import _core

    command = ["cargo", "bench", "--quiet", "-p", "qaic-benches"]
    for bench in benches:
        command += ["--bench", bench]
    environment = {**environ, "QAIC_ONNXRUNTIME_LIB": str(_core.engine_info()[0])}
    subprocess.run([*command, "--no-run"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    marker = _folder() / "report-started"
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
    command += ["--", "--noplot", *(["--quick"] if quick else [])]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        # criterion prints the results of every benchmark; this function reads them from files below.
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    groups: dict[str, list[Figure]] = {}
    for path in sorted(_folder().glob("**/new/benchmark.json"), key=lambda path: path.stat().st_mtime_ns):
        # Results of benchmarks that no longer exist stay in the folder.
        if path.stat().st_mtime_ns >= marker.stat().st_mtime_ns:
            name, figure = _read(path.parent)
            groups.setdefault(name, []).append(figure)
    return groups


def _folder() -> Path:
    metadata = subprocess.run(
        ["cargo", "metadata", "--no-deps", "--offline", "--format-version", "1"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
    ).stdout
    return Path(json.loads(metadata)["target_directory"], "criterion")


def _read(folder: Path) -> tuple[str, Figure]:
    benchmark = json.loads((folder / "benchmark.json").read_text())
    median = json.loads((folder / "estimates.json").read_text())["median"]
    sample = json.loads((folder / "sample.json").read_text())
    times = list(_seconds(sample))
    interval = median["confidence_interval"]
    return benchmark["group_id"], Figure(
        function=benchmark["function_id"] or "",
        value=benchmark["value_str"] or "",
        time=Spread(median["point_estimate"] * 1e-9, min(times), max(times), "s"),
        confident=(interval["lower_bound"] * 1e-9, interval["upper_bound"] * 1e-9),
        bytes=(benchmark["throughput"] or {}).get("Bytes", 0),
    )


def _seconds(sample: dict[str, list[float]]) -> Iterator[float]:
    for count, nanoseconds in zip(sample["iters"], sample["times"], strict=True):
        yield nanoseconds / count * 1e-9
