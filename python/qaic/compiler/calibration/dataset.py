"""Inputs for profiling: a list of files, Python objects, or random numbers.

Every source is a stream with one sample in memory at a time, except an ``.npz`` file, which is read whole.
Errors that do not depend on the data are raised before the first inference.

Calibration is the longest part of a compilation, so its result is cached for the samples. Samples of an input
list are identified by the content of the list and of every file in it. Digests are stored like those of
models (`qaic.compiler.frontend.files.content_digest`), with the metadata of the files, so that each file is
read once.
"""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from qaic.compiler.frontend.files.content_digest import DigestIndex
from qaic.compiler.ir.graph_walk import STANDARD_DOMAINS, attribute_of, usages
from qaic.errors import OptionError
from qaic.support.library_errors import library_errors
from qaic.support.open_regular import open_regular, read_regular
from qaic.support.text import counted

#: most bytes of the text file
_MOST_LIST_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class SampledInput:
    """An input of the float graph."""

    name: str
    #: type of its elements
    dtype: np.dtype[Any]
    #: one shape for each set of shapes of the program
    shapes: tuple[tuple[int, ...], ...]
    #: true for retained state, which a sample may omit
    is_state: bool = False

    def sizes(self) -> set[int]:
        """Possible sizes in bytes."""
        return {int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize for shape in self.shapes}


@dataclass(frozen=True, slots=True)
class Sample:
    """Inputs of one inference, and a description of their origin."""

    place: str
    arrays: Mapping[str, NDArray[Any]]


class ObjectSource:
    """Dictionaries of arrays from Python, taken one at a time."""

    #: option that provides the samples, for messages
    option = "calibration_data"

    def __init__(self, items: object) -> None:
        if not isinstance(items, Iterable) or isinstance(items, Mapping | str | bytes):
            raise OptionError(
                f"calibration_data: found type {type(items).__name__}, expected an iterable of "
                "dictionaries, one for each sample: name of an input -> array",
                code="option.calibration_data",
            )
        self._items: Iterable[object] = items
        #: number of samples, if known beforehand
        try:
            self.count: int | None = len(items)  # type: ignore[arg-type]  # not all have a length
        except TypeError:
            self.count = None

    def samples(self) -> Iterator[Sample]:
        """Yield the samples, once."""
        for number, item in enumerate(self._items, start=1):
            place = f"sample {number}"
            if not isinstance(item, Mapping):
                raise OptionError(
                    f"calibration_data, {place}: found type {type(item).__name__}, expected a dictionary: "
                    "name of an input -> array",
                    code="option.calibration_data",
                    context={"sample": number},
                )
            yield Sample(place, {str(name): np.asarray(array) for name, array in item.items()})


