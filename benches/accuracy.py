"""Compare results in reduced precision with those of float32 and of onnxruntime: ``docs/accuracy.md``.

python benches/accuracy.py                everything, ten minutes on an idle machine
python benches/accuracy.py --samples 8    a short run, to standard output
python benches/accuracy.py --searches     only the section of the page about nodes in a higher precision
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from python.accuracy import precision_search, settings
from python.accuracy import tasks as accuracy_tasks
from python.harness import machine
from python.harness.row import table
from python.harness.spread import Spread, ratios
from python.harness.timing import in_turns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from python.accuracy.settings import Score
    from python.accuracy.tasks import Task

TARGET = Path(__file__).parents[1] / "docs" / "accuracy.md"
CALIBRATION, EVALUATION = 32, 96

INTRODUCTION = """\
# Accuracy in reduced precision

This page compares two trained models in reduced precision with float32, and with the results of
onnxruntime's `quantize_static` for the same models and samples. Calibration and evaluation use different
samples. `make accuracy` writes this page.

* SQNR: ratio of the power of the float32 outputs to the power of the difference, in dB. The outputs of both
  models are probabilities.
* same: share of decisions (largest class) that equal those of float32.
* read: share of the characters in a line that the recognizer reads correctly; only for the recognizer.

Unless a row states otherwise, `int8` settings of openqaic use one scale per output channel and column
(`enable_channelwise`, `enable_rowwise`), `symmetric_with_uint8` for constants, and 512 bins
(`num_histogram_bins`). All of them use one profile (`dump_profile`, then `load_profile`), as described in
the [guide](guide/quantization.md). "Weighted kinds" are Conv, ConvTranspose, Gemm and MatMul; all other
operators stay in float32.

onnxruntime's settings are QDQ format, uint8 activations and int8 weights, for a model with fixed shapes
that `quant_pre_process` prepared. "KL" is its Entropy calibration with the default of 128 bins; its
Percentile calibration has 2048 bins.
"""


def main() -> None:
    """Parse the command line, measure, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, help="judge this many, to standard output")
    parser.add_argument("--searches", action="store_true", help="only which nodes have to stay in float32")
    parser.add_argument("--output", type=Path, help="write there instead")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.searches:
        part = "\n".join(precision_search.lines()).strip("\n")
        target = arguments.output or TARGET
        page = target.read_text() if target.exists() else ""
        before, _, rest = page.partition(precision_search.TITLE)
        _, following, behind = rest.partition("\n## ")
        target.write_text(f"{before}{part}\n{following}{behind}")
        return
    text = "\n".join(report(arguments.samples or EVALUATION, quick=arguments.samples is not None)) + "\n"
    target = arguments.output or (None if arguments.samples else TARGET)
    if target is None:
        print(text, end="")
    else:
        target.write_text(text)


def report(samples: int, *, quick: bool) -> Iterator[str]:
    """Measure and write."""
    yield INTRODUCTION
    yield from table(["", ""], [[f"**{name}**", value] for name, value in machine.facts()])
    yield from precision_search.lines()
    for make in (accuracy_tasks.magika, accuracy_tasks.recognizer):
        task = make(CALIBRATION, samples)
        with tempfile.TemporaryDirectory(prefix="openqaic-accuracy-") as folder:
            # Later processes do not use the containers of this run.
            os.environ["QAIC_CACHE_DIR"] = folder
            yield from Part(task, Path(folder), quick=quick).lines()


