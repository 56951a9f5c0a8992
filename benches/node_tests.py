"""Run ONNX's own operator tests with ``qaic`` and with onnxruntime, and write the results.

The results are ``docs/reference/onnx-node-tests.md`` for readers and ``tests/conformance/expected.json``,
with which ``tests/conformance`` compares every run. Usage: ``python benches/node_tests.py [--check]``.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from pathlib import Path

import onnx
import onnxruntime

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "conformance"))

import onnx_suite  # noqa: E402 (found through the line above)
from onnx_suite import Outcome, Status  # noqa: E402
from qaic_backend import QaicBackend  # noqa: E402

REPORT = ROOT / "docs" / "reference" / "onnx-node-tests.md"
EXPECTED = ROOT / "tests" / "conformance" / "expected.json"

#: Meaning of each class of refusal for a user.
MEANING = {
    "compile.unsupported_type": "An input or output has a type that card buffers do not support.",
    "compile.engine_refused": "onnxruntime has no kernel for the operator, its types or its version.",
    "compile.unbound_symbol": "An input has a symbolic dimension, and the test does not state its size.",
    "compile.dynamic_shape": "The size of an output depends on the data.",
    "compile.invalid_model": "onnxruntime refuses the graph while shapes are inferred.",
}

HEADER = """# ONNX operator tests

<!-- Written by `make node-tests`; do not edit. -->

ONNX ships tests for every operator. These tests run through the ONNX backend interface: each model is
compiled to a container, and opened and run on the `cpu` device. For comparison, each test also runs through
onnxruntime's own adapter, in the same process.

Versions: onnx {onnx}, onnxruntime {ort}. Tests: {count}
(groups node, simple, pytorch-converted and pytorch-operator).
"""


def ways(ours: dict[str, Outcome], others: dict[str, dict[str, Outcome]]) -> list[str]:
    """Write the section about the other ways to compile the tests."""
    share = onnx_suite.WAYS["float16"].tolerance
    lines = [
        "",
        "## Float16 and expanded functions",
        "",
        "The row `float16` compiles the tests with `convert_to_fp16`; a float result may differ by "
        f"{share:.1%} of the",
        "largest expected value. The row `expanded` moves the nodes of each test to a function, with their",
        "attributes as defaults, and compiles with `always_expand_onnx_functions`.",
        "",
        "| | passed | failed | unsupported |",
        "|---|---:|---:|---:|",
    ]
    for way, outcomes in others.items():
        counts = Counter(outcome.status for outcome in outcomes.values())
        lines.append(f"| {way} | " + " | ".join(str(counts[status]) for status in Status) + " |")
    lines += [
        "",
        "Tests that pass in float32 but not here:",
        "",
        "| test | way | result | reason |",
        "|---|---|---|---|",
    ]
    for way, outcomes in others.items():
        reasons = onnx_suite.exceptions(way)
        lines += [
            f"| {name} | {way} | {outcome.reason} | {reasons.get(name, 'not known')} |"
            for name, outcome in outcomes.items()
            if outcome.status is not Status.PASSED and ours[name].status is Status.PASSED
        ]
    return lines


def report(
    ours: dict[str, Outcome], theirs: dict[str, Outcome], others: dict[str, dict[str, Outcome]]
) -> str:
    """Write the page."""
    lines = [HEADER.format(onnx=onnx.__version__, ort=onnxruntime.__version__, count=len(ours))]
    lines += ["| | passed | failed | unsupported |", "|---|---:|---:|---:|"]
    for label, outcomes in (("qaic", ours), ("onnxruntime", theirs)):
        counts = Counter(outcome.status for outcome in outcomes.values())
        lines.append(f"| {label} | " + " | ".join(str(counts[status]) for status in Status) + " |")
    pairs = Counter((ours[name].status, theirs[name].status) for name in ours)
    lines += [
        "",
        "Unsupported means that the model or its arrays were refused with a message before the run.",
        "",
        "Results per test (rows qaic, columns onnxruntime):",
        "",
        "| | passed | failed | unsupported |",
        "|---|---:|---:|---:|",
    ]
    lines += [
        f"| {row} | " + " | ".join(str(pairs[row, column]) for column in Status) + " |" for row in Status
    ]
    lines += ["", "## Reasons for refusal", "", "| class | meaning | tests | passed by onnxruntime |"]
    lines.append("|---|---|---:|---:|")
    refused = {name: outcome for name, outcome in ours.items() if outcome.status is Status.UNSUPPORTED}
    for reason, count in Counter(outcome.reason for outcome in refused.values()).most_common():
        passed = sum(refused[n].reason == reason and theirs[n].status is Status.PASSED for n in refused)
        lines.append(f"| `{reason}` | {MEANING.get(reason, '')} | {count} | {passed} |")
    lines += ["", "Types refused as `compile.unsupported_type`:", "", "| found | tests |", "|---|---:|"]
    kinds = Counter(
        match[1]
        for outcome in refused.values()
        if outcome.reason == "compile.unsupported_type"
        and (match := re.search(r"found (?:type |an? )?(\w+(?: \w+)?)", outcome.message))
    )
    lines += [f"| {kind} | {count} |" for kind, count in kinds.most_common()]
    lines += ["", "## Failures", ""]
    lines += ["If onnxruntime passes a test, qaic may fail it only for a reason in `exceptions.json`."]
    lines += ["", "| test | qaic | onnxruntime |", "|---|---|---|"]
    for name, outcome in ours.items():
        if outcome.status is Status.FAILED:
            other = theirs[name]
            detail = f" ({other.reason})" if other.reason else ""
            lines.append(f"| {name} | {outcome.reason} | {other.status}{detail} |")
    lines += ways(ours, others)
    return "\n".join(lines) + "\n"


def expected(ours: dict[str, Outcome]) -> str:
    """Write the results for the comparison: every test that does not pass, by class."""
    groups: dict[str, dict[str, list[str]]] = {status: {} for status in Status if status is not Status.PASSED}
    for name, outcome in ours.items():
        if outcome.status is not Status.PASSED:
            groups[outcome.status].setdefault(outcome.reason, []).append(name)
    content = {"onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__, **groups}
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def main() -> int:
    """Run the tests, then write or compare the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail when the files are out of date"
    )
    check = parser.parse_args().check
    selected = onnx_suite.names(QaicBackend)
    found = {name: onnx_suite.run(QaicBackend, selected, way) for name, way in onnx_suite.WAYS.items()}
    ours, theirs = found["float32"], onnx_suite.run_onnxruntime(selected)
    others = {way: outcomes for way, outcomes in found.items() if way != "float32"}
    stale = []
    for path, text in ((REPORT, report(ours, theirs, others)), (EXPECTED, expected(ours))):
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for path in stale:
        print(f"{'out of date' if check else 'written'}: {path.relative_to(ROOT)}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
