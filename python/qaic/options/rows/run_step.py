"""Options of the run that `qaic-exec` makes after compiling, and actions of the command line tools."""

# ruff: noqa: RUF009  # `option` makes an immutable row, as `dataclasses.field` does

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from qaic.options.codecs.enumerations import Action
from qaic.options.codecs.scalars import Enum, FilePath, Float, Int, ListOf
from qaic.options.spec import Documented, Effect, Flag, FlagForm, option

_LARGEST = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class RunStepOptions:
    """Options of the command line tools: the run after compiling, and actions."""

    SECTION: ClassVar = "Run after compiling (`qaic-exec`)"

    json_input_file: Path | None = option(
        FilePath("JSON file"),
        default=None,
        summary="JSON file with inputs and shapes of the run.",
        effect=Effect.BEHAVIOR,
        documented=Documented.CLI,
    )
    aic_num_of_instances: int = option(
        Int(ge=1, le=_LARGEST),
        default=1,
        summary="Number of instances of the program.",
        effect=Effect.TIMING,
        documented=Documented.CLI,
        keyword=False,
    )
    num_iter: int | None = option(
        Int(ge=1, le=_LARGEST),
        default=None,
        summary="Number of inferences.",
        effect=Effect.BEHAVIOR,
        documented=Documented.CLI,
        keyword=False,
    )
    time: float | None = option(
        Float(ge=0, le=_LARGEST),
        default=None,
        summary="Duration of the run, in seconds.",
        effect=Effect.BEHAVIOR,
        documented=Documented.CLI,
        keyword=False,
    )
    write_output_dir: Path | None = option(
        FilePath("directory"),
        default=None,
        summary="Directory for the outputs of the run, one file for each tensor.",
        effect=Effect.FILE,
        documented=Documented.CLI,
        keyword=False,
    )
    write_output_start_iter: int = option(
        Int(ge=0, le=_LARGEST),
        default=0,
        summary="First inference whose outputs are written.",
        effect=Effect.FILE,
        documented=Documented.CLI,
        keyword=False,
    )
    write_output_num_samples: int = option(
        Int(ge=1, le=_LARGEST),
        default=1,
        summary="Number of inferences whose outputs are written.",
        effect=Effect.FILE,
        documented=Documented.CLI,
        keyword=False,
    )
    aic_profiling_type: tuple[str, ...] = option(
        ListOf(Enum("stats", "trace", "latency", "raw_device_stats"), distinct=True),
        default=(),
        summary="Type of recorded profile.",
        effect=Effect.DIAGNOSTIC,
        flag=Flag(form=FlagForm.REPEAT, others=("aic-profiling-format",)),
        documented=Documented.CLI,
        keyword=False,
    )
    aic_profiling_out_dir: Path | None = option(
        FilePath("directory"),
        default=None,
        summary="Directory for recorded profiles.",
        effect=Effect.FILE,
        documented=Documented.CLI,
        keyword=False,
    )
    aic_profiling_num_samples: int = option(
        Int(ge=1, le=_LARGEST),
        default=1,
        summary="Number of recorded inferences.",
        effect=Effect.DIAGNOSTIC,
        documented=Documented.CLI,
        keyword=False,
    )
    aic_profiling_start_iter: int = option(
        Int(ge=0, le=_LARGEST),
        default=1,
        summary="First recorded inference.",
        effect=Effect.DIAGNOSTIC,
        documented=Documented.CLI,
        keyword=False,
    )
    aic_profiling_start_delay: int | None = option(
        Int(ge=0, le=_LARGEST, unit="ms"),
        default=None,
        summary="Delay of the recording after the start.",
        effect=Effect.DIAGNOSTIC,
        documented=Documented.CLI,
        keyword=False,
    )
    operators_supported: str | None = option(
        Enum("onnx", "tensorflow", "pytorch", "caffe", "caffe2"),
        default=None,
        summary="Write the list of supported operators of a framework and do nothing else.",
        effect=Effect.FILE,
        documented=Documented.CLI,
        keyword=False,
    )
    help: bool = option(
        Action(),
        default=False,
        summary="Show the options and do nothing else.",
        effect=Effect.DIAGNOSTIC,
        flag=Flag(form=FlagForm.ACTION, others=("h", "usage", "u")),
        documented=Documented.CLI,
        keyword=False,
    )
