"""``qaic-compile``: an ONNX model to a program container.

This module is the way in, also of ``qaic-exec`` (`compile_and_run`), and decides what is to be done; what is
loaded before the command line is understood stays small.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qaic.cli import console
from qaic.cli.console import SUCCESS, USAGE, print_line, print_message, print_text

if TYPE_CHECKING:
    from qaic.options.resolution import ResolvedOptions

_HELP: Final = frozenset({"-h", "-help", "--help", "--h", "-u", "-usage", "--usage"})

_VERSION: Final = frozenset({"-version", "--version"})

#: options that write a file about the model; without a directory for the container, nothing else is done
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
    """Do what a command line asks for.

    Parameters
    ----------
    argv
        Arguments without the name of the tool.
    name
        Name of the tool, for messages.
    runs
        Whether the program is run after it was compiled.
    """
    if _HELP & set(argv):
        from qaic.cli.compile.help_text import help_text

        print_text(help_text(name, runs=runs))
        return SUCCESS
    if version_flags := _VERSION & set(argv):
        from qaic import __version__

        print_line(f"{name} {__version__}")
        # Card users have it among other flags; then the rest is done too.
        argv = [argument for argument in argv if argument not in version_flags]
        if not argv:
            return SUCCESS
    from qaic.cli.compile.log import logged

    console.take_options_as_flags("-")
    with logged() as set_verbosity:
        resolved = _resolved(argv, name)
        if resolved is None:
            return USAGE
        set_verbosity(resolved.compile.verbose)
        return _do(resolved, name, runs=runs)


def _resolved(argv: Sequence[str], name: str) -> ResolvedOptions | None:
    """Read the command line, and report its errors."""
    from qaic.errors import OptionError
    from qaic.options import resolve
    from qaic.options.argv import read_argv

    try:
        return resolve({}, options_path=None, model_is_container=False, flags=read_argv(argv))
    except OptionError as error:
        print_message("error", error.message)
        for hint in (*error.hints, f"`{name} -h` shows the options"):
            print_message("hint", hint)
        return None
    except OSError as error:
        # Only the options file is opened here by itself; other files are values and refused as such.
        _misused(f"-options-path: {error.filename}: {error.strerror or error}", name)
        return None


def _do(resolved: ResolvedOptions, name: str, *, runs: bool) -> int:
    if resolved.run_step.operators_supported is not None:
        return _write_operators(resolved)
    options = resolved.compile
    if resolved.session.model_path is None:
        return _misused(f"no model; -m=MODEL.onnx is expected by {name}", name)
    dumped = [path for path in (getattr(options, dump) for dump in _DUMPS) if path is not None]
    # The tool is known to end after it has written a profile; for the others that is our decision.
    only_dumps = options.dump_profile is not None or (bool(dumped) and options.output_dir is None)
    if options.output_dir is None and not (only_dumps or runs):
        return _misused("no directory for the container; -aic-binary-dir=DIR is expected", name)
    from qaic.cli.compile import run_step

    will_run = runs and not options.compile_only and not only_dumps
    request = run_step.prepared(resolved) if will_run else None
    if request is None:
        run_step.warn_unused(resolved, name)
    path = _compile(resolved, only_dumps=only_dumps)
    for written in dumped:
        print_line(f"wrote {written}")
    if path is not None:
        print_line(f"compiled {path}")
    if request is None or path is None:
        return SUCCESS
    return run_step.run(request, path)


def _compile(resolved: ResolvedOptions, *, only_dumps: bool) -> Path | None:
    """Compile; returns the container, or None where only files about the model were wanted."""
    from qaic.cli.compile import model_input, output_folder
    from qaic.compiler import compile_resolved
    from qaic.compiler.driver import write_side_files
    from qaic.compiler.output_folder import check_alone

    options = resolved.compile
    assert resolved.session.model_path is not None  # noqa: S101  # the caller has looked
    model = model_input.open_model(resolved.session.model_path)
    if options.output_dir is not None and not only_dumps:
        check_alone(options.output_dir, str(resolved.origins["output_dir"]), options.target)
    print_line(f"reading {resolved.session.model_path}")
    print_line(output_folder.target_line(options))
    print_line(output_folder.precision_line(options))
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
    from pathlib import Path

    from qaic.cli.compile.output_folder import write_operators
    from qaic.errors import OptionError

    wanted = resolved.run_step.operators_supported
    if wanted != "onnx":
        raise OptionError(
            f"-operators-supported={wanted}: models are read as ONNX; -operators-supported=onnx is expected",
            code="option.operators_supported",
            context={"options": ["operators_supported"]},
        )
    print_line(write_operators(resolved.compile, resolved.compile.output_dir or Path()))
    return SUCCESS


def _misused(message: str, name: str) -> int:
    print_message("error", message)
    print_message("hint", f"`{name} -h` shows the options")
    return USAGE
