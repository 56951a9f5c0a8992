"""Inputs of an inference from files, and outputs to files."""

import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qaic.cli.openqaic.pictures import SUFFIXES, UNCHANGED, Pixels, read_picture
from qaic.errors import InputError
from qaic.model_path import missing_file
from qaic.options.names import nearest
from qaic.runtime.benchmark import random_inputs
from qaic.runtime.shapes import ShapeAndType, ShapeDict
from qaic.support.atomic_io import write_replacing
from qaic.support.library_errors import library_errors
from qaic.support.open_regular import open_regular, read_regular
from qaic.support.program_names import archive_names
from qaic.support.text import counted


def read_inputs(
    given: Sequence[str], inputs: ShapeDict, network: Mapping[str, Any], pixels: Pixels = UNCHANGED
) -> dict[str, NDArray[Any]]:
    """Read arrays of a command line; without any, return random inputs for a network descriptor. Blocking.

    `given` are ``NAME=FILE``, or ``FILE`` if the program has one input or the file is an ``.npz`` with names.
    ``NAME=FILE.npz`` reads the array of this name, or the only array. Pictures are converted by `pixels`.
    Other files except ``.npy`` contain raw little-endian data of the input's type. Raises InputError if a
    name is unknown, given twice or missing, or a file does not contain arrays, and OSError if a file cannot
    be read.
    """
    if not given:
        return random_inputs(inputs, network)
    found: dict[str, NDArray[Any]] = {}
    for text in given:
        for name, array in _arrays(text, inputs, pixels):
            _check_name(text, name, inputs)
            if name in found:
                raise InputError(f"input {name!r} is given twice", code="run.input_twice")
            found[name] = array
    return found


@contextmanager
def naming_files(given: Sequence[str], inputs: ShapeDict) -> Iterator[None]:
    """Add the files of a command line to errors about their arrays.

    `given` and `inputs` are as for `read_inputs`.
    """
    try:
        yield
    except InputError as error:
        about = str(error.context.get("name", ""))
        files = [path for name, path in map(_name_and_file, given) if not name or about in {"", name}]
        if not files:
            raise
        if error.code == "input.shape" and _is_raw(files[0]):
            raise _wrong_size(files[0], about, inputs[about]) from error
        hints = error.hints
        if error.code == "input.type":
            # The hint of sessions is about arrays in Python.
            hints = (f"write the file again, as {error.context['expected']}",)
        raise type(error)(
            f"{', '.join(map(str, files))}: {error.message}",
            code=error.code,
            context=error.context,
            hints=hints,
        ) from error


def _name_and_file(text: str) -> tuple[str, Path]:
    """Return the parts of ``NAME=FILE``; the name is empty if there is none."""
    name, assigned, file = text.partition("=")
    return (name, Path(file)) if assigned else ("", Path(text))


def _is_raw(path: Path) -> bool:
    return path.suffix.lower() not in {".npy", ".npz", *SUFFIXES}


def _wrong_size(path: Path, name: str, expected: ShapeAndType) -> InputError:
    shape, dtype = list(expected.shape), expected.dtype
    found = counted(path.stat().st_size, "byte")
    needed = counted(math.prod(shape) * dtype.itemsize, "byte")
    return InputError(
        f"{path} has {found}; input {name!r} ({dtype} {shape}) needs {needed}", code="run.input_size"
    )


def _check_name(text: str, name: str, inputs: ShapeDict) -> None:
    if name not in inputs:
        near = nearest(name, inputs)
        hint = "" if near is None else f"; did you mean {near!r}?"
        raise InputError(
            f"{text}: the program has no input {name!r}; it has {', '.join(inputs)}{hint}",
            code="run.input_name",
        )