class Part:
    """Measurements of one model."""

    def __init__(self, task: Task, folder: Path, *, quick: bool) -> None:
        self._task, self._folder, self._quick = task, folder, quick
        self._expected, self._float32 = settings.reference(task)
        self._profiles = {
            bins: folder / f"profile{bins}.yaml" for bins in (settings.BINS, settings.FINE_BINS)
        }
        for bins, path in self._profiles.items():
            settings.profile(task, path, bins)
        kinds = {node.op_type for node in onnx.load(task.path, load_external_data=False).graph.node}
        self._others = sorted(kinds - {*settings.WEIGHTED, "Constant"})

    def lines(self) -> Iterator[str]:
        """Measure and write."""
        yield from ("", f"## {self._task.title}", "")
        yield (
            f"{len(self._task.calibration)} samples for calibration, "
            f"{len(self._task.evaluation)} for evaluation. "
            f"The float32 model has {self._float32.size_bytes / 1e6:.1f} MB"
            + (
                "."
                if self._float32.truth is None
                else f" and reads {self._float32.truth:.1%} of the characters."
            )
        )
        ours = self._floats()
        integers = self._integers()
        grid = self._grid()
        theirs = self._theirs()
        header = ["setting", "SQNR dB", "same", "read", "cosine", "MB"]
        yield self._heading("openqaic")
        yield from table(header, [_cells(name, score) for name, (score, _) in {**ours, **integers}.items()])
        if self._task.beyond_fp16[0]:
            yield from ("", self._task.beyond_fp16[1])
        yield self._heading("openqaic, int8 for all kinds, by schema and calibration")
        yield "SQNR in dB / same decisions."
        yield ""
        rows = [
            [schema, *(_brief(grid[schema, calibration]) for calibration in settings.CALIBRATIONS)]
            for schema in settings.SCHEMAS
        ]
        yield from table(["activations", *settings.CALIBRATIONS], rows)
        yield self._heading("onnxruntime")
        yield from table(header, [_cells(name, score) for name, (score, _) in theirs.items()])
        yield from self._verdict(integers, grid, theirs)

    def _heading(self, what: str) -> str:
        """Write a title that differs from that in the other model's section."""
        return f"\n### {self._task.title.partition(',')[0]}: {what}\n"

    def _judge(self, **options: object) -> Score:
        print(f"judging: {options}", file=sys.stderr)
        return settings.our_score(self._task, self._expected, self._folder, **options)

    def _quantized(
        self, calibration: str, activations: str, bins: int = settings.BINS, **more: object
    ) -> dict[str, object]:
        chosen: dict[str, object] = {
            "load_profile": self._profiles[bins],
            "quantization_calibration": calibration,
            "quantization_schema_activations": activations,
            "quantization_schema_constants": "symmetric_with_uint8",
            **settings.FINE,
            **more,
        }
        if calibration == "Percentile":
            chosen["percentile_calibration_value"] = settings.PERCENTILE
        return chosen

    def _floats(self) -> dict[str, tuple[Score, dict[str, object]]]:
        named: dict[str, dict[str, object]] = {
            "float16 (`convert_to_fp16`)": {"convert_to_fp16": True},
            "MXFP6 weights (`mxfp6_matmul`)": {"mxfp6_matmul": True},
            "MXFP6 weights, float16 for weighted kinds": {
                "mxfp6_matmul": True,
                "convert_to_fp16": True,
                "keep_original_precision_for_nodes": self._others,
            },
            "float16 for weighted kinds only": {
                "convert_to_fp16": True,
                "keep_original_precision_for_nodes": self._others,
            },
        }
        kept, _ = self._task.beyond_fp16
        if kept:
            named[f"float16 except for {' and '.join(kept)}"] = {
                "convert_to_fp16": True,
                "keep_original_precision_for_nodes": list(kept),
            }
        return {name: (self._judge(**options), options) for name, options in named.items()}

    def _integers(self) -> dict[str, tuple[Score, dict[str, object]]]:
        """Settings in addition to the grid: the quantized kinds, and the granularity of scales."""
        keep = {"keep_original_precision_for_nodes": self._others}
        named: dict[str, dict[str, object]] = {}
        for calibration in settings.CALIBRATIONS:
            for schema in settings.SCHEMAS[:2]:
                options = self._quantized(calibration, schema, **keep)
                named[f"int8 for weighted kinds, {schema}, {calibration}"] = options
        for calibration in ("Percentile", "MSE", "SQNR"):
            for schema in settings.SCHEMAS[:2]:
                options = self._quantized(calibration, schema, settings.FINE_BINS, **keep)
                named[f"int8 for weighted kinds, {schema}, {calibration} of 2048 bins"] = options
        coarse = {"enable_channelwise": False, "enable_rowwise": False}
        named["int8 for weighted kinds, one scale per tensor, asymmetric, MSE"] = self._quantized(
            "MSE", "asymmetric", **keep, **coarse
        )
        named["all int8, one scale per tensor, asymmetric, MSE"] = self._quantized(
            "MSE", "asymmetric", **coarse
        )
        named["all int8, bias of 8 bits, asymmetric, MSE"] = self._quantized(
            "MSE", "asymmetric", quantization_precision_bias="Int8"
        )
        named["all int16, asymmetric"] = self._quantized("None", "asymmetric", quantization_precision="Int16")
        return {name: (self._judge(**options), options) for name, options in named.items()}

    def _grid(self) -> dict[tuple[str, str], Score]:
        return {
            (schema, calibration): self._judge(**self._quantized(calibration, schema))
            for schema in settings.SCHEMAS
            for calibration in settings.CALIBRATIONS
        }

    def _theirs(self) -> dict[str, tuple[Score, Path]]:
        """onnxruntime's calibrations, with one scale per tensor and per channel, for all and for weighted
        kinds.
        """
        results = {}
        methods = (
            ("MinMax", "MinMax"),
            ("Entropy", "KL"),
            ("Entropy512", "KL of 512 bins"),
            ("Percentile", "Percentile"),
        )
        for kinds, what in ((settings.WEIGHTED, "weighted kinds"), ((), "all kinds")):
            for method, name in methods:
                for per_channel in (True, False):
                    grain = "per channel" if per_channel else "per tensor"
                    model = settings.their_model(
                        self._task, self._folder, method, per_channel=per_channel, kinds=kinds
                    )
                    score = settings.their_score(self._task, self._expected, model)
                    results[f"int8 for {what}, {name}, {grain}"] = score, model
        return results

    def _verdict(
        self,
        integers: dict[str, tuple[Score, dict[str, object]]],
        grid: dict[tuple[str, str], Score],
        theirs: dict[str, tuple[Score, Path]],
    ) -> Iterator[str]:
        """Select the best settings of both sides, and measure their time."""
        eights = {name: pair for name, pair in integers.items() if "int16" not in name}
        everything = {
            f"all int8, {schema}, {calibration}": (score, self._quantized(calibration, schema))
            for (schema, calibration), score in grid.items()
        }
        yield self._heading("best settings")
        rows = []
        chosen: dict[str, tuple[dict[str, object], Path]] = {}
        for what, mine, other in (
            ("weighted kinds", eights, {k: v for k, v in theirs.items() if "weighted" in k}),
            ("all kinds", everything, {k: v for k, v in theirs.items() if "all kinds" in k}),
        ):
            our_name = max(
                (name for name in mine if (what == "all kinds") or "weighted" in name),
                key=lambda n: mine[n][0].rank,
            )
            their_name = max(other, key=lambda n: other[n][0].rank)
            (ours, options), (their_score, model) = mine[our_name], other[their_name]
            chosen[what] = options, model
            better = "at least as accurate" if ours.rank >= their_score.rank else "**less accurate**"
            rows.append([what, our_name, _brief(ours), their_name, _brief(their_score), better])
        yield from table(["int8", "openqaic", "", "onnxruntime", "", "openqaic is"], rows)
        yield self._heading("processor time of an inference, one thread")
        yield from table(
            ["", "openqaic", "onnxruntime", "ratio"],
            [row for what, (options, model) in chosen.items() for row in self._timed(what, options, model)],
        )

    def _timed(self, what: str, options: dict[str, object], model: Path) -> Iterator[list[str]]:
        feeds = self._task.evaluation[0]
        one: dict[str, object] = {"aic_num_cores": 1, "num_activations": 1}
        ours32, ours8 = (
            settings.our_session(self._task, **one),
            settings.our_session(self._task, **one, **options),
        )
        theirs32 = settings.their_session(self._task.fixed(self._folder))
        theirs8 = settings.their_session(model)
        subjects = {
            "float32": lambda: ours32.run(feeds),
            "float32, theirs": lambda: theirs32.run(None, feeds),
            "int8": lambda: ours8.run(feeds),
            "int8, theirs": lambda: theirs8.run(None, feeds),
        }
        batches, seconds = (3, 0.05) if self._quick else (11, 0.3)
        times = in_turns(subjects, batches, seconds, time.process_time)
        for name in ("float32", "int8"):
            mine, other = times[name], times[f"{name}, theirs"]
            label = f"{name}, {what}" if name == "int8" else name
            yield [label, str(Spread.of(mine, "s")), str(Spread.of(other, "s")), str(ratios(mine, other))]
        faster = (
            ratios(times["int8"], times["float32"]),
            ratios(times["int8, theirs"], times["float32, theirs"]),
        )
        yield [f"int8 / float32, {what}", str(faster[0]), str(faster[1]), ""]
        for session in (ours32, ours8):
            session.reset()


def _cells(name: str, score: Score) -> list[str]:
    truth = "" if score.truth is None else f"{score.truth:.1%}"
    return [
        name,
        _decibels(score),
        f"{score.agreement:.1%}",
        truth,
        f"{score.cosine:.4f}",
        f"{score.size_bytes / 1e6:.2f}",
    ]


def _brief(score: Score) -> str:
    return f"{_decibels(score)} / {score.agreement:.1%}"


def _decibels(score: Score) -> str:
    return (
        "equal"
        if np.isinf(score.sqnr_db)
        else "no number"
        if np.isnan(score.sqnr_db)
        else f"{score.sqnr_db:.1f}"
    )


if __name__ == "__main__":
    main()
