"""The program that a subcommand works with: a container as it is, or a model that is compiled first."""

import argparse
import shlex
import time
from dataclasses import dataclass
from pathlib import Path

from qaic.cli.compile.log import logged
from qaic.cli.compile.model_input import open_model
from qaic.cli.console import print_message
from qaic.cli.openqaic.compile_options import given_options, resolve_options, set_stats_level
from qaic.errors import OptionError
from qaic.model_path import find_model
from qaic.support.text import bytes_text, duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program container.

    Parameters
    ----------
    path
        The container.
    model
        The model it was compiled from now; None where a container was given.
    nbytes
        Bytes of the container.
    compile_s
        Seconds that compiling took, or finding it in the cache.
    from_cache
        Whether it was compiled before.
    """

    path: Path
    model: Path | None
    nbytes: int
    compile_s: float
    from_cache: bool

    @property
    def line(self) -> str:
        """The container's path, size, compile time and origin."""
        path = shlex.quote(str(self.path))
        if self.model is None:
            return f"program {path}, {bytes_text(self.nbytes)}"
        origin = "found in the cache" if self.from_cache else "compiled"
        return f"{origin} in {duration(1e6 * self.compile_s)}: {path}, {bytes_text(self.nbytes)}"

    def facts(self) -> dict[str, object]:
        """Return the program as JSON values."""
        return {
            "path": str(self.path),
            "model": None if self.model is None else str(self.model),
            "bytes": self.nbytes,
            "compile_s": self.compile_s,
            "from_cache": self.from_cache,
        }


def compile_model(arguments: argparse.Namespace, folder: Path | None) -> Program:
    """Compile the model of a command line into a folder, or the cache. Blocking.

    Raises
    ------
    qaic.errors.QaicError, OSError
        As `qaic.compile`; nothing is written then.
    """
    from qaic.compiler import compile_resolved
    from qaic.compiler.diagnostics.record import recorded
    from qaic.compiler.output_folder import check_alone

    resolved = resolve_options(arguments, output_folder=folder)
    model = open_model(arguments.model)
    if resolved.compile.output_dir is not None:
        check_alone(resolved.compile.output_dir, str(resolved.origins["output_dir"]), resolved.compile.target)
    started = time.perf_counter()
    with logged() as set_verbosity:
        set_verbosity(resolved.compile.verbose)
        with recorded() as record:
            path = compile_resolved(model, resolved)
    return Program(
        path=path,
        model=arguments.model,
        nbytes=path.stat().st_size,
        compile_s=time.perf_counter() - started,
        from_cache=record.from_cache,
    )


def open_program(arguments: argparse.Namespace, *, stats_level: int | None = None) -> Program:
    """Find the container of a command line; a model is compiled into the cache. Blocking.

    Parameters
    ----------
    arguments
        With ``model``, and the options of the compiler.
    stats_level
        Stats level, unless the command line has one.

    Raises
    ------
    qaic.errors.QaicError, OSError
        As `qaic.compile` and `qaic.Qpc`.
    """
    found = find_model(arguments.model) if arguments.model.suffix.lower() != ".onnxtxt" else None
    if found is None or not found.is_container:
        if stats_level is not None:
            set_stats_level(arguments, stats_level)
        program = compile_model(arguments, None)
        print_message("note", program.line)
        return program
    if given := given_options(arguments):
        raise OptionError(
            f"{found.path} is compiled already, so {given[0]} cannot have an effect; give the .onnx file",
            code="option.compiled_model",
            context={"path": str(found.path), "options": given},
        )
    resolve_options(arguments, model_is_container=True)
    return Program(
        path=found.path, model=None, nbytes=found.path.stat().st_size, compile_s=0.0, from_cache=False
    )
