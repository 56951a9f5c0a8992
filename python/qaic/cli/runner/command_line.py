"""The command line of ``qaic-runner``: rows of options as arguments, and their conflicts."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from qaic.cli import console
from qaic.errors import OptionConflictError
from qaic.options.codecs.scalars import Codec, Enum, FilePath, Float, Int, ListOf, ValueMismatchError
from qaic.options.rows.runner import COUNTED, STREAMED, RunnerOptions
from qaic.options.spec import Flag, FlagForm, OptionSpec, Stage, rows_of
from qaic.support.program_names import REPORTING_RATES_MS, SAMPLING_RATES

#: most digits of a device's id; Python does not convert thousands
_MOST_DIGITS = 9


_DEFAULT_ITERATIONS = 40


class Profiling(NamedTuple):
    """The recordings of a run, and their files."""

    #: each type once, in the order of the command line
    types: tuple[str, ...]
    folder: Path
    #: first inference of the program that a counted type records
    first: int
    #: inferences of each activation that a counted type records
    samples: int
    delay_s: float
    #: seconds of recording; None means until the run ends
    duration_s: float | None
    #: every how many inferences a streamed type records one
    sampling: int
    period_s: float


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A run whose options go together."""

    options: RunnerOptions
    #: folder with the program, or the program
    program: Path
    #: ids of the devices; empty for any device
    devices: tuple[int, ...]
    #: true if these form one device for a partitioned program, in this order
    is_device_map: bool
    #: inferences; None if the time or the inputs decide
    num_iter: int | None
    #: true if outputs are written
    writes: bool
    #: types of profiles to record
    profiling: Profiling | None
    #: given options without effect
    unused: tuple[str, ...]


def parse(argv: Sequence[str]) -> RunRequest:
    """Parse and check a command line; wrong usage ends the process with exit code 2."""
    made = parser()
    options = read(made, argv)
    if options.test_data is None:
        made.error("-t/--test-data is required: a folder with programqpc.bin, or a container")
    try:
        return request_of(options, options.test_data)
    except OptionConflictError as error:
        made.error(error.message)


def parser() -> console.Parser:
    """Build the parser; long options are shown with two dashes and taken with one too."""
    made = console.Parser(
        prog="qaic-runner",
        description="Run a compiled program container and measure it.",
        epilog="Long options may be given with one dash.",
    )
    made.add_version()
    for row in rows_of(RunnerOptions, Stage.CLI):
        assert row.flag is not None  # noqa: S101  # each row of the tool is a flag
        # Percent signs are argparse's own.
        shown = _summary(row).replace("%", "%%")
        made.add_argument(*_names(row.flag), dest=row.name, help=shown, **_action(row, row.flag))
    return made


def read(made: console.Parser, argv: Sequence[str]) -> RunnerOptions:
    """Read the options of a command line."""
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(made.parse_args(made.with_two_dashes(argv))).items()
        if value is not None
    }
    return RunnerOptions(**given)


def request_of(options: RunnerOptions, program: Path) -> RunRequest:
    """Check the options together. Raises OptionConflictError if they contradict each other."""
    is_batch = _refuse_contradictions(options)
    devices, is_map = _devices(options)
    writes = (options.write_output_start_iter, options.write_output_num_samples, options.write_output_dir)
    is_default = options.num_iter is None and options.time is None and not is_batch
    return RunRequest(
        options=options,
        program=program,
        devices=devices,
        is_device_map=is_map,
        num_iter=_DEFAULT_ITERATIONS if is_default else options.num_iter,
        writes=any(value is not None for value in writes),
        profiling=profiling_of(options),
        unused=_unused(options, is_batch=is_batch),
    )


def _conflict(message: str) -> OptionConflictError:
    return OptionConflictError(
        message, code="runner.options", hints=("`qaic-runner --help` shows the options",)
    )


def _names(flag: Flag) -> list[str]:
    texts = sorted(flag.texts, key=lambda text: len(text) > 1)
    return [f"-{text}" if len(text) == 1 else f"--{text}" for text in texts]


def _summary(row: OptionSpec) -> str:
    if row.default in (None, False, 0, ()):
        return row.summary
    return f"{row.summary.removesuffix('.')}; default: {row.default}."


def _action(row: OptionSpec, flag: Flag) -> dict[str, Any]:
    if flag.form is FlagForm.SWITCH:
        return {"action": "store_true"}
    if flag.form is FlagForm.COUNT:
        return {"action": "count", "default": row.default}
    codec = row.codec.item if isinstance(row.codec, ListOf) else row.codec
    words = {"type": _typed(codec), "metavar": _placeholder(codec, flag.text), "default": row.default}
    return {"action": "append", **words, "default": None} if flag.form is FlagForm.REPEAT else words


def _typed(codec: Codec[Any]) -> Callable[[str], object]:
    def convert(text: str) -> object:
        try:
            return codec.parse(text)
        except ValueMismatchError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _placeholder(codec: Codec[Any], name: str) -> str:
    if isinstance(codec, Int):
        return codec.unit.upper() or "N"
    if isinstance(codec, Float):
        return codec.unit.upper() or name.upper()
    if isinstance(codec, Enum):
        return "|".join(codec.values)
    if isinstance(codec, FilePath):
        return "DIR" if codec.noun == "directory" else "FILE"
    return "IDS"