class FileSource:
    """Samples in files, one line of a text file for each, or in an ``.npz`` file.

    Names in the list are relative to the current directory. Raises OptionError with the line and input if a
    line does not fit the model, or a file is missing or has the wrong size.
    """

    option = "input_list_file"

    def __init__(self, path: Path, inputs: Sequence[SampledInput]) -> None:
        self._path = path
        self._inputs = {item.name: item for item in inputs}
        self._is_archive = is_archive(path)
        self._lines = [] if self._is_archive else list(read_list(path))
        #: number of samples, if known beforehand
        self.count = None if self._is_archive else len(self._lines)
        for number, names in self._lines:
            for item, file in self._assigned(number, names).items():
                self._check(number, self._inputs[item], file)

    def samples(self) -> Iterator[Sample]:
        """Yield the samples, once."""
        if self._is_archive:
            yield from archived(self._path, list(self._inputs.values()), partial(_wrong, self._path, ""))
        for number, names in self._lines:
            files = self._assigned(number, names)
            arrays = {name: self._read(number, self._inputs[name], file) for name, file in files.items()}
            yield Sample(f"{self._path}, line {number}", arrays)

    def _wrong(self, number: int, found: str, expected: str) -> OptionError:
        return _wrong(self._path, f", line {number}", found, expected, line=number)

    def _assigned(self, number: int, names: Sequence[str]) -> dict[str, Path]:
        """Assign the files of a line to inputs, by name or in order."""
        split = [name.split(":=", 1) for name in names]
        if all(len(parts) == 2 for parts in split):
            given = {parts[0].strip(): Path(parts[1].strip()) for parts in split}
            unknown = [name for name in given if name not in self._inputs]
            missing = [name for name, item in self._inputs.items() if name not in given and not item.is_state]
            if unknown or missing or len(given) < len(split):
                what = (
                    f"the unknown input {unknown[0]!r}"
                    if unknown
                    else f"no file for input {missing[0]!r}"
                    if missing
                    else "an input twice"
                )
                raise self._wrong(number, what, f"each of {', '.join(self._inputs)} once")
            return given
        if any(len(parts) == 2 for parts in split):
            raise self._wrong(number, "files with and without input names", "name:=path for all, or for none")
        plain = [item for item in self._inputs.values() if not item.is_state]
        targets = list(self._inputs.values()) if len(names) == len(self._inputs) else plain
        if len(names) != len(targets):
            counts = {len(plain), len(self._inputs)}
            raise self._wrong(
                number,
                counted(len(names), "file"),
                f"{' or '.join(str(count) for count in sorted(counts))}, in the order of the inputs "
                f"{', '.join(self._inputs)}",
            )
        return {item.name: Path(name) for item, name in zip(targets, names, strict=True)}

    def _check(self, number: int, item: SampledInput, file: Path) -> None:
        try:
            size = file.stat().st_size
            regular = file.is_file()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise self._wrong(
                number, f"{str(file)!r} for input {item.name!r}: {reason}", "a readable file"
            ) from error
        if not regular:
            raise self._wrong(number, f"{str(file)!r} for input {item.name!r}", "a regular file")
        if file.suffix.lower() != ".npy" and size not in item.sizes():
            forms = " or ".join(f"{size} ({item.dtype.name})" for size in sorted(item.sizes()))
            raise self._wrong(
                number, f"{size} bytes in {str(file)!r} for input {item.name!r}", f"{forms} bytes"
            )

    def _read(self, number: int, item: SampledInput, file: Path) -> NDArray[Any]:
        def refuse(found: object) -> OptionError:
            return self._wrong(number, f"{str(file)!r} for input {item.name!r}: {found}", "a readable array")

        try:
            if file.suffix.lower() == ".npy":
                # A mapped file cannot be read beyond its end, whatever its header states.
                with library_errors(refuse):
                    mapped: NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
                return mapped
            data = np.fromfile(file, item.dtype.newbyteorder("<"))
        except OSError as error:
            raise refuse(error) from error
        shape = next(
            (shape for shape in item.shapes if int(np.prod(shape, dtype=np.int64)) == data.size), None
        )
        if shape is None:
            raise self._wrong(
                number, f"{data.nbytes} bytes in {str(file)!r} for input {item.name!r}", "as many as before"
            )
        return data.astype(item.dtype, copy=False).reshape(shape)


def _wrong(path: Path, where: str, found: str, expected: str, **context: int) -> OptionError:
    return OptionError(
        f"input_list_file {path}{where}: found {found}, expected {expected}",
        code="option.input_list_file",
        context={"file": str(path), **context},
    )


def is_archive(path: Path) -> bool:
    """Return True if a file contains arrays with the names of inputs."""
    return path.suffix.lower() == ".npz"


