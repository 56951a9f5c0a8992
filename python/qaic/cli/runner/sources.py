"""Inferences of ``qaic-runner`` from random data, raw files, a folder, a list, or a batch file."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qaic.cli.console import print_line, print_message
from qaic.cli.runner.batch_json import read_batch, read_bindings
from qaic.cli.runner.network import (
    Binding,
    Network,
    Request,
    file_bytes,
    from_batch_of_files,
    from_files,
    of_data,
)
from qaic.errors import InputError
from qaic.options.rows.runner import RunnerOptions
from qaic.rt import BufferDataTypeEnum as Type
from qaic.support.open_regular import read_text

_SEED = 0
#: type and range of random integers; only 0 and 1 are certainly valid as index, flag and mask
_INTEGERS = {
    int(Type.BUFFER_DATA_TYPE_INT8Q): (np.int8, -128, 128),
    int(Type.BUFFER_DATA_TYPE_UINT8Q): (np.uint8, 0, 256),
    int(Type.BUFFER_DATA_TYPE_INT16Q): (np.int16, -(2**15), 2**15),
    int(Type.BUFFER_DATA_TYPE_INT32Q): (np.int32, -(2**15), 2**15),
    int(Type.BUFFER_DATA_TYPE_INT32I): (np.int32, 0, 2),
    int(Type.BUFFER_DATA_TYPE_INT64I): (np.int64, 0, 2),
    int(Type.BUFFER_DATA_TYPE_INT8): (np.int8, 0, 2),
}


def generator(*, bounded: bool) -> Callable[[Binding], NDArray[np.uint8]]:
    """Return a function that generates the data of the next input."""
    random = np.random.default_rng(_SEED)

    def any_bytes(binding: Binding) -> NDArray[np.uint8]:
        return random.integers(0, 256, binding.nbytes, np.uint8)

    def digestible(binding: Binding) -> NDArray[np.uint8]:
        values: NDArray[np.generic]
        if binding.data_type == int(Type.BUFFER_DATA_TYPE_FLOAT):
            values = random.random(binding.nbytes // 4, np.float32)
        elif binding.data_type == int(Type.BUFFER_DATA_TYPE_FLOAT16):
            values = random.random(binding.nbytes // 2, np.float32).astype(np.float16)
        elif binding.data_type in _INTEGERS:
            dtype, low, high = _INTEGERS[binding.data_type]
            values = random.integers(low, high, binding.nbytes // np.dtype(dtype).itemsize, dtype)
        else:
            values = np.zeros(binding.nbytes, np.uint8)
        return values.view(np.uint8)

    return digestible if bounded else any_bytes


def requests_of(options: RunnerOptions, program: Path, network: Network) -> list[Request]:
    """Plan the inferences of a command line. Files are checked and not read.

    Raises InputError if files do not fit the program, and OSError if a file or folder cannot be read.
    """
    if options.aic_batch_json_input is not None:
        return read_batch(options.aic_batch_json_input, network, compare=options.compare_outputs)
    if options.aic_batch_input_directory is not None:
        return _folder(options.aic_batch_input_directory, network, join=options.auto_batch_input)
    if options.aic_batch_input_file_list is not None:
        return _listed(options.aic_batch_input_file_list, network, join=options.auto_batch_input)
    if options.input_file:
        _refuse_names(options.input_file, network)
        for name in options.input_file:
            print_line(f"Input file: {name}")
        return [from_files(network, list(options.input_file), "-i")]
    bindings = (program if program.is_dir() else program.parent) / "bindings.json"
    if bindings.exists() and not options.unbound_random and not options.bound_random:
        return [_bindings_file(bindings, network)]
    return [_random(network, bounded=not options.unbound_random)]


def _refuse_names(files: Sequence[Path], network: Network) -> None:
    """Refuse ``NAME=FILE``, the form of `openqaic run`."""
    named = dict(str(path).split("=", 1) for path in files if "=" in str(path) and not path.exists())
    names = [binding.name for binding in network.inputs]
    if not named or not named.keys() <= set(names):
        return
    name, file = next(iter(named.items()))
    in_order = [f"-i {shlex.quote(named[name])}" for name in names if name in named]
    raise InputError(
        f"-i {name}={file}: found the name of an input, expected a file; -i takes the files in the order of "
        f"the inputs: {', '.join(names)}",
        code="runner.input_name",
        hints=(f"give {' '.join(in_order)}",) if len(in_order) == len(names) else (),
    )


def _random(network: Network, *, bounded: bool) -> Request:

    print_line(f"Using {'bounded' if bounded else 'unbound'} random inputs")
    fill = generator(bounded=bounded)
    return of_data(network, [fill(binding) for binding in network.inputs])


def _bindings_file(path: Path, network: Network) -> Request:
    """Return the inference of the file next to the container."""
    try:
        request = read_bindings(path, network)
    except InputError as error:
        hints = (*error.hints, f"-i replaces the inputs of {path}; --bound-random uses random inputs")
        raise InputError(error.message, code=error.code, context=error.context, hints=hints) from error
    for part in request.inputs:
        for name in part.paths:
            print_line(f"Input file: {name}")
    return request


def _folder(folder: Path, network: Network, *, join: bool) -> list[Request]:
    if len(network.inputs) != 1:
        raise InputError(
            f"--aic-batch-input-directory is for programs with one input; this one has {len(network.inputs)}",
            code="runner.directory_inputs",
            hints=("--aic-batch-input-file-list accepts one file per input",),
        )
    rows = [[path] for path in sorted(folder.iterdir()) if path.is_file()]
    return _rows(rows, network, str(folder), join=join)


def _listed(path: Path, network: Network, *, join: bool) -> list[Request]:
    try:
        lines = read_text(path).splitlines()
    except ValueError as error:
        raise InputError(f"{path}: not a list of file names: {error}", code="runner.file_list") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        names = [name.strip() for name in line.split(",")]
        if not all(names) or "\0" in line:
            raise InputError(
                f"{path}, line {number}: a name is empty; file names separated by commas are expected",
                code="runner.file_list",
            )
        rows.append([_place(Path(name), path.parent) for name in names])
    return _rows(rows, network, str(path), join=join)


def _place(name: Path, folder: Path) -> Path:
    """Find a file of a list: absolute, else in the current directory, else next to the list."""
    return folder / name if not name.exists() and (folder / name).exists() else name


def _rows(rows: Sequence[Sequence[Path]], network: Network, where: str, *, join: bool) -> list[Request]:
    if not rows:
        raise InputError(f"{where}: found no input file", code="runner.no_files")
    if join and network.batch > 1:
        return _joined(rows, network, where)
    try:
        return [from_files(network, row, where) for row in rows]
    except InputError as error:
        batch = network.batch
        first = network.inputs[0] if network.inputs else None
        if (
            batch > 1
            and first is not None
            and error.code == "runner.file_size"
            and file_bytes(rows[0][0]) * batch == first.nbytes
        ):
            raise InputError(
                f"{error.message}: the files have batch size 1, but the program has batch size {batch}",
                code=error.code,
                hints=("--auto-batch-input combines them",),
            ) from error
        raise


def _joined(rows: Sequence[Sequence[Path]], network: Network, where: str) -> list[Request]:
    batch = network.batch
    missing = -len(rows) % batch
    if missing:
        print_message("note", f"the last batch of {batch} is filled with {missing} copies of the last input")
    filled = [*rows, *[rows[-1]] * missing]
    return [
        from_batch_of_files(network, filled[start : start + batch], where)
        for start in range(0, len(filled), batch)
    ]