def _arrays(text: str, inputs: ShapeDict, pixels: Pixels) -> list[tuple[str, NDArray[Any]]]:
    name, path = _name_and_file(text)
    if name:
        _check_name(text, name, inputs)
    if path.suffix == ".npz":
        members = {member: own for own, member in archive_names(inputs).items()}
        named = [(members.get(key, key), array) for key, array in _loaded(path).items()]
        if not name:
            return named
        own = named if len(named) == 1 else [item for item in named if item[0] == name]
        if not own:
            raise InputError(
                f"{text}: the file has no array {name!r}; it has {', '.join(key for key, _ in named)}",
                code="run.input_name",
            )
        return [(name, own[0][1])]
    if not name:
        if len(inputs) != 1:
            raise InputError(
                f"{text} has no input name; the program has {len(inputs)}: give NAME={text} with one of "
                f"{', '.join(inputs)}",
                code="run.input_name",
            )
        (name,) = inputs
    if path.suffix == ".npy":
        return [(name, _loaded(path)[""])]
    if not path.exists():
        raise missing_file(path)
    if path.suffix.lower() in SUFFIXES:
        return [(name, read_picture(path, name, inputs[name], pixels))]
    dtype = inputs[name].dtype
    if path.stat().st_size % dtype.itemsize:
        raise _wrong_size(path, name, inputs[name])
    return [(name, np.frombuffer(read_regular(path), dtype))]


def _loaded(path: Path) -> dict[str, NDArray[Any]]:
    if not path.exists():
        raise missing_file(path)

    def refuse(found: str) -> InputError:
        return InputError(
            f"{path}: found {found}, expected a valid NumPy file",
            code="run.input_file",
            hints=("numpy.save and numpy.savez write such files",),
        )

    with open_regular(path) as file, library_errors(refuse):
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"": loaded}
        with loaded:
            return dict(loaded)


def find_differences(
    outputs: Mapping[str, NDArray[Any]], path: Path, rtol: float, atol: float
) -> dict[str, str]:
    """Compare outputs with those of a file ``.npz``; NaN equals NaN. Blocking.

    Returns a description for each output that differs. Raises InputError if the file has other names than
    the program or does not contain arrays, and OSError if it cannot be read.
    """
    expected = _loaded(path)
    if unknown := set(expected) - set(outputs):
        raise InputError(
            f"{path} has the arrays {sorted(unknown)}, expected outputs of the program: {sorted(outputs)}",
            code="run.expect",
        )
    return {
        name: text
        for name, array in outputs.items()
        if (text := _difference(array, expected.get(name), rtol, atol)) is not None
    }


def _difference(found: NDArray[Any], expected: NDArray[Any] | None, rtol: float, atol: float) -> str | None:
    if expected is None:
        return "the file has no such array"
    if expected.shape != found.shape or expected.dtype.kind not in "fiub":
        return f"found shape {list(found.shape)}, expected {list(expected.shape)} of {expected.dtype}"
    wide, other = (array.astype(np.float64) for array in (found, expected))
    if "f" in found.dtype.kind + expected.dtype.kind:
        wrong = ~np.isclose(wide, other, rtol=rtol, atol=atol, equal_nan=True)
    else:
        wrong = found != expected
    if not wrong.any():
        return None
    with np.errstate(invalid="ignore"):
        errors = np.where(wrong, np.nan_to_num(np.abs(wide - other), nan=np.inf), -1.0)
    place = np.unravel_index(int(errors.argmax()), errors.shape)
    # Integers of Python are exact.
    value, wanted = found[place].item(), expected[place].item()
    return (
        f"{int(wrong.sum())} of {wrong.size} elements; the largest error is {abs(value - wanted):.3g}, at "
        f"{[int(index) for index in place]}: found {value:.6g}, expected {wanted:.6g}"
    )


def write_outputs(outputs: Mapping[str, NDArray[Any]], path: Path) -> None:
    """Write arrays to a file ``.npz``, atomically. Blocking.

    Names are those of outputs, without parts that would leave the folder (`archive_names`).

    Raises OSError if the file cannot be written.
    """

    def write(aside: Path) -> None:
        with zipfile.ZipFile(aside, "w") as archive:
            for name, member in archive_names(outputs).items():
                with archive.open(f"{member}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, outputs[name], allow_pickle=False)

    write_replacing(path, write)
