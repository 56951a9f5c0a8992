"""Options of the run of `qaic-exec` after the compilation, and actions of the command line tools."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from qaic.options.codecs.enumerations import Action
from qaic.options.codecs.scalars import INT32_MAX, Enum, FilePath, Float, Int, ListOf
from qaic.options.spec import Effect, FlagForm, option, tool_option


@dataclass(frozen=True, kw_only=True)
class RunStepOptions:
    """Options of the command line tools: the run after the compilation, and actions."""

    SECTION: ClassVar = "Run after compiling (`qaic-exec`)"

    json_input_file: Path | None = option(
        FilePath("JSON file"), None, "JSON file with inputs and shapes of the run."
    )
    aic_num_of_instances: int = tool_option(
        Int(ge=1, le=INT32_MAX), 1, "Number of instances of the program.", effect=Effect.TIMING
    )
    num_iter: int | None = tool_option(Int(ge=1, le=INT32_MAX), None, "Number of inferences.")
    time: float | None = tool_option(Float(ge=0, le=INT32_MAX), None, "Duration of the run, in seconds.")
    write_output_dir: Path | None = tool_option(
        FilePath("directory"),
        None,
        "Directory for the outputs of the run, one file for each tensor.",
        effect=Effect.FILE,
    )
    write_output_start_iter: int = tool_option(
        Int(ge=0, le=INT32_MAX), 0, "First inference whose outputs are written.", effect=Effect.FILE
    )
    write_output_num_samples: int = tool_option(
        Int(ge=1, le=INT32_MAX), 1, "Number of inferences whose outputs are written.", effect=Effect.FILE
    )
    aic_profiling_type: tuple[str, ...] = tool_option(
        ListOf(Enum("stats", "trace", "latency", "raw_device_stats"), distinct=True),
        (),
        "Type of recorded profile.",
        "aic-profiling-format",
        effect=Effect.DIAGNOSTIC,
        form=FlagForm.REPEAT,
    )
    aic_profiling_out_dir: Path | None = tool_option(
        FilePath("directory"), None, "Directory for recorded profiles.", effect=Effect.FILE
    )
    aic_profiling_num_samples: int = tool_option(
        Int(ge=1, le=INT32_MAX), 1, "Number of recorded inferences.", effect=Effect.DIAGNOSTIC
    )
    aic_profiling_start_iter: int = tool_option(
        Int(ge=0, le=INT32_MAX), 1, "First recorded inference.", effect=Effect.DIAGNOSTIC
    )
    aic_profiling_start_delay: int | None = tool_option(
        Int(ge=0, le=INT32_MAX, unit="ms"),
        None,
        "Delay of the recording after the start.",
        effect=Effect.DIAGNOSTIC,
    )
    operators_supported: str | None = tool_option(
        Enum("onnx", "tensorflow", "pytorch", "caffe", "caffe2"),
        None,
        "Write the list of supported operators of a framework and do nothing else.",
        effect=Effect.FILE,
    )
    help: bool = tool_option(
        Action(),
        False,  # noqa: FBT003 - the default
        "Show the options and do nothing else.",
        "h",
        "usage",
        "u",
        effect=Effect.DIAGNOSTIC,
        form=FlagForm.ACTION,
    )
