"""Measure the budgets of the project beside the alternatives and write ``docs/performance.md``.

python benches/report.py                    everything, ten to twenty minutes on an idle machine
python benches/report.py --quick            a look: short, to standard output
python benches/report.py --only run import  some groups, to standard output
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
from python.harness.row import HEADER, Row, table
from python.harness.worker import measure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from python.harness.effort import Effort

TARGET = criterion.ROOT / "docs" / "performance.md"

#: What a worker process can be asked for.
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

#: Group -> heading, what to know when reading it.
GROUPS = {
    "run": (
        "Latency of a run",
        "Both sides have the same number of threads per inference, and one thread calls. "
        "`Session.run` and `InferenceSession.run` take names and arrays and return new arrays. With "
        "`out=`, the results are written to the caller's arrays; the closest feature of onnxruntime "
        "is an IOBinding that is bound once. Outputs of both sides are compared before the "
        "measurement.",
    ),
    "throughput": (
        "Throughput on two cores",
        "`run_benchmark` with `num_activations=2, aic_num_cores=1, set_size=2`, compared with one "
        "onnxruntime session in three thread settings; the ratio is to the best of them. "
        "`run_benchmark` runs no Python between two inferences and drops the outputs. The Python "
        "threads of onnxruntime return to Python after each inference.",
    ),
    "int8": (
        "Int8",
        "One thread. `convert_to_quantize` with 8 random samples, `enable_channelwise` and "
        "`enable_rowwise`, compared with the same model in float32, and with the result of "
        "`onnxruntime.quantization` (static, QDQ, MinMax, per channel, u8 activations, s8 weights, "
        "pre-processed) for the same model and samples. A budget is set if onnxruntime's int8 is "
        "faster than its float32.",
    ),
    "in_flight": (
        "Inferences in flight",
        "`qaicrt.InferenceSet` from one Python thread: submit a vector, collect by id, put back; "
        "compared with OpenVINO's AsyncInferQueue with 1, 2 and 4 requests, the ratio to the best of "
        "them. The waiting threads wait for inferences that a `noop` device holds; afterwards each "
        "thread has received its own.",
    ),
    "decoding": (
        "A token of a decoder",
        f"{decoding.LAYERS} layers, {2 * decoding.LAYERS} retained caches, one thread, through `qaicrt` as "
        "in clients for language models: every token passes all buffers, those of caches are empty. Each "
        "figure is the mean of 200 tokens, so it includes interruptions of the thread. onnxruntime "
        "has the caches as arrays. Logits are compared before the measurement.",
    ),
    "contexts": (
        "A token by the length of the context",
        "A Llama with hidden size 512, 8 heads of which 4 share one cache, and 8,192 tokens of "
        "vocabulary, in the form of exporters for the card; float32. The context is the compiled one. "
        "Each figure is the mean of 16 tokens. onnxruntime runs the same graph with whole caches as "
        "arrays; the ratio compares tokens per second. Logits are compared before the measurement. If "
        "PyTorch and transformers are installed, `generate` of a Llama with the same sizes is also "
        "measured. The last table counts the operations that the engine runs for a token; 32 of 1,024 "
        "slots attended. [Speed of language models](language-models.md) has decoders of 1.1 "
        "billion parameters, with the bandwidth limit.",
    ),
    "queues": (
        "Queues",
        "Rust only, one thread unless a row names more, without waking a thread. Submitting and "
        "collecting includes the inference on `noop`, which copies one tensor in and one out. Locks "
        "and atomic operations of an inference are counted while no thread sleeps, from taking an "
        "exec object to putting it back, without those of the engine and the driver "
        "(rust/qaic-runtime/tests/costs/operations.rs bounds them).",
    ),
    "compile": (
        "Compiling",
        "`qaic.Session(model)` with an empty compile cache, compared with "
        "`onnxruntime.InferenceSession(model)`, each in a new process. openqaic reads, checks, lowers "
        "and writes a container, and does not load it. onnxruntime reads, optimizes and loads. "
        "Further rows show loading, and opening the same model again.",
    ),
    "calibrate": (
        "Calibrating",
        "Processor time of one more sample on one thread, compared with a `Session.run` of the same "
        "model. The ratio excludes the time to process the values of the tensors (ranges or "
        "histograms, measured separately on arrays of the same sizes).",
    ),
    "options": (
        "Resolving options",
        "From the user's options to typed values: names, types, precedence and rules, without the "
        "construction of the table.",
    ),
    "stats": (
        "Stats buffers",
        "The buffer of one inference of one thread, in memory. Columns are separate arrays, one per "
        "field; they are allocated each time, as is the copy in comparison.",
    ),
    "stats_output": (
        "Summaries and traces",
        "A generated buffer of a card with 16 cores and six threads each. A trace in memory is "
        "written to an existing block. orjson writes the same events from Python objects.",
    ),
    "open": (
        "Opening a container",
        "The file is in the page cache. The budget does not depend on its size.",
    ),
    "overhead": (
        "Cost of a run without the engine",
        "Rust only. On `cpu`, the comparison is the same engine with all values bound in advance. "
        "`noop` computes nothing, so it shows the cost of inputs and exec objects. A run into the "
        "caller's arrays allocates nothing (rust/qaic-runtime/tests/costs/allocations.rs).",
    ),
    "kmd": (
        "Inferences on cards",
        "Rust only, on an emulated card that works on the calling thread and returns its input. The "
        "bare loop makes the same two system calls for the same buffer objects through the same file, "
        "with as many in flight, so the difference is the cost of the runtime. A run makes no other "
        "call, which the benchmark checks. It allocates nothing, and an exec object takes less than 4 "
        "KiB in addition to its buffers (rust/qaic-runtime/tests/costs/allocations.rs).",
    ),
    "convert": (
        "Conversions",
        "Bytes of the larger side per second; the fastest kernels of this machine.",
    ),
    "numbers": (
        "Numbers of reduced precision",
        "Rust only, one thread, 1 MiB of float32: the conversion of weights during compilation, and "
        "of tensors during calibration.",
    ),
    "import": (
        "Import",
        "A new interpreter for each import, without its start.",
    ),
    "memory": (
        "Memory",
        "Growth of resident memory of a new process in which all code had run before, so pages of "
        "mapped files count. Activations share weights. Inferences that run at the same time each "
        "need memory for their intermediate results, as in onnxruntime; the row shows how much.",
    ),
}

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
    parser.add_argument("--output", type=Path, help="write there instead")
    parser.add_argument("--measure", nargs=2, metavar=("NAME", "JSON"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        name, given = arguments.measure
        print("\n" + json.dumps(MEASUREMENTS[name](**json.loads(given))))
        return
    text = "\n".join(report(QUICK if arguments.quick else FULL, arguments.only or list(GROUPS))) + "\n"
    target = arguments.output or (None if arguments.quick or arguments.only else TARGET)
    if target is None:
        print(text, end="")
    else:
        target.write_text(text)


def report(effort: Effort, groups: list[str]) -> Iterator[str]:
    """Measure and write."""
    facts = machine.facts()
    sections: list[str] = []
    judged: list[tuple[str, Row]] = []
    with tempfile.TemporaryDirectory(prefix="openqaic-bench-") as folder:
        for name in models.NAMES:
            models.load(name, Path(folder))
        if {"open", "memory"} & set(groups):
            measure("write_large", folder=folder)
        benches = [bench for group, bench in BENCHES.items() if group in groups]
        rust = criterion.run(benches, quick=effort.quick) if benches else {}
        for group, (heading, note) in GROUPS.items():
            if group not in groups:
                continue
            print(f"measuring: {group}", file=sys.stderr)
            rows = list(measure_group(group, folder, effort, rust))
            judged += [(heading, row) for row in rows if row.met is not None]
            sections += ["", f"## {heading}", "", note, ""]
            if rows:
                sections += table(HEADER, [row.cells() for row in rows])
            for header, cells in extra_tables(group, rust, folder):
                sections += ["", *table(header, cells)]
    yield from introduction(effort, groups, facts, judged)
    yield from sections


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
    group: str, rust: dict[str, list[criterion.Figure]], folder: str
) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Tables of figures without a budget."""
    match group:
        case "contexts":
            yield contexts.operations_of_a_token(folder)
        case "queues":
            yield rust_rows.queues_table(rust)
            yield operations.operations_table()
        case "open":
            yield rust_rows.parts_table(rust)
        case "overhead":
            yield rust_rows.noop_table(rust)
        case "convert":
            yield rust_rows.convert_table(rust)
        case "numbers":
            yield rust_rows.calibration_table(rust)