def _refuse_contradictions(options: RunnerOptions) -> bool:
    """Refuse options that exclude each other; return True if the inputs are a batch."""
    if options.aic_device_id is not None and options.aic_device_map is not None:
        raise _conflict("-d and -D both select devices; give one of them")
    if options.num_iter is not None and options.time is not None:
        raise _conflict("-n and --time both set the length of the run; give one of them")
    if options.time is not None and options.time <= 0:
        raise _conflict(f"--time is {options.time:g}; a number of seconds greater than 0 is expected")
    if (message := contradiction(options)) is not None:
        raise _conflict(message)
    sources = {
        "-i": options.input_file,
        "--aic-batch-input-directory": options.aic_batch_input_directory,
        "--aic-batch-input-file-list": options.aic_batch_input_file_list,
        "--aic-batch-json-input": options.aic_batch_json_input,
    }
    given = [name for name, value in sources.items() if value]
    if len(given) > 1:
        raise _conflict(f"{' and '.join(given)} are different sources of inputs; give one of them")
    is_batch = bool(given) and given[0] != "-i"
    if is_batch and options.output_file:
        raise _conflict("-o compares all inferences with the same outputs, but a batch has different inputs")
    if (options.rtol is not None or options.atol is not None) and not (
        options.output_file or options.compare_outputs
    ):
        raise _conflict("--rtol and --atol need -o or -c, which compare outputs")
    if options.unbound_random and options.bound_random:
        raise _conflict("--unbound-random and --bound-random are different random inputs; give one of them")
    for flag, is_given in (
        ("--unbound-random", options.unbound_random),
        ("--bound-random", options.bound_random),
    ):
        if is_given and given:
            raise _conflict(f"{flag} selects random inputs, but {given[0]} gives other inputs")
    if options.auto_batch_input and given not in (
        ["--aic-batch-input-directory"],
        ["--aic-batch-input-file-list"],
    ):
        raise _conflict("--auto-batch-input needs --aic-batch-input-directory or --aic-batch-input-file-list")
    return is_batch


def _unused(options: RunnerOptions, *, is_batch: bool) -> tuple[str, ...]:
    """Return the options that were given and have no effect, even if given with their defaults."""
    of_profiling = without_effect(options)
    what = " of this kind" if options.aic_profiling_type else ""
    texts = (
        [f"{', '.join(of_profiling)}: no effect without --aic-profiling-type{what}"] if of_profiling else []
    )
    if options.live_reporting_period is not None and not options.live_reporting:
        texts.append("--live-reporting-period: no effect without --live-reporting")
    if options.aic_batch_max_memory is not None and not is_batch:
        texts.append("--aic-batch-max-memory: no effect without a batch of inputs")
    if options.aic_lib_path is not None:
        texts.append("--aic-lib-path: no effect; the runtime is part of this package")
    return tuple(texts)


def _devices(options: RunnerOptions) -> tuple[tuple[int, ...], bool]:
    text = options.aic_device_map
    if text is None:
        return () if options.aic_device_id is None else (options.aic_device_id,), False
    separator = ":" if ":" in text else ","
    parts = text.split(separator)
    if not all(part.isascii() and part.isdigit() and len(part) <= _MOST_DIGITS for part in parts):
        raise _conflict(f"-D {text!r} is neither a map of device ids such as 3:1:2 nor a list such as 3,4,5")
    ids = tuple(map(int, parts))
    if len(set(ids)) < len(ids):
        raise _conflict(f"-D {text!r} names a device twice")
    return ids, separator == ":"


_COUNTED_ONLY = ("start_iter", "num_samples")
_STREAMED_ONLY = ("duration", "sampling_rate", "reporting_rate")


def contradiction(options: RunnerOptions) -> str | None:
    """Return an error if two types would write the same file."""
    types = options.aic_profiling_type
    for stream in STREAMED:
        counted = stream.removesuffix("_stream")
        if stream in types and counted in types:
            return f"--aic-profiling-type {counted} and {stream} write the same file; give one of them"
    return None


def without_effect(options: RunnerOptions) -> tuple[str, ...]:
    """Options that were given and that no recorded type makes use of."""
    types = options.aic_profiling_type
    used = {"start_delay", "out_dir"} if types else set()
    if set(types) & set(COUNTED):
        used |= set(_COUNTED_ONLY)
    if set(types) & set(STREAMED):
        used |= set(_STREAMED_ONLY)
    details = {*_COUNTED_ONLY, *_STREAMED_ONLY, "start_delay", "out_dir"}
    return tuple(
        f"--aic-profiling-{detail.replace('_', '-')}"
        for name, value in vars(options).items()
        if value is not None
        and (detail := name.removeprefix("aic_profiling_")) in details
        and name != detail
        and detail not in used
    )


def profiling_of(options: RunnerOptions) -> Profiling | None:
    """Return the profiles to record; ``None`` if there are none."""
    if not options.aic_profiling_type:
        return None
    duration_ms = options.aic_profiling_duration
    return Profiling(
        types=tuple(dict.fromkeys(options.aic_profiling_type)),
        folder=options.aic_profiling_out_dir or Path(),
        first=options.aic_profiling_start_iter or 0,
        samples=options.aic_profiling_num_samples or 1,
        delay_s=(options.aic_profiling_start_delay or 0) / 1e3,
        duration_s=None if duration_ms is None else duration_ms / 1e3,
        sampling=SAMPLING_RATES[options.aic_profiling_sampling_rate or "full"],
        period_s=int(options.aic_profiling_reporting_rate or REPORTING_RATES_MS[0]) / 1e3,
    )
