"""The run that ``qaic-exec`` makes after compiling: that of ``qaic-runner``, by flags of the compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from qaic.cli.console import print_message
from qaic.options.raw_option import Source

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from qaic.options.resolution import ResolvedOptions

#: option -> option of `qaic-runner`
_OPTIONS: Final = {
    "aic_num_of_instances": "--aic-num-of-activations",
    "aic_profiling_num_samples": "--aic-profiling-num-samples",
    "aic_profiling_out_dir": "--aic-profiling-out-dir",
    "aic_profiling_start_delay": "--aic-profiling-start-delay",
    "aic_profiling_type": "--aic-profiling-type",
    "input_list_file": "--aic-batch-input-file-list",
    "json_input_file": "--aic-batch-json-input",
    "num_iter": "--num-iter",
    "time": "--time",
    "write_output_dir": "--write-output-dir",
    "write_output_num_samples": "--write-output-num-samples",
    "write_output_start_iter": "--write-output-start-iter",
}
#: of these only the run makes use
_FOR_RUNS: Final = frozenset({*_OPTIONS, "aic_profiling_start_iter", "dev_id"}) - {"input_list_file"}
#: samples of a calibration, the first also the inputs of a run
_SAMPLES: Final = ("input_list_file", "use_random_input_data")


def prepared(resolved: ResolvedOptions) -> argparse.Namespace:
    """Turn the options of the run into those of ``qaic-runner``, which judges them before any work.

    Raises
    ------
    SystemExit
        They contradict each other, or ``qaic-runner`` does not know a value.
    """
    from qaic.cli.runner.command_line import parse

    argv = ["--test-data", "."]
    for name, flag in _OPTIONS.items():
        if name in resolved.as_given:
            given = resolved.as_given[name]
            values = given if isinstance(given, tuple) else (given,)
            argv += [f"{flag}={getattr(value, 'path', value)}" for value in values]
    if resolved.run_step.aic_profiling_type:
        # Its default is another one here: the inference that pays for the start is not recorded.
        argv += [f"--aic-profiling-start-iter={resolved.run_step.aic_profiling_start_iter}"]
    if "dev_id" in resolved.as_given:
        ids = resolved.runtime.dev_id
        argv += [f"-d={ids}"] if isinstance(ids, int) else [f"-D={':'.join(map(str, ids))}"]
    argv += ["-v"] * resolved.compile.verbose
    return parse(argv)


def warn_unused(resolved: ResolvedOptions, name: str) -> None:
    """Say which options are for a run that does not come; `compile_only` has a rule that says so.

    Samples are told too where they are not measured: the option for that may have been forgotten.
    """
    if not (resolved.compile.convert_to_quantize or resolved.compile.dump_profile):
        # Of those in a file a rule has told already.
        given = (origin for option, origin in resolved.origins.items() if option in _SAMPLES)
        samples = [str(origin) for origin in given if origin.source is Source.ARGV]
        if samples:
            print_message(
                "note",
                f"{', '.join(samples)} without -convert-to-quantize or -dump-profile: nothing is measured",
            )
    if resolved.compile.compile_only:
        return
    unused = [str(origin) for option, origin in resolved.origins.items() if option in _FOR_RUNS]
    if unused:
        print_message(
            "note", f"{', '.join(unused)}: for a run by qaic-exec or qaic-runner; {name} runs nothing now"
        )


def run(request: argparse.Namespace, program: Path) -> int:
    """Run a program; returns the exit code.

    Raises
    ------
    QaicError
        Anything that keeps the program from running to its end.
    """
    from qaic.cli.runner.flow import run as run_program

    request.test_data = str(program)
    return run_program(request)
