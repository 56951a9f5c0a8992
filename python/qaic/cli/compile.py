"""``qaic-compile``: compiles an ONNX model to a program container.

This module is the entry point of the tool, and of ``qaic-exec`` (`compile_and_run`). It imports few modules
at its head, so errors of the command line are reported quickly.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qaic.cli import console
from qaic.cli.console import SUCCESS, USAGE, print_line, print_message, print_text
from qaic.errors import OptionError
from qaic.options.table import is_quantizing
from qaic.support.atomic_io import write_replacing
from qaic.support.text import counted

if TYPE_CHECKING:
    from qaic.cli.runner.command_line import RunRequest
    from qaic.options.resolution import ResolvedOptions
    from qaic.options.table import CompileOptions

_HELP: Final = frozenset({"-h", "-help", "--help", "--h", "-u", "-usage", "--usage"})

_VERSION: Final = frozenset({"-V", "-version", "--version"})

#: options that write a file about the model; without a directory for the container, this is all the tool does
_DUMPS: Final = (
    "dump_custom_io_config_template_file",
    "dump_embedding_tables",
    "dump_profile",
    "mdp_dump_partition_config",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns its exit code."""
    return console.run(lambda arguments: tool(arguments, name="qaic-compile", runs=False), argv)


def tool(argv: Sequence[str], *, name: str, runs: bool) -> int:
    """Run the tool for the arguments `argv`; `name` is the name of the tool in messages.

    With `runs`, the program also runs after the compilation.
    """
    if _HELP & set(argv):
        print_text(_help_text(name, runs=runs))
        return SUCCESS
    if version_flags := _VERSION & set(argv):
        from qaic import __version__

        print_line(f"{name} {__version__}")
        # Users of cards combine this option with other options, which then also have an effect.
        argv = [argument for argument in argv if argument not in version_flags]
        if not argv:
            return SUCCESS
    from qaic.cli.log import logged

    console.take_options_as_flags("-", argv)
    with logged() as set_verbosity:
        resolved = _resolved(argv, name)
        if resolved is None:
            return USAGE
        set_verbosity(resolved.compile.verbose)
        return _do(resolved, name, runs=runs)


def _resolved(argv: Sequence[str], name: str) -> ResolvedOptions | None:
    """Read the command line, and report its errors."""
    from qaic.options import resolve
    from qaic.options.argv import read_argv

    try:
        return resolve({}, options_path=None, model_is_container=False, flags=read_argv(argv))
    except OptionError as error:
        print_message("error", error.message, *error.hints, f"`{name} -h` shows the options", code=error.code)
        return None
    except OSError as error:
        # Only the options file is opened here; options report errors of other files.
        _misused(f"-options-path: {error.filename}: {error.strerror or error}", name)
        return None


def _do(resolved: ResolvedOptions, name: str, *, runs: bool) -> int:
    if resolved.run_step.operators_supported is not None:
        return _write_operators(resolved)
    options = resolved.compile
    if resolved.session.model_path is None:
        return _misused(f"no model; {name} expects -m=MODEL.onnx", name)
    dumped = [path for path in (getattr(options, dump) for dump in _DUMPS) if path is not None]
    # Like the vendor's tool after a profile, the tool exits after it has written these files.
    only_dumps = options.dump_profile is not None or (bool(dumped) and options.output_dir is None)
    if options.output_dir is None and not (only_dumps or runs):
        return _misused("the folder for the container is missing; -aic-binary-dir=DIR is expected", name)
    will_run = runs and not options.compile_only and not only_dumps
    request = _run_request(resolved) if will_run else None
    if request is None:
        _warn_unused(resolved, name)
    path = _compile(resolved, only_dumps=only_dumps)
    for written in dumped:
        print_line(f"wrote {written}")
    if path is not None:
        print_line(f"compiled {path}")
    if request is None or path is None:
        return SUCCESS
    from qaic.cli.runner.flow import run

    return run(replace(request, program=path))


def _compile(resolved: ResolvedOptions, *, only_dumps: bool) -> Path | None:
    """Compile; return the container, or None if only files about the model were requested."""
    from qaic.compiler.driver import compile_resolved, write_side_files
    from qaic.compiler.output_folder import check_alone
    from qaic.model_path import open_model

    options = resolved.compile
    assert resolved.session.model_path is not None  # noqa: S101  # the caller has looked
    model = open_model(resolved.session.model_path)
    if options.output_dir is not None and not only_dumps:
        check_alone(options.output_dir, str(resolved.origins["output_dir"]), options.target)
    print_line(f"reading {resolved.session.model_path}")
    device = "card" if options.target == "card" else "CPU device"
    print_line(f"compiling for the {device}, {counted(options.aic_num_cores, 'core')}")
    print_line(_precision_line(options))
    sys.stdout.flush()
    if not only_dumps:
        return compile_resolved(model, resolved)
    if options.target == "card":
        from qaic.compiler.card_driver import dump_for_card

        dump_for_card(model, resolved)
    else:
        write_side_files(model, options)
    return None


