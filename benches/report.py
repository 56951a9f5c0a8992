"""Measure the budgets of the project and the alternatives, and write ``docs/performance.md``.

python benches/report.py                    everything, ten to twenty minutes on an idle machine
python benches/report.py --quick            a short run, to standard output
python benches/report.py --only run import  some groups, to standard output
python benches/report.py --again run import  some groups, in place of their sections in the page
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from python import (
    calibrating,
    compiling,
    contexts,
    decoding,
    importing,
    in_flight,
    language_table,
    opening,
    operations,
    quantized,
    remembering,
    resolving,
    running,
    stats_output,
    stats_views,
)
from python.harness import criterion, machine, models, rust_rows
from python.harness.effort import FULL, QUICK
from python.harness.row import HEADER, MET, MISSED, Row, table
from python.harness.worker import measure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from python.harness.effort import Effort

TARGET = criterion.ROOT / "docs" / "performance.md"

#: Functions that a worker process can run.
MEASUREMENTS = {
    function.__name__: function
    for function in (
        running.latency,
        running.throughput,
        in_flight.tiny_batches,
        in_flight.one_by_one,
        in_flight.crowded,
        decoding.decode_steps,
        contexts.context_steps,
        contexts.context_operations,
        compiling.compiling,
        quantized.int8_latency,
        calibrating.calibrating,
        opening.write_large,
        opening.opening,
        opening.bindings,
        opening.compiled,
        resolving.resolving,
        remembering.open_memory,
        remembering.activation_memory,
        remembering.onnxruntime_memory,
        remembering.run_growth,
        remembering.reload_growth,
        rust_rows.numpy_conversions,
        stats_output.events,
        stats_output.large_memory,
        stats_output.write_large_buffer,
        stats_views.views,
    )
}

#: Group -> heading, introduction.
GROUPS = {
    "run": (
        "Latency of a run",
        "Both sides use the same number of threads per inference, and one thread calls them. "
        "`Session.run` and `InferenceSession.run` take names and arrays and return new arrays. With "
        "`out=`, the results are written to the caller's arrays; the closest feature of onnxruntime is an "
        "IOBinding that is bound once. Before the measurement, the outputs of both sides are compared.",
    ),
    "throughput": (
        "Throughput on two cores",
        "The table compares `run_benchmark` with `num_activations=2, aic_num_cores=1, set_size=2` and one "
        "onnxruntime session in three thread settings. The ratio refers to the best setting. "
        "`run_benchmark` runs no Python between two inferences and drops the outputs. With onnxruntime, each "
        "thread returns to Python after each inference.",
    ),
    "int8": (
        "Int8",
        "All programs use one thread. The table compares `convert_to_quantize` (8 random samples, "
        "`enable_channelwise`, `enable_rowwise`) with the same model in float32. It also compares it with "
        "the result of `onnxruntime.quantization` for the same model and samples (static, QDQ, MinMax, "
        "per channel, uint8 activations, int8 weights, pre-processed). A row has a budget if onnxruntime's "
        "int8 is faster than its float32.",
    ),
    "in_flight": (
        "Inferences in flight",
        "One Python thread uses `qaicrt.InferenceSet`: it submits a vector, collects the result by id, "
        "and returns the handle. The table compares this with OpenVINO's AsyncInferQueue with 1, 2 and 4 "
        "requests; the ratio refers to the best of the three. In the rows with waiting threads, the "
        "threads wait for inferences that a `noop` device holds, and each thread then receives its own "
        "inference.",
    ),
    "decoding": (
        "Time per token of a decoder",
        f"The decoder has {decoding.LAYERS} layers and {2 * decoding.LAYERS} retained caches and runs on one "
        "thread, through `qaicrt` as in clients for language models. Every token passes all buffers; the "
        "buffers of caches are empty. Each figure is the mean of 200 tokens, so it includes interruptions of "
        "the thread. In onnxruntime, the caches are arrays. Before the measurement, the logits are compared.",
    ),
    "contexts": (
        "Time per token by length of the context",
        "The model is a Llama in float32, in the form that exporters for the card write. It has hidden "
        "size 512, 8 heads (4 heads share each cache) and a vocabulary of 8,192 tokens. The context is "
        "the compiled context. Each figure is the mean of 16 tokens. onnxruntime runs the same graph with "
        "whole caches as arrays; the ratio compares tokens per second. Before the measurement, the "
        "logits are compared. If PyTorch and transformers are installed, `generate` of a Llama with the "
        "same sizes is also measured. The last table shows the number of operations that the engine runs "
        "for a token that attends to 32 of 1,024 slots.",
    ),
    "language_models": (language_table.HEADING, language_table.note()),
    "queues": (
        "Queues",
        "These rows measure Rust code alone, on one thread unless the row names more, and wake no thread. "
        "Submitting and collecting includes the inference on `noop`, which copies one tensor in and one "
        "out. The last table counts the locks and atomic operations of an inference, from taking an exec "
        "object to returning it, while no thread sleeps. It excludes those of the engine and the driver. "
        "The test rust/qaic-runtime/src/tests/costs/operations.rs limits these counts.",
    ),
    "compile": (
        "Compiling",
        "The table compares `qaic.Session(model)` with an empty compile cache and "
        "`onnxruntime.InferenceSession(model)`, each in a new process. openqaic reads, checks and lowers "
        "the model and writes a container, but does not load the container. onnxruntime reads, optimizes "
        "and loads the model. Further rows show the time to load a program, and to open the same model "
        "again.",
    ),
    "calibrate": (
        "Calibrating",
        "The table shows the processor time of one more sample on one thread, compared with a "
        "`Session.run` of the same model. The ratio excludes the time to process the values of the "
        "tensors (ranges or histograms), which was measured separately on arrays of the same sizes.",
    ),
    "options": (
        "Resolving options",
        "The table shows the time to convert the user's options to typed values (names, types, precedence "
        "and rules). It excludes the construction of the option table.",
    ),
    "stats": (
        "Stats buffers",
        "The input is the buffer of one inference with one thread, in memory. Columns are separate "
        "arrays, one per field. Each call allocates the columns, and so does the copy in the comparison.",
    ),
    "stats_output": (
        "Summaries and traces",
        "The input is a generated buffer for a card with 16 cores and six threads each. A trace in memory "
        "is written to an existing block. orjson writes the same events from Python objects.",
    ),
    "open": (
        "Opening a container",
        "The file is in the page cache. The budget does not depend on the size of the file.",
    ),
    "overhead": (
        "Cost of a run without the engine",
        "These rows measure Rust code alone. On `cpu`, they compare a run with the same engine with all "
        "values bound in advance. The device `noop` computes nothing, so it shows the cost of inputs and "
        "exec objects. A run into the caller's arrays allocates nothing "
        "(rust/qaic-runtime/src/tests/costs/allocations.rs).",
    ),
    "kmd": (
        "Inferences on cards",
        "These rows measure Rust code alone, on an emulated card that works on the calling thread and "
        "copies its input to its output. The bare loop makes the same two system calls for the same "
        "buffer objects through the same file, with the same number in flight. The difference is "
        "therefore the cost of the runtime. The benchmark checks that a run makes no other system call. A "
        "run allocates nothing, and an exec object takes less than 4 KiB in addition to its buffers "
        "(rust/qaic-runtime/src/tests/costs/allocations.rs).",
    ),
    "convert": (
        "Conversions",
        "The table shows bytes of the larger side per second, with the fastest kernels for this machine.",
    ),
    "numbers": (
        "Numbers of reduced precision",
        "These rows measure Rust code alone, on one thread with 1 MiB of float32: the conversion of "
        "weights during compilation, and of tensors during calibration.",
    ),
    "import": (
        "Import",
        "Each import runs in a new interpreter. The times exclude the start of the interpreter.",
    ),
    "memory": (
        "Memory",
        "The table shows the growth of resident memory in a new process, including pages of mapped files. "
        "All code ran once before the measurement. Activations share weights. Inferences that run "
        "at the same time each need memory for their intermediate results, as in onnxruntime; the row shows "
        "the amount.",
    ),
}

#: Headings and rows of a table.
Table = tuple[list[str], list[list[str]]]

#: Groups that need a Rust bench.
BENCHES = {
    "queues": "queue",
    "stats_output": "stats_output",
    "open": "open",
    "overhead": "run",
    "kmd": "kmd",
    "convert": "convert",
    "numbers": "quant",
}


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short, rough, to standard output")
    parser.add_argument("--only", nargs="+", choices=list(GROUPS), help="these groups, to standard output")
    parser.add_argument("--again", nargs="+", choices=list(GROUPS), help="these groups, into the page")
    parser.add_argument("--output", type=Path, help="write there instead")
    parser.add_argument("--measure", nargs=2, metavar=("NAME", "JSON"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        name, given = arguments.measure
        print("\n" + json.dumps(MEASUREMENTS[name](**json.loads(given))))
        return
    effort = QUICK if arguments.quick else FULL
    groups = arguments.again or arguments.only or list(GROUPS)
    facts = machine.facts()
    sections: dict[str, list[str]] = {}
    if arguments.again:
        before, sections = parts(TARGET.read_text().splitlines())
        facts = with_again(before, dict(facts), groups)
    sections |= measured(effort, groups)
    text = "\n".join(report(effort, [] if arguments.again else groups, facts, sections)) + "\n"
    is_page = arguments.again or not (arguments.quick or arguments.only)
    target = arguments.output or (TARGET if is_page else None)
    if target is None:
        print(text, end="")
    else:
        target.write_text(text)


def parts(page: list[str]) -> tuple[list[tuple[str, str]], dict[str, list[str]]]:
    """Return the facts of a page, and the lines of each section by heading."""
    starts = [at for at, line in enumerate(page) if line.startswith("## ")]
    rows = (line.strip("| ").partition(" | ") for line in page[: starts[0]] if line.startswith("| "))
    facts = [(name, value) for name, _, value in rows if name]
    ends = [start - 1 for start in starts[1:]] + [len(page)]
    bounds = zip(starts, ends, strict=True)
    return facts, {page[at].removeprefix("## "): page[at - 1 : end] for at, end in bounds}


def with_again(
    before: list[tuple[str, str]], now: dict[str, str], groups: list[str]
) -> list[tuple[str, str]]:
    """Add the facts of a second measurement of some groups, which must be on the same machine."""
    for name, value in before:
        if name in {"CPU", "memory", "Python", "onnxruntime"} and now[name] != value:
            sys.exit(f"{name}: found {now[name]}, the page has {value}; measure all groups")
    state = ", ".join(f"{name} {now[name]}" for name in ("date", "commit", "load average before"))
    return [*before, ("measured again", f"{', '.join(groups)}: {state}")]


def measured(effort: Effort, groups: list[str]) -> dict[str, list[str]]:
    """Measure, and return the lines of each section by heading."""
    sections: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory(prefix="openqaic-bench-") as folder:
        for name in models.NAMES:
            models.load(name, Path(folder))
        # The counts need no idle machine. A failure ends the report before the measurements.
        counts = [operations.operations_table()] if "queues" in groups else []
        if {"open", "memory"} & set(groups):
            measure("write_large", folder=folder)
        benches = [bench for group, bench in BENCHES.items() if group in groups]
        rust = criterion.run(benches, quick=effort.quick) if benches else {}
        for group, (heading, note) in GROUPS.items():
            if group not in groups:
                continue
            print(f"measuring: {group}", file=sys.stderr)
            rows = list(measure_group(group, folder, effort, rust))
            lines = ["", f"## {heading}", "", note, ""]
            if rows:
                lines += table(HEADER, [row.cells() for row in rows])
            for header, cells in extra_tables(group, rust, folder, counts):
                lines += ["", *table(header, cells)]
            sections[heading] = lines
    return sections


def measure_group(
    group: str, folder: str, effort: Effort, rust: dict[str, list[criterion.Figure]]
) -> Iterator[Row]:
    """Measure the rows of a group."""
    match group:
        case "run":
            yield from running.latency_rows(folder, effort)
        case "throughput":
            yield from running.throughput_rows(folder, effort)
        case "int8":
            yield from quantized.int8_rows(folder, effort)
        case "in_flight":
            yield from in_flight.in_flight_rows(folder, effort)
        case "decoding":
            yield from decoding.decode_rows(folder, effort)
        case "contexts":
            yield from contexts.context_rows(folder, effort)
        case "queues":
            yield from rust_rows.queue_rows(rust)
        case "compile":
            yield from compiling.compile_rows(folder, effort)
        case "calibrate":
            yield from calibrating.calibrate_rows(folder, effort)
        case "stats":
            yield from stats_views.view_rows(effort)
        case "stats_output":
            yield from stats_output.output_rows(rust, effort)
        case "options":
            yield from resolving.option_rows(folder, effort)
        case "open":
            yield from opening.open_rows(folder, effort)
            yield from rust_rows.open_rows(rust)
        case "overhead":
            yield from rust_rows.overhead_rows(rust)
        case "kmd":
            yield from rust_rows.card_rows(rust)
        case "convert":
            yield from rust_rows.convert_rows(rust, rust_rows.measure_numpy(effort))
        case "numbers":
            yield from rust_rows.number_rows(rust)
        case "import":
            yield from importing.import_rows(effort)
            yield from importing.first_answer_rows(folder, effort)
        case "memory":
            yield from remembering.memory_rows(folder, effort)


def extra_tables(
    group: str, rust: dict[str, list[criterion.Figure]], folder: str, counts: list[Table]
) -> Iterator[Table]:
    """Yield the tables of figures without a budget."""
    match group:
        case "contexts":
            yield contexts.operations_of_a_token(folder)
        case "language_models":
            yield language_table.limits()
        case "queues":
            yield rust_rows.queues_table(rust)
            yield from counts
        case "open":
            yield rust_rows.parts_table(rust)
        case "overhead":
            yield rust_rows.noop_table(rust)
        case "convert":
            yield rust_rows.convert_table(rust)
        case "numbers":
            yield rust_rows.calibration_table(rust)


def report(
    effort: Effort, groups: list[str], facts: list[tuple[str, str]], sections: dict[str, list[str]]
) -> list[str]:
    """Return the lines of the report: environment, explanation, missed budgets, and sections.

    `groups` is empty if this run replaces sections of a page of all groups.
    """
    command = "make bench"
    if effort.quick or groups not in ([], list(GROUPS)):
        options = ["--quick"] if effort.quick else []
        options += ["--only", *groups] if groups != list(GROUPS) else []
        command = " ".join(["python", "benches/report.py", *options])
    lines = [
        "# Performance",
        "",
        f"`{command}` writes this page; do not edit it. "
        "The figures hold for this machine and these versions:",
        "",
        *table(["", ""], [[name, value] for name, value in facts]),
        "",
        "Each figure is a median with [minimum - maximum]. Both sides of a row were measured alternately "
        "(A B A B ...) in one run with the garbage collector off. The number of measurements is "
        f"{effort.batches} batches for calls, {effort.processes} for new processes, and {effort.imports} for "
        "imports. A ratio is the median of the ratios of neighboring batches: openqaic divided by the other "
        "side. The figures for Rust come from criterion. A budget is met if the median meets it.",
    ]
    if effort.quick:
        lines += ["", "**This was a quick run: its figures are not reliable.**"]
    judged = [
        (heading, line.strip("| ").split(" | "))
        for heading, _ in GROUPS.values()
        for line in sections.get(heading, [])
        if line.startswith("| ") and line.rstrip("| ").endswith((MET, MISSED))
    ]
    missed = [(heading, cells) for heading, cells in judged if cells[-1] == MISSED]
    lines += ["", f"{len(judged) - len(missed)} of {len(judged)} budgets are met."]
    if missed:
        lines += ["These budgets are missed:", ""]
    for heading, (what, ours, _, ratio, budget, _) in missed:
        lines.append(f"* {heading}, {what}: {ratio or ours}, budget {budget}")
    for heading, _ in GROUPS.values():
        lines += sections.get(heading, [])
    return lines


if __name__ == "__main__":
    main()