def introduction(
    effort: Effort, groups: list[str], facts: list[tuple[str, str]], judged: list[tuple[str, Row]]
) -> Iterator[str]:
    """What was measured where, how to read it, and what missed its budget."""
    command = "make bench"
    if effort.quick or groups != list(GROUPS):
        options = ["--quick"] if effort.quick else []
        options += ["--only", *groups] if groups != list(GROUPS) else []
        command = " ".join(["python", "benches/report.py", *options])
    yield "# Performance"
    yield ""
    yield f"Generated by `{command}`; do not edit. Figures hold for this machine and these versions:"
    yield ""
    yield from table(["", ""], [[name, value] for name, value in facts])
    yield ""
    yield (
        "Each figure is a median with [minimum - maximum]. The two sides of a row were measured "
        f"alternately (A B A B ...) in one run: {effort.batches} batches of calls, {effort.processes} new "
        f"processes if a process is measured, {effort.imports} imports, with the garbage collector off. A "
        "ratio is the median of the ratios of neighboring batches, openqaic to the other side. Figures of "
        "Rust come from criterion. A budget is met if the median meets it."
    )
    if effort.quick:
        yield ""
        yield "**This was a quick run: its figures are not reliable.**"
    missed = [(heading, row) for heading, row in judged if not row.met]
    yield ""
    yield f"{len(judged) - len(missed)} of {len(judged)} budgets met."
    if missed:
        yield "Missed:"
        yield ""
        for heading, row in missed:
            found = row.judged or row.ratio or row.ours
            yield f"* {heading}, {row.what}: {found}, budget {row.budget}"


if __name__ == "__main__":
    main()