def _write_operators(resolved: ResolvedOptions) -> int:
    """Write the list of operators that a card supports, and report it."""
    from qaic.compiler.reports import operator_list
    from qaic.compiler.reports.support_report import choose_list

    options, wanted = resolved.compile, resolved.run_step.operators_supported
    if wanted != "onnx":
        raise OptionError(
            f"-operators-supported={wanted}: expected -operators-supported=onnx; other formats are not read",
            code="option.operators_supported",
            context={"options": ["operators_supported"]},
        )
    operators = choose_list(options)
    path = (options.output_dir or Path()) / operator_list.TEXT_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    write_replacing(path, lambda aside: aside.write_text(operators.text(), encoding="utf-8"))
    kind = "an estimate" if operators.is_estimate else f"from {options.aic_operator_list.path}"  # type: ignore[union-attr]
    print_line(f"wrote {path}: {counted(len(operators.operators), 'operator')}, {kind}")
    return SUCCESS


def _misused(message: str, name: str) -> int:
    print_message("error", message, f"`{name} -h` shows the options")
    return USAGE


def _help_text(name: str, *, runs: bool) -> str:
    """Write the help of ``qaic-compile`` or ``qaic-exec``."""
    from qaic.options.argv import render_help
    from qaic.options.spec import Stage

    what = "Compile an ONNX model to a program container" + (" and run it." if runs else ".")
    return "\n".join(
        [
            f"usage: {name} -m=MODEL.onnx -aic-binary-dir=DIR [-OPTION[=VALUE] ...]",
            "",
            what,
            "",
            render_help(tuple(Stage)).rstrip("\n"),
        ]
    )


def _precision_line(options: CompileOptions) -> str:
    """Return the line about the program's precision."""
    parts = [f"precision {'float16' if options.convert_to_fp16 else 'as in the model'}"]
    if is_quantizing(options):
        parts.append(f"quantized to {options.quantization_precision}")
    if options.execute_nodes_in_fp16:
        parts.append(f"float16 for {', '.join(options.execute_nodes_in_fp16)}")
    if options.mxfp6_matmul:
        parts.append("weights of matrix products in MXFP6")
    return "; ".join(parts)


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
#: options that have an effect only on the run
_FOR_RUNS: Final = frozenset({*_OPTIONS, "aic_profiling_start_iter", "dev_id"}) - {"input_list_file"}
#: option with samples for calibration; the first samples are also the inputs of a run
_SAMPLES: Final = ("input_list_file", "use_random_input_data")


def _run_request(resolved: ResolvedOptions) -> RunRequest:
    """Convert the options of the run to options of ``qaic-runner``, before any work and without the program.

    Raises OptionConflictError if the options contradict each other.
    """
    from qaic.cli.runner.command_line import request_of
    from qaic.options.rows.runner import RunnerOptions

    given: dict[str, Any] = {
        # The runner receives the file of an option that reads a file.
        runners: getattr(resolved.as_given[name], "path", resolved.as_given[name])
        for name, runners in _OPTIONS.items()
        if name in resolved.as_given
    }
    if resolved.run_step.aic_profiling_type:
        # This default differs: the first inference, which includes the start, is not recorded.
        given["aic_profiling_start_iter"] = resolved.run_step.aic_profiling_start_iter
    if "dev_id" in resolved.as_given:
        ids = resolved.runtime.dev_id
        given |= (
            {"aic_device_id": ids} if isinstance(ids, int) else {"aic_device_map": ":".join(map(str, ids))}
        )
    return request_of(RunnerOptions(verbose=resolved.compile.verbose, **given), Path())


def _warn_unused(resolved: ResolvedOptions, name: str) -> None:
    """Warn about options for a run if no run follows; `compile_only` has a rule with the same text.

    The warning includes samples without calibration, because an option may be missing.
    """
    from qaic.options.raw_option import OptionSource

    if not (resolved.compile.convert_to_quantize or resolved.compile.dump_profile):
        # A rule already names samples in a file.
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
        print_message("note", f"{', '.join(unused)}: no effect in {name} without a run; use qaic-runner")


if __name__ == "__main__":
    sys.exit(main())
