"""The run that ``qaic-exec`` makes after compiling: that of ``qaic-runner``, by flags of the compiler."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qaic.cli.console import print_message
from qaic.options.raw_option import OptionSource

if TYPE_CHECKING:
    from qaic.cli.runner.command_line import RunRequest
    from qaic.options.resolution import ResolvedOptions

#: option -> option of `qaic-runner`
_OPTIONS: Final = {
    "aic_num_of_instances": "aic_num_of_activations",
    "aic_profiling_num_samples": "aic_profiling_num_samples",
    "aic_profiling_out_dir": "aic_profiling_out_dir",
    "aic_profiling_start_delay": "aic_profiling_start_delay",
    "aic_profiling_type": "aic_profiling_type",
    "input_list_file": "aic_batch_input_file_list",
    "json_input_file": "aic_batch_json_input",
    "num_iter": "num_iter",
    "time": "time",
    "write_output_dir": "write_output_dir",
    "write_output_num_samples": "write_output_num_samples",
    "write_output_start_iter": "write_output_start_iter",
}
#: of these only the run makes use
_FOR_RUNS: Final = frozenset({*_OPTIONS, "aic_profiling_start_iter", "dev_id"}) - {"input_list_file"}
#: samples of a calibration, the first also the inputs of a run
_SAMPLES: Final = ("input_list_file", "use_random_input_data")


def prepared(resolved: ResolvedOptions) -> RunRequest:
    """Turn the options of the run into those of ``qaic-runner``, before any work; the program comes later.

    Raises
    ------
    qaic.errors.OptionConflictError
        They contradict each other.
    """
    from qaic.cli.runner.command_line import request_of
    from qaic.options.rows.runner import RunnerOptions

    given: dict[str, Any] = {
        # Of an option that reads a file the runner takes the file.
        runners: getattr(resolved.as_given[name], "path", resolved.as_given[name])
        for name, runners in _OPTIONS.items()
        if name in resolved.as_given
    }
    if resolved.run_step.aic_profiling_type:
        # Its default is another one here: the inference that pays for the start is not recorded.
        given["aic_profiling_start_iter"] = resolved.run_step.aic_profiling_start_iter
    if "dev_id" in resolved.as_given:
        ids = resolved.runtime.dev_id
        given |= (
            {"aic_device_id": ids} if isinstance(ids, int) else {"aic_device_map": ":".join(map(str, ids))}
        )
    return request_of(RunnerOptions(verbose=resolved.compile.verbose, **given), Path())


def warn_unused(resolved: ResolvedOptions, name: str) -> None:
    """Warn about options for a run that does not follow; `compile_only` has a rule with the same text.

    Samples are named too where they are not measured: the option for that may have been forgotten.
    """
    if not (resolved.compile.convert_to_quantize or resolved.compile.dump_profile):
        # A rule has named those in a file already.
        given = (origin for option, origin in resolved.origins.items() if option in _SAMPLES)
        samples = [str(origin) for origin in given if origin.source is OptionSource.ARGV]
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


def run(request: RunRequest, program: Path) -> int:
    """Run a program; returns the exit code.

    Raises
    ------
    QaicError
        Anything that keeps the program from running to its end.
    """
    from dataclasses import replace

    from qaic.cli.runner.flow import run as run_program

    return run_program(replace(request, program=program))
