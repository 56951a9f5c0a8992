"""Outputs of ``qaic-runner``: writes files, and compares outputs with expected ones."""

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qaic.cli.console import print_line
from qaic.cli.qpc.facts import facts
from qaic.cli.runner.command_line import RunRequest
from qaic.cli.runner.network import Binding, Network, Request, check_count, file_bytes
from qaic.errors import InputError
from qaic.options.rows.runner import RunnerOptions
from qaic.qpc import Qpc
from qaic.rt import BufferDataTypeEnum
from qaic.support.atomic_io import write_replacing
from qaic.support.program_names import safe_name
from qaic.support.text import escape_unprintable

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: raw data of the inputs or outputs of one inference, in their order
Buffers = Sequence[NDArray[np.uint8]]

_MOST_MAPS = 256


def written_range(options: RunnerOptions) -> tuple[int, int]:
    """Return the first inference whose outputs are written, and the number of such inferences."""
    return options.write_output_start_iter or 0, options.write_output_num_samples or 1


class Writer:
    """Writes the buffers of some inferences as ``<binding>-activation-<a>-inf-<i>.bin``.

    Raises InputError if two bindings need the same file, and OSError if the folder cannot be created.
    """

    def __init__(self, request: RunRequest, network: Network) -> None:
        options = request.options
        self._folder = writable_folder(options.write_output_dir or Path())
        self._first, samples = written_range(options)
        self._last = self._first + samples - 1
        self._outputs = request.writes
        self._inputs = options.dump_input_buffers
        bindings = [*(network.inputs if self._inputs else []), *(network.outputs if self._outputs else [])]
        names: dict[str, str] = {}
        for binding in bindings:
            stem = safe_name(binding.name)
            if stem in names:
                raise InputError(
                    f"{names[stem]!r} and {binding.name!r} would be written to the same file {stem}-...bin",
                    code="runner.same_file",
                )
            names[stem] = binding.name

    def wants_outputs(self, iteration: int) -> bool:
        """Return True if the outputs of an inference are written, including the device statistics."""
        return self._outputs and self.wants(iteration)

    def wants(self, iteration: int) -> bool:
        """Return True if the buffers of an inference are written."""
        return self._first <= iteration <= self._last

    def write(
        self, activation: int, iteration: int, request: Request, inputs: Buffers, outputs: Buffers
    ) -> None:
        """Write the inputs and outputs of an inference. Blocking."""
        read = zip(request.inputs, inputs, strict=True) if self._inputs else ()
        written = zip(request.outputs, outputs, strict=True) if self._outputs else ()
        for part, array in chain(read, written):
            if not part.skipped:
                name = f"{safe_name(part.binding.name)}-activation-{activation}-inf-{iteration}.bin"
                replace_content(self._folder / name, array.data)


class Tolerance(NamedTuple):
    """Allowed difference of floating-point outputs from expected ones: ``atol + rtol * abs(expected)``."""

    relative: float
    absolute: float

    @classmethod
    def of(cls, options: RunnerOptions) -> "Tolerance | None":
        """Return the tolerance of the options; None if bytes are compared."""
        if options.rtol is None and options.atol is None:
            return None
        return cls(options.rtol or 0.0, options.atol or 0.0)


#: floating-point formats; bfloat16 is the upper half of a float32
_FLOATS: Final[dict[int, np.dtype[Any]]] = {
    int(BufferDataTypeEnum.BUFFER_DATA_TYPE_FLOAT): np.dtype(np.float32),
    int(BufferDataTypeEnum.BUFFER_DATA_TYPE_FLOAT16): np.dtype(np.float16),
    int(BufferDataTypeEnum.BUFFER_DATA_TYPE_BFLOAT16): np.dtype(np.uint16),
}


def _floats(content: NDArray[np.uint8], data_type: int) -> NDArray[np.float32]:
    # The content may be unaligned; a copy is aligned.
    stored: NDArray[Any] = np.frombuffer(content.tobytes(), dtype=_FLOATS[data_type])
    floats: NDArray[np.float32] = (
        (stored.astype(np.uint32) << 16).view(np.float32)
        if stored.dtype == np.uint16
        else stored.astype(np.float32)
    )
    return floats