def archived(
    path: Path, inputs: Sequence[SampledInput] | None, wrong: Callable[[str, str], OptionError]
) -> Iterator[Sample]:
    """Yield an archive as one sample, or as several along a leading dimension that `inputs` do not have.

    Raises the result of `wrong` if the archive cannot be read.
    """

    def unreadable(why: object) -> OptionError:
        return wrong(f"a file that cannot be read ({why})", "an .npz file with the names of inputs")

    try:
        with open_regular(path) as stream, library_errors(unreadable):
            archive = np.load(stream, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise unreadable("an array without the name of an input")
            arrays = {name: archive[name] for name in archive.files}
    except OSError as error:
        raise unreadable(error) from error
    ranks = {item.name: len(item.shapes[0]) for item in inputs or ()}
    stacked = [array for key, array in arrays.items() if array.ndim == ranks.get(key, array.ndim) + 1]
    if not arrays or len(stacked) < len(arrays) or len({len(array) for array in stacked}) > 1:
        yield Sample(path.name, arrays)
        return
    for number in range(len(stacked[0])):
        yield Sample(
            f"{path.name}, sample {number + 1}", {key: array[number] for key, array in arrays.items()}
        )


def read_list(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, files) of an input list; empty lines and comments are skipped.

    Raises OptionError if it is not a list of names, or is empty.
    """
    wrong = partial(_wrong, path)
    data = read_regular(path, _MOST_LIST_BYTES)
    if len(data) > _MOST_LIST_BYTES:
        raise wrong("", f"more than {_MOST_LIST_BYTES >> 20} MiB", "a list of file names")
    empty = True
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").splitlines(), start=1):
        try:
            line = raw.decode("utf-8").strip()
        except UnicodeDecodeError:
            raise wrong(f", line {number}", "bytes that are not UTF-8", "names of files") from None
        if not line or line.startswith("#"):
            continue
        names = [name.strip() for name in line.split(",")] if "," in line else line.split()
        if not all(names) or "\0" in line:
            raise wrong(f", line {number}", "an empty name", "names of files with commas between them")
        empty = False
        yield number, names
    if empty:
        raise wrong("", "no samples", "one line for each sample")


def fitted(option: str, sample: Sample, inputs: Sequence[SampledInput]) -> dict[str, NDArray[Any]]:
    """Check a sample against the inputs of the model, and return its arrays in the types of the program.

    Arrays are converted where numpy calls it ``same_kind`` and no integer is out of range. Raises OptionError
    with the sample if a name is unknown or missing, or an array has the wrong type or shape.
    """

    def wrong(found: str, expected: str) -> OptionError:
        return OptionError(
            f"{option}, {sample.place}: found {found}, expected {expected}",
            code="option.calibration_sample",
            context={"option": option, "sample": sample.place, "given": [*sample.arrays]},
        )

    by_name = {item.name: item for item in inputs}
    unknown = [name for name in sample.arrays if name not in by_name]
    missing = [item.name for item in inputs if item.name not in sample.arrays and not item.is_state]
    if unknown or missing:
        found = f"the unknown input {unknown[0]!r}" if unknown else f"no input {missing[0]!r}"
        raise wrong(found, f"the inputs {', '.join(repr(name) for name in by_name)}")
    given = [by_name[name] for name in sample.arrays]
    sets = range(len(inputs[0].shapes)) if inputs else range(1)
    if not any(all(sample.arrays[item.name].shape == item.shapes[at] for item in given) for at in sets):
        name, array = next(
            (
                (item.name, sample.arrays[item.name])
                for item in given
                if sample.arrays[item.name].shape not in item.shapes
            ),
            (given[0].name, sample.arrays[given[0].name]),
        )
        shapes = " or ".join(dict.fromkeys(str(list(shape)) for shape in by_name[name].shapes[:4]))
        others = ", with the other inputs of the same set of shapes" if len(sets) > 1 else ""
        raise wrong(f"input {name!r} of shape {list(array.shape)}", f"shape {shapes}{others}")
    return {item.name: _converted(item, sample.arrays[item.name], wrong) for item in given}


def _converted(
    item: SampledInput, array: NDArray[Any], wrong: Callable[[str, str], OptionError]
) -> NDArray[Any]:
    if array.dtype != item.dtype:
        integers = array.dtype.kind in "iu" and item.dtype.kind in "iu"
        if not integers and not np.can_cast(array.dtype, item.dtype, "same_kind"):
            raise wrong(f"input {item.name!r} of type {array.dtype}", f"type {item.dtype}")
        if integers and array.size:
            limits = np.iinfo(item.dtype)
            low, high = int(array.min()), int(array.max())
            if low < limits.min or high > limits.max:
                raise wrong(
                    f"input {item.name!r} with integers from {low} to {high}",
                    f"{limits.min} to {limits.max} of {item.dtype}",
                )
    with np.errstate(over="ignore"):
        return np.require(array, item.dtype, ["C", "A"])


#: more samples would only widen the ranges
RANDOM_SAMPLES: Final = 8
_SEED: Final = 0


class RandomSource:
    """Random data: floats uniform in [0, 1) or normal, integers small enough to be indices.

    `kind` is ``"uniform"`` or ``"gaussian"``, `limits` are exclusive upper limits of integer inputs
    (`index_limits`). The first set of shapes is used, and state is omitted.
    """

    option = "use_random_input_data"
    count = RANDOM_SAMPLES

    def __init__(self, inputs: Sequence[SampledInput], kind: str, limits: Mapping[str, int]) -> None:
        self._inputs = [item for item in inputs if not item.is_state]
        self._kind = kind
        self._limits = limits

    def samples(self) -> Iterator[Sample]:
        """Yield the samples, with the same numbers each time."""
        generator = np.random.default_rng(_SEED)
        for number in range(1, self.count + 1):
            arrays = {item.name: self._array(item, generator) for item in self._inputs}
            yield Sample(f"random sample {number}", arrays)

    def _array(self, item: SampledInput, generator: "np.random.Generator") -> NDArray[Any]:
        shape = item.shapes[0]
        if item.dtype.kind == "f":
            draw = generator.standard_normal if self._kind == "gaussian" else generator.random
            return draw(shape, np.float32).astype(item.dtype)
        # 0 and 1 are valid flags, masks and indices of almost any table.
        high = min(
            self._limits.get(item.name, 2), int(np.iinfo(item.dtype).max) if item.dtype.kind in "iu" else 2
        )
        return generator.integers(0, max(high, 1), shape, np.int64).astype(item.dtype)


#: samples for one calibration
SampleSource: TypeAlias = ObjectSource | FileSource | RandomSource


def index_limits(graph: onnx.GraphProto, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Find the limits of integer inputs from the sizes of the tables that they index.

    `shapes` have -1 for dims that differ between sets of shapes.
    """
    readers = usages(graph.node)
    limits: dict[str, int] = {}
    for value in graph.input:
        seen, pending = {value.name}, deque([value.name])
        found: list[int] = []
        while pending:
            for node, position in readers.get(pending.popleft(), []):
                if node.domain not in STANDARD_DOMAINS:
                    continue
                if node.op_type in {"Gather", "GatherElements"} and position == 1:
                    axis = attribute_of(node, "axis", 0)
                    table = shapes.get(node.input[0], ())
                    if -len(table) <= axis < len(table) and table[axis] > 0:
                        found.append(table[axis])
                elif node.op_type in _PASS_ON and position == 0:
                    pending.extend(name for name in node.output if name not in seen)
                    seen.update(node.output)
        if found:
            limits[value.name] = min(found)
    return limits


#: operators whose results hold the numbers of their first input
_PASS_ON: Final = frozenset(
    {"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Flatten", "Slice"}
)


#: size above that of any sample; the digest of such a file uses only its metadata, because its content may be
#: endless
_MOST_BYTES: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class SampleFiles:
    """The files of an input list."""

    #: digest of all contents, in the order of the list
    digest: str
    #: the list and its files, with their metadata; empty if the digest was stored
    files: Mapping[Path, os.stat_result] = field(default_factory=dict)

    def changed(self) -> Path | None:
        """Return a file that was modified after it was digested."""
        for file, found in self.files.items():
            try:
                now = file.stat()
            except OSError:
                return file
            if _facts(now) != _facts(found):
                return file
        return None


def digest_samples(path: Path, index: DigestIndex) -> SampleFiles:
    """Digest an input list and its files, with stored digests of unchanged files.

    An unreadable file also gets a digest; the reader of the samples then reports the error.
    """
    # Names in a list are relative to the current directory, so the two together name the files.
    place = path.absolute() / Path.cwd().relative_to("/")
    known = index.lookup(place)
    if known is not None:
        return SampleFiles(known)
    whole = hashlib.sha256()
    seen: dict[Path, tuple[os.stat_result, bytes]] = {}
    complete = True
    lines = () if is_archive(path) else read_list(path)
    listed = [name.split(":=", 1)[-1].strip() for _, names in lines for name in names]
    for file in (path, *map(Path, listed)):
        if file not in seen:
            read = _read(file)
            if read is None:
                complete = False
                whole.update(b"?")
                continue
            seen[file] = read
        whole.update(seen[file][1])
    digest = whole.hexdigest()
    files = {file: found for file, (found, _) in seen.items()}
    if complete:
        index.store(place, files, digest)
    return SampleFiles(digest, files)


def _facts(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns


def _read(file: Path) -> tuple[os.stat_result, bytes] | None:
    """Return the digest of one file; None if it cannot be read."""
    try:
        with open_regular(file) as stream:
            found = os.fstat(stream.fileno())
            if found.st_size > _MOST_BYTES:
                return found, repr(_facts(found)).encode()
            return found, hashlib.file_digest(stream, "sha256").digest()
    except (OSError, ValueError):
        return None
