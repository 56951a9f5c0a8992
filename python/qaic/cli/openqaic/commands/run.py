"""``openqaic run MODEL``: runs one inference with inputs from files or random inputs."""

import argparse
import shlex
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qaic import Session
from qaic.cli.console import FAILURE, SUCCESS, Parser, print_json, print_line, print_message, print_text
from qaic.cli.openqaic.arguments import (
    add_device,
    add_inputs,
    add_json,
    add_model,
    device_options,
    pixels_of,
    set_examples,
    tolerance,
)
from qaic.cli.openqaic.compile_options import add_compile_options, next_command
from qaic.cli.openqaic.program import check_output_file, files_of, open_program
from qaic.cli.openqaic.tensor_files import find_differences, naming_files, read_inputs, write_outputs
from qaic.errors import OptionError
from qaic.report.text import rows_text
from qaic.support.status_line import status_line
from qaic.support.text import counted, duration, shape_text

_TOLERANCE = 1e-5
_TOLERANCE_HINT = "--rtol X and --atol X allow relative and absolute errors"


def add_arguments(parser: Parser) -> None:
    add_model(parser)
    add_inputs(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE.npz", type=Path, help="file for the outputs, by their names"
    )
    parser.add_argument(
        "--expect",
        metavar="FILE.npz",
        type=Path,
        help="compare with these outputs; exit code 1 if any differs",
    )
    for name in ("--rtol", "--atol"):
        kind = "relative" if name == "--rtol" else "absolute"
        parser.add_argument(name, metavar="X", type=tolerance, help=f"{kind} tolerance of --expect (1e-5)")
    add_device(parser)
    add_json(parser)
    add_compile_options(parser)
    set_examples(
        parser,
        "openqaic run model.onnx",
        "openqaic run model.onnx -i image=photo.jpg --mean 124,116,104 --scale 58",
        "openqaic run program/programqpc.bin -i photo.npy --json",
        "openqaic run model.onnx -i inputs.npz --expect outputs.npz --rtol 1e-3",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run one inference, and show its outputs."""
    if arguments.output is not None and arguments.output.suffix != ".npz":
        raise OptionError(f"-o {arguments.output}: a name that ends in .npz is expected", code="run.output")
    if arguments.expect is None and not arguments.rtol == arguments.atol is None:
        raise OptionError("--rtol and --atol need --expect", code="run.expect")
    read = [arguments.model, *filter(None, [arguments.expect]), *files_of(arguments.inputs)]
    check_output_file("-o", arguments.output, read=read)
    program = open_program(arguments)
    with Session(program.path, **device_options(arguments)) as session:
        inputs = session.model_input_shape_dict
        network = session.qpc.network_descriptor
        feeds = read_inputs(arguments.inputs, inputs, network, pixels_of(arguments))
        with naming_files(arguments.inputs, inputs), status_line(lambda: "running"):
            session.setup()
            started = time.perf_counter()
            outputs = session.run(feeds)
            elapsed_s = time.perf_counter() - started
    if arguments.output is not None:
        write_outputs(outputs, arguments.output)
    described = {name: _facts(array) for name, array in outputs.items()}
    differences = {}
    if arguments.expect is not None:
        tolerances = (_TOLERANCE if given is None else given for given in (arguments.rtol, arguments.atol))
        differences = find_differences(outputs, arguments.expect, *tolerances)
    code = FAILURE if differences else SUCCESS
    if arguments.json:
        found = {} if arguments.expect is None else {"differences": differences}
        print_json({"program": program.facts(), "run_s": elapsed_s, "outputs": described, **found})
        return code
    rows = [
        [
            name,
            shape_text(array.shape),
            array.dtype,
            *map(described[name].get, ("min", "mean", "max", "not_finite")),
        ]
        for name, array in outputs.items()
    ]
    columns = "output | shape | type | min:float | mean:float | max:float | not finite:int"
    print_text(rows_text(columns, rows))
    inputs_from = "the given inputs" if arguments.inputs else "random inputs"
    print_line(f"one inference with {inputs_from} in {duration(1e6 * elapsed_s)}")
    for name, text in differences.items():
        message = f"output {name!r} differs from {arguments.expect}: {text}"
        print_message("error", message, _TOLERANCE_HINT, code="run.expect")
    if arguments.output is not None:
        print_line(f"wrote {shlex.quote(str(arguments.output))}; numpy.load opens it")
    if arguments.expect is not None:
        equal = len(outputs) - len(differences)
        print_line(f"as expected: {equal} of {counted(len(outputs), 'output')}")
    if arguments.output is arguments.expect is None:
        print_line(f"next: {next_command('bench', arguments)}")
    return code


def _facts(array: NDArray[Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {"shape": list(array.shape), "dtype": str(array.dtype)}
    if not array.size or array.dtype.kind not in "fiub":
        return facts
    # Sums in small types would overflow.
    finite = array[np.isfinite(array)].astype(np.float64)
    if finite.size:
        facts |= {"min": float(finite.min()), "mean": float(finite.mean()), "max": float(finite.max())}
    facts["not_finite"] = int(array.size - finite.size)
    return facts
