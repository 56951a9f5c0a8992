"""Options of ``qaic-runner``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from qaic.options.codecs.scalars import Bool, Enum, FilePath, Float, Int, ListOf, Str
from qaic.options.spec import Effect, FlagForm, tool_option
from qaic.support.program_names import REPORTING_RATES_MS, SAMPLING_RATES

#: types of profiles that a number of inferences ends
COUNTED: Final = ("stats", "trace", "latency", "raw_device_stats")
#: types of profiles that a duration ends
STREAMED: Final = ("trace_stream", "latency_stream")


def _switch(summary: str, *others: str, effect: Effect = Effect.BEHAVIOR) -> bool:
    return tool_option(Bool(), False, summary, *others, effect=effect)  # noqa: FBT003 - the default


@dataclass(frozen=True, kw_only=True)
class RunnerOptions:
    """A run of a program container. None and empty tuples mean "not given"."""

    SECTION: ClassVar = "Running a container (`qaic-runner`)"

    test_data: Path | None = tool_option(
        FilePath("folder or container"), None, "Folder with programqpc.bin, or a container.", "t"
    )
    aic_device_id: int | None = tool_option(
        Int(ge=0), None, "Device id; default: as many devices as the program needs, or the first.", "d", "dev"
    )
    aic_device_map: str | None = tool_option(
        Str(),
        None,
        "3:1:2 runs one program on these devices, in this order; 3,4,5 selects one of them.",
        "D",
        "dev-list",
    )
    input_file: tuple[Path, ...] = tool_option(
        ListOf(FilePath("file")),
        (),
        "Raw input file, one per input, in order; default: bindings.json in -t, or random inputs.",
        "i",
        form=FlagForm.REPEAT,
    )
    unbound_random: bool = _switch("Fill inputs with random bytes of any value.")
    bound_random: bool = _switch("Use random inputs with small values and ignore bindings.json.")
    pre_post_processing: str = tool_option(
        Enum("on", "off"), "on", "With off, files contain raw device buffers.", "p"
    )
    verbose: int = tool_option(
        Int(ge=0), 0, "Print more messages; repeatable.", "v", effect=Effect.DIAGNOSTIC, form=FlagForm.COUNT
    )
    num_iter: int | None = tool_option(
        Int(ge=1), None, "Inferences; default: 40, or each input of a batch once.", "n"
    )
    time: float | None = tool_option(Float(unit="seconds"), None, "Duration of the run, instead of -n.")
    aic_num_of_activations: int = tool_option(
        Int(ge=1), 1, "Number of instances of the program.", "a", "aic-num-activations", effect=Effect.TIMING
    )
    warm_up: int = tool_option(
        Int(ge=0), 0, "Number of inferences before the measurement.", effect=Effect.TIMING, ours=True
    )
    set_size: int | None = tool_option(
        Int(ge=1),
        None,
        "Number of inferences in flight per activation; default: 10, or 1 with -s or --json.",
        "S",
        effect=Effect.TIMING,
    )
    aic_threads_per_queue: int = tool_option(
        Int(ge=1), 4, "Threads per queue.", "T", "threads-per-queue", effect=Effect.TIMING
    )
    submit_timeout: int = tool_option(
        Int(ge=0, unit="ms"),
        0,
        "Limit of one wait for an inference; 0 is the device's limit.",
        effect=Effect.TIMING,
    )
    submit_retry_count: int = tool_option(
        Int(ge=0), 5, "Further waits after a timeout.", effect=Effect.TIMING
    )
    live_reporting: bool = _switch("Report the rate while running.", "l", effect=Effect.DIAGNOSTIC)
    live_reporting_period: int | None = tool_option(
        Int(ge=1, unit="ms"), None, "Period of -l; default: 1000.", "r", effect=Effect.DIAGNOSTIC
    )
    stats: bool = _switch(
        "Report latencies of inferences each second, and their percentiles.", "s", effect=Effect.DIAGNOSTIC
    )
    json: Path | None = tool_option(
        FilePath("file"),
        None,
        "Write the result with the latency of each inference as JSON.",
        effect=Effect.FILE,
        ours=True,
    )
    aic_batch_input_directory: Path | None = tool_option(
        FilePath("directory"), None, "Run one inference for each file, for programs with one input."
    )
    aic_batch_input_file_list: Path | None = tool_option(
        FilePath("file"), None, "Run one inference for each line of comma-separated files."
    )
    aic_batch_json_input: Path | None = tool_option(
        FilePath("file"), None, "JSON file with files and shapes of each inference."
    )
    aic_batch_max_memory: int | None = tool_option(
        Int(ge=1, unit="MB"),
        None,
        "Limit of memory for the inputs of a batch; default: 1024.",
        effect=Effect.TIMING,
    )
    auto_batch_input: bool = _switch("Combine files of batch size 1 into batches of the program.")
    output_file: tuple[Path, ...] = tool_option(
        ListOf(FilePath("file")),
        (),
        "Expected output file, one per output, in order; differences are reported at the end.",
        "o",
        form=FlagForm.REPEAT,
    )
    compare_outputs: bool = _switch(
        "Compare with the output files of --aic-batch-json-input; differences are reported at the end.", "c"
    )
    rtol: float | None = tool_option(
        Float(ge=0),
        None,
        "Relative tolerance of -o and -c for floats; without a tolerance, bytes are compared.",
        ours=True,
    )
    atol: float | None = tool_option(
        Float(ge=0), None, "Absolute tolerance of -o and -c for floats.", ours=True
    )
    write_output_start_iter: int | None = tool_option(
        Int(ge=0), None, "First inference whose outputs are written; default: 0.", effect=Effect.FILE
    )
    write_output_num_samples: int | None = tool_option(
        Int(ge=1), None, "Number of inferences whose outputs are written; default: 1.", effect=Effect.FILE
    )
    write_output_dir: Path | None = tool_option(
        FilePath("directory"),
        None,
        "Folder for outputs, created if its parent exists; default: the current folder.",
        effect=Effect.FILE,
    )
    dump_input_buffers: bool = _switch("Also write the inputs of these inferences.", effect=Effect.FILE)
    aic_profiling_type: tuple[str, ...] = tool_option(
        ListOf(Enum(*COUNTED, *STREAMED)),
        (),
        "Type of recorded profile; the second name is deprecated.",
        "aic-profiling-format",
        effect=Effect.DIAGNOSTIC,
        form=FlagForm.REPEAT,
    )
    aic_profiling_start_iter: int | None = tool_option(
        Int(ge=0), None, "First recorded inference; default: 0.", effect=Effect.DIAGNOSTIC
    )
    aic_profiling_start_delay: int | None = tool_option(
        Int(ge=0, unit="ms"), None, "Delay of the recording after the start.", effect=Effect.DIAGNOSTIC
    )
    aic_profiling_num_samples: int | None = tool_option(
        Int(ge=1),
        None,
        "Largest number of recorded inferences per activation; default: 1.",
        effect=Effect.DIAGNOSTIC,
    )
    aic_profiling_duration: int | None = tool_option(
        Int(ge=1, unit="ms"), None, "Duration of a stream; default: the whole run.", effect=Effect.DIAGNOSTIC
    )
    aic_profiling_sampling_rate: str | None = tool_option(
        Enum(*SAMPLING_RATES),
        None,
        "Share of inferences that a stream records; default: full.",
        effect=Effect.DIAGNOSTIC,
    )
    aic_profiling_reporting_rate: str | None = tool_option(
        Enum(*map(str, REPORTING_RATES_MS)),
        None,
        "Milliseconds between reports of a stream; default: 500.",
        effect=Effect.DIAGNOSTIC,
    )
    aic_profiling_out_dir: Path | None = tool_option(
        FilePath("directory"),
        None,
        "Folder for profiles, created if its parent exists; default: the current folder.",
        effect=Effect.DIAGNOSTIC,
    )
    aic_lib_path: Path | None = tool_option(
        FilePath("library"), None, "Deprecated; no effect.", effect=Effect.RECORDED
    )

    @property
    def in_flight_per_activation(self) -> int:
        """Inferences in flight; an inference behind nine others takes as long as ten."""
        asks_for_latencies = self.stats or self.json is not None
        return self.set_size or (1 if asks_for_latencies else 10)