class Comparer:
    """Compares every inference with expected outputs, byte by byte or within a tolerance.

    A difference does not end the run, because users of cards pass placeholders and need only the profile.

    `files` are the expected outputs of all inferences, in the order of the outputs; ``None`` if the requests
    name them. `tolerance` applies to floating-point outputs; None compares bytes. Raises InputError if the
    number or the size of the files is wrong.
    """

    def __init__(self, network: Network, files: Sequence[Path], tolerance: Tolerance | None) -> None:
        self._tolerance = tolerance
        # Device statistics differ in each inference.
        outputs = [binding for binding in network.outputs if not binding.is_statistics]
        self._files: dict[int, Path] = {}
        if files:
            if len(files) == len(network.outputs):
                outputs = network.outputs
            check_count(outputs, len(files), "-o", "output")
            for binding, path in zip(outputs, files, strict=True):
                if binding.is_statistics:
                    continue
                nbytes, sizes = file_bytes(path), binding.sizes
                if nbytes not in sizes and not (binding.partial and nbytes < binding.nbytes):
                    raise InputError(
                        f"-o {path} has {nbytes} bytes; {binding.name!r} has {' or '.join(map(str, sizes))}",
                        code="runner.file_size",
                    )
                self._files[binding.position] = path
        self._contents: dict[Path, NDArray[np.uint8]] = {}
        # For each output: number of inferences in which it differs, first such inference, and difference.
        self._differing: dict[str, tuple[int, int, str]] = {}

    def check(self, iteration: int, request: Request, outputs: Buffers) -> None:
        """Compare the outputs of one inference, and store the differences for `report`."""
        for part, array in zip(request.outputs, outputs, strict=True):
            path = part.paths[0] if part.paths else self._files.get(part.binding.position)
            if path is None or part.skipped:
                continue
            expected = self._expected(path)
            if len(expected) == len(array) and np.array_equal(expected, array):
                continue
            name = part.binding.name
            count, first, text = self._differing.get(name, (0, iteration, ""))
            if self._tolerance is None and count and first < iteration:
                # Bytes that differ are a difference, and the text of the earlier inference is reported.
                self._differing[name] = (count + 1, first, text)
                continue
            difference = self._difference(part.binding, expected, array)
            if difference is not None:
                # Inferences end in any order; the lowest number is reported.
                if not count or iteration < first:
                    first, text = iteration, f"differs from {path}: {difference}"
                self._differing[name] = (count + 1, first, text)

    def report(self, inferences: int) -> list[str]:
        """Return a line for each output that differed: the number of inferences and the first difference."""
        return [
            f"output {name!r} differs in {count} of {inferences} inferences; inference {first}: "
            f"output {name!r} {text}"
            for name, (count, first, text) in self._differing.items()
        ]

    def _difference(
        self, binding: Binding, expected: NDArray[np.uint8], found: NDArray[np.uint8]
    ) -> str | None:
        """Return a text about the difference of two outputs; None if it is within the tolerance."""
        if binding.data_type not in _FLOATS or len(expected) != len(found):
            return _difference(expected, found)
        wanted, given = (_floats(content, binding.data_type) for content in (expected, found))
        relative, absolute = self._tolerance or (0.0, 0.0)
        # The difference of two large numbers may be infinite.
        with np.errstate(over="ignore"):
            beyond = ~np.isclose(given, wanted, rtol=relative, atol=absolute, equal_nan=True)
        if not beyond.any():
            # Zeros of different sign and other bits of NaN are equal numbers.
            return None if self._tolerance else _difference(expected, found)
        with np.errstate(invalid="ignore", over="ignore"):
            off = np.where(beyond, np.abs(given - wanted), -1.0)
        # NaN counts as the largest difference.
        place = int(np.argmax(off))
        return (
            f"{np.count_nonzero(beyond)} of {len(given)} elements; the largest error is {off[place]:.3g}, at "
            f"{place}: found {given[place]!s}, expected {wanted[place]!s}"
        )

    def _expected(self, path: Path) -> NDArray[np.uint8]:
        # The files are mapped, so their pages are reclaimable. The number of maps of a process is limited.
        if path not in self._contents:
            if len(self._contents) >= _MOST_MAPS:
                self._contents.clear()
            self._contents[path] = (
                np.memmap(path, np.uint8, "r") if file_bytes(path) else np.empty(0, np.uint8)
            )
        return self._contents[path]


def _difference(expected: NDArray[np.uint8], found: NDArray[np.uint8]) -> str:
    if len(expected) != len(found):
        return f"{len(found)} bytes, {len(expected)} expected"
    places = np.flatnonzero(expected != found)
    first = int(places[0])
    return (
        f"{len(places)} of {len(found)} bytes, the first at {first}: "
        f"0x{found[first]:02x}, 0x{expected[first]:02x} expected"
    )


def require_plain_transfers(container: Path) -> None:
    """Refuse a program whose buffers on the device differ from its inputs and outputs.

    Raises InputError, which lists the conversions, if there are any.
    """
    described = facts(Qpc(container))
    if described["kind"] != "program":
        reasons = ["it contains one container per device"]
    else:
        bindings = [*described["inputs"], *described["outputs"]]
        reasons = list(_reasons(bindings))
    if reasons:
        raise InputError(
            f"-p off: the buffers of this program on the device are not its inputs and outputs: "
            f"{'; '.join(reasons)}",
            code="runner.raw_buffers",
            hints=("-p on reads and writes the inputs and outputs of the program",),
        )


def _reasons(bindings: list[dict[str, Any]]) -> Iterator[str]:
    users = Counter(binding["dma"]["buffer"] for binding in bindings if binding["dma"] is not None)
    for binding in bindings:
        name = escape_unprintable(repr(binding["name"]))
        kinds = [stage["kind"] for stage in binding["stages"] if stage["kind"] != "copy"]
        if kinds:
            yield f"{name} has {', '.join(kinds)}"
        elif binding["dma"] is None:
            yield f"{name} has no device buffer"
        elif users[binding["dma"]["buffer"]] > 1:
            yield f"{name} shares device buffer {binding['dma']['buffer']}"


def writable_folder(folder: Path) -> Path:
    """Create a folder if it does not exist; its parent must exist.

    Raises OSError if the folder cannot be created or is not writable.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    if not folder.is_dir():
        raise NotADirectoryError(20, "Not a directory", str(folder))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(13, "Permission denied", str(folder))
    return folder


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file atomically, and print the vendor's lines about it. Blocking.

    `path` is the destination. `write` receives the path to write to.
    """
    if path.exists():
        print_line(f"Deleting previous file: {path}")
    print_line(f"Writing file:{path}")
    write_replacing(path, write)


def replace_content(path: Path, content: "Buffer") -> None:
    """Write bytes to a file as :func:`replace` does."""
    replace(path, lambda unfinished: unfinished.write_bytes(content))
