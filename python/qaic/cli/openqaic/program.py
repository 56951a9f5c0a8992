"""The program that a subcommand opens or measures, and the file that it writes."""

import argparse
import shlex
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final

from qaic import Session
from qaic.cli.console import print_message
from qaic.cli.openqaic.commands.compile import Program, compile_model
from qaic.cli.openqaic.compile_options import given_options, resolve_options, set_stats_level
from qaic.cli.openqaic.pictures import UNCHANGED, Pixels
from qaic.cli.openqaic.tensor_files import naming_files, read_inputs
from qaic.errors import OptionError, StateError
from qaic.model_path import find_model, missing_file
from qaic.qpc import Qpc
from qaic.stats.reports.capture import Capture
from qaic.support.status_line import status_line
from qaic.support.text import bytes_text, counted


def open_program(arguments: argparse.Namespace, *, stats_level: int | None = None) -> Program:
    """Find the container of a command line; a model is compiled into the cache. Blocking.

    `arguments` contains ``model`` and the options of the compiler; `stats_level` applies unless the command
    line has one. Raises the errors of `qaic.compile` and `qaic.Qpc`.
    """
    # A compilation can take minutes.
    expected = filter(None, [getattr(arguments, "expect", None)])
    _check_exist(map(Path, [*files_of(getattr(arguments, "inputs", ())), *expected]))
    found = find_model(arguments.model) if arguments.model.suffix.lower() != ".onnxtxt" else None
    if found is None or not found.is_container:
        if stats_level is not None:
            set_stats_level(arguments, stats_level)
        program = compile_model(arguments, None)
        print_message("note", program.line)
        return program
    if given := given_options(arguments):
        raise OptionError(
            f"{found.path} is already compiled, so {given[0]} has no effect; give the .onnx file",
            code="option.compiled_model",
            context={"path": str(found.path), "options": given},
        )
    resolve_options(arguments, model_is_container=True)
    return Program(
        path=found.path, model=None, nbytes=found.path.stat().st_size, compile_s=0.0, from_cache=False
    )


#: lowest level at which a program measures its operations
STATS_LEVEL: Final = 70
#: file of a program's graph in hints
GRAPH: Final = "graph.onnx"


def measured(
    program: Path | Qpc,
    inputs: Sequence[str] = (),
    *,
    pixels: Pixels = UNCHANGED,
    warm_up: int = 3,
    inferences: int = 20,
    again: Sequence[str] = (f"openqaic profile {GRAPH}",),
    **device: Any,
) -> Capture:
    """Run a container and return the measurements of its device. Blocking.

    `inputs` are arguments ``[NAME=]FILE``, without which the inputs are random; `pixels` converts those that
    are pictures. `device` are options of the session. The first `warm_up` inferences are not measured. Raises
    StateError if the program was compiled without statistics; its hint contains `again`, the commands that
    measure the graph of the program in the file `GRAPH`.
    """
    with (
        Session(program, **device) as session,
        status_line(lambda: f"measuring {counted(inferences, 'inference')}"),
    ):
        shapes = session.model_input_shape_dict
        feeds = read_inputs(inputs, shapes, session.qpc.network_descriptor, pixels)
        with naming_files(inputs, shapes):
            for _ in range(warm_up):
                session.run(feeds)
        session.setup()
        with naming_files(inputs, shapes), session.profile() as profile:
            for _ in range(inferences):
                session.run(feeds)
    if not profile.device:
        raise StateError(
            f"{session.path} measures nothing: it was compiled without statistics",
            code="profile.not_compiled_in",
            hints=_ways_to_measure(session.qpc, again),
        )
    return profile.capture()


def _ways_to_measure(qpc: Qpc, again: Sequence[str]) -> tuple[str, ...]:
    """Return hints to measure a container without statistics; `again` are the commands for its graph."""
    hint = "give the .onnx file: it is compiled with --stats-level 70"
    if qpc.graph is None or qpc.path is None:
        return (hint,)
    inspect = f"openqaic inspect {shlex.quote(str(qpc.path))} --onnx {GRAPH}"
    commands = " and then ".join(f"`{command}`" for command in again)
    verb = "measures" if len(again) == 1 else "measure"
    return hint, f"`{inspect}` writes the graph of the container; {commands} {verb} it"


def check_output_file(
    option: str, output: str | PathLike[str] | None, *, read: Iterable[str | PathLike[str]]
) -> None:
    """Refuse a file that cannot be written, or that the same command reads.

    `option` is the option as messages show it, such as ``-o``, and `output` its value; nothing is checked if
    that is None. Files of `read` that are missing count as none. Raises OptionError if the folder of the file
    is missing, the file is a folder itself, or it is one of the files that are read.
    """
    if output is None:
        return
    path = Path(output)
    if path.is_dir():
        raise OptionError(f"{option} {path}: found a folder, expected a file", code="option.output_path")
    if not path.parent.is_dir():
        raise OptionError(
            f"{option} {path}: the folder {path.parent} does not exist",
            code="option.output_path",
            hints=(f"`mkdir -p {shlex.quote(str(path.parent))}` creates it",),
        )
    if path.exists() and any(Path(other).exists() and path.samefile(other) for other in read):
        raise OptionError(
            f"{option} {path}: the command also reads this file, and would overwrite it; give another name",
            code="option.output_path",
        )


def _check_exist(files: Iterable[Path]) -> None:
    """Refuse files that do not exist, with the most similar name. Raises OSError."""
    for file in files:
        if not file.exists():
            raise missing_file(file)


def check_page(output: str | PathLike[str] | None, *, read: Iterable[str | PathLike[str]]) -> None:
    """Refuse the ``-o`` of a page, as `check_output_file`, also if its name is not that of a page."""
    if output is not None and Path(output).suffix.lower() not in {".html", ".htm"}:
        raise OptionError(f"-o {output}: a name that ends in .html is expected", code="option.output_path")
    check_output_file("-o", output, read=read)


def wrote(path: str | PathLike[str], more: str = "") -> str:
    """Return the sentence that names a file that was written, and its size."""
    return f"wrote {shlex.quote(str(path))}, {bytes_text(Path(path).stat().st_size)}{more}"


def files_of(given: Iterable[str]) -> list[str]:
    """Return the files of ``[NAME=]FILE``."""
    return [text.partition("=")[2] or text for text in given]
