"""Facts about a program for ``qaic-runner``: bindings, shapes, and outputs that stay on the device."""

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qaic import rt
from qaic.errors import InputError
from qaic.runtime.shapes import default_shapes
from qaic.support.program_names import RETAINED_STATE_SUFFIX, STATS_OUTPUT
from qaic.support.text import counted

_RAW: Final = "files contain raw bytes, which array.tofile(path) of numpy writes"
_SEVERAL: Final = (
    "--aic-batch-input-file-list FILE runs several inferences: each line of FILE has the files of one "
    "inference, separated by commas"
)
#: shape of a buffer without transfer
SKIPPED = (0,)


class Binding(NamedTuple):
    """One input or output of a program.

    ``position`` counts inputs first, then outputs. ``allowed`` has the shape of this binding in each
    permitted combination; it is empty when there is only one.
    """

    name: str
    position: int
    nbytes: int
    partial: bool
    data_type: int
    dims: tuple[int, ...]
    allowed: tuple[tuple[int, ...], ...]

    @property
    def is_statistics(self) -> bool:
        """True for a buffer of device measurements, which is no output of the model."""
        return self.name == STATS_OUTPUT or self.name.startswith(f"{STATS_OUTPUT}_")

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return self.nbytes // max(1, prod(self.dims)) or 1

    def accepts(self, nbytes: int) -> bool:
        """Return True if a buffer may have this size."""
        return nbytes == self.nbytes or (nbytes < self.nbytes and bool(self.partial or self.allowed))

    @property
    def sizes(self) -> list[int]:
        """Bytes of the buffer in each allowed shape, in ascending order."""
        return sorted({prod(dims) * self.item_bytes for dims in self.allowed or (self.dims,)})

    def dims_for(self, nbytes: int, where: str) -> tuple[int, ...]:
        """Return the shape of a buffer of this size. Raises InputError if no shape has this size."""
        shapes = dict.fromkeys(self.allowed or (self.dims,))
        fitting = [dims for dims in shapes if prod(dims) * self.item_bytes == nbytes]
        if len(fitting) == 1:
            return fitting[0]
        rows = nbytes * self.dims[0] // self.nbytes if self.dims and self.nbytes else 0
        if self.partial and nbytes < self.nbytes and rows and rows * self.nbytes == nbytes * self.dims[0]:
            return (rows, *self.dims[1:])
        if fitting:
            raise InputError(
                f"{where} has {nbytes} bytes, the size of several shapes of {self.name!r}: "
                f"{', '.join(str(list(dims)) for dims in fitting)}",
                code="runner.file_size",
                hints=('"dims" in the file of --aic-batch-json-input selects a shape',),
            )
        smaller = " or less" if self.partial else ""
        raise InputError(
            f"{where} has {nbytes} bytes; {self.name!r} takes {' or '.join(map(str, self.sizes))}{smaller}",
            code="runner.file_size",
            hints=(_RAW,) if where.endswith((".npy", ".npz")) else (),
        )


class Network:
    """A program's bindings.

    `inputs` and `outputs` are the bindings in order. `batch` is the largest batch size of the program.
    """

    def __init__(self, inputs: Sequence[Binding], outputs: Sequence[Binding], batch: int) -> None:
        self.inputs = list(inputs)
        self.outputs = list(outputs)
        self.batch = max(1, batch)
        by_name = {output.name: output for output in outputs}
        shaped = [binding for binding in (*inputs, *outputs) if binding.allowed]
        positions = [binding.position for binding in shaped]
        #: shapes that the program accepts together, by position; empty if there is only one combination
        self._combinations = [
            dict(zip(positions, shapes, strict=True))
            for shapes in zip(*(binding.allowed for binding in shaped), strict=False)
        ]
        self._default = default_shapes(
            {binding.position: binding.dims for binding in shaped}, self._combinations
        )
        self._state = {
            binding.name: by_name[binding.name + RETAINED_STATE_SUFFIX]
            for binding in inputs
            if binding.name + RETAINED_STATE_SUFFIX in by_name
        }

    @classmethod
    def of(cls, qpc: rt.Qpc) -> "Network":
        """Read the bindings of a container."""
        sides: tuple[list[Binding], list[Binding]] = ([], [])
        for mapping in qpc.getBufferMappingsV2():
            is_input = mapping.ioType == rt.BufferIoTypeEnum.BUFFER_IO_TYPE_INPUT
            sides[0 if is_input else 1].append(
                Binding(
                    mapping.bufferName,
                    mapping.index,
                    mapping.size,
                    mapping.isPartialBufferAllowed,
                    int(mapping.dataType),
                    tuple(mapping.defaultDimensions),
                    tuple(tuple(dims) for dims in mapping.allowedDimensions),
                )
            )
        return cls(*sides, qpc.getInfo().program[0].batchSize)

    def shapes_with(self, parts: Sequence["Part"]) -> dict[int, tuple[int, ...]]:
        """Return the shapes of the combination of these buffers, for the bindings that have several.

        Without buffers, and for buffers that no combination has, these are the default shapes.
        """
        shaped = [part for part in parts if part.binding.allowed and not part.skipped]
        if not shaped:
            return self._default
        for shapes in self._combinations:
            if all(part.dims == shapes[part.binding.position] for part in shaped):
                return shapes
        return self._default

    def shapes_of_sizes(self, sizes: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Return the shapes of the only combination whose inputs have these bytes; empty if there is none."""
        fitting = [
            shapes
            for shapes in self._combinations
            if all(
                binding.position not in shapes or prod(shapes[binding.position]) * binding.item_bytes == size
                for binding, size in zip(self.inputs, sizes, strict=True)
            )
        ]
        return fitting[0] if len(fitting) == 1 else {}

    def keeps(self, binding: Binding) -> bool:
        """Return True if the device keeps a value for this input, or keeps this output for an input."""
        return binding.name in self._state or any(
            output.position == binding.position for output in self._state.values()
        )


class Part(NamedTuple):
    """A buffer of an inference.

    ``paths`` are the files of an input, in order, or the file with which an output is compared.
    ``data`` replaces the files.
    """

    binding: Binding
    dims: tuple[int, ...]
    paths: tuple[Path, ...] = ()
    data: NDArray[np.uint8] | None = None

    @property
    def skipped(self) -> bool:
        """True if no data is transferred."""
        return 0 in self.dims

    @property
    def nbytes(self) -> int:
        """Size of the buffer."""
        return prod(self.dims) * self.binding.item_bytes

    def read(self) -> NDArray[np.uint8]:
        """Return the bytes of the buffer. Blocking.

        Raises InputError if the size of a file has changed since the run was planned.
        """
        if self.data is not None:
            return self.data
        pieces = [np.fromfile(path, np.uint8) for path in self.paths]
        whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        if len(whole) != self.nbytes:
            names = ", ".join(map(str, self.paths))
            raise InputError(
                f"{names}: read {len(whole)} bytes, expected {self.nbytes} as at the start of the run",
                code="runner.file_changed",
            )
        return whole


class Request(NamedTuple):
    """An inference: all inputs and all outputs, in the order of their bindings."""

    inputs: list[Part]
    outputs: list[Part]

    def samples(self, network: Network) -> int:
        """Return the number of samples, which is the first dimension of an input with the batch in it."""
        rows = (
            part.dims[0]
            for part in self.inputs
            if not part.skipped and part.binding.dims and part.binding.dims[0] == network.batch
        )
        return next(rows, network.batch)

    @property
    def input_bytes(self) -> int:
        """Number of bytes of its inputs in memory."""
        return sum(part.nbytes for part in self.inputs if not part.skipped)

    def with_statistics(self) -> "Request":
        """Return the same inference, with the statistics of the device among its outputs."""
        parts = [
            part._replace(dims=part.binding.dims) if part.binding.is_statistics else part
            for part in self.outputs
        ]
        return self if parts == self.outputs else self._replace(outputs=parts)

    @property
    def dims(self) -> list[tuple[int, Sequence[int]]]:
        """Element size and shape of each binding."""
        return [(part.binding.item_bytes, part.dims) for part in (*self.inputs, *self.outputs)]


def file_bytes(path: Path) -> int:
    """Return the size of a file. Raises IsADirectoryError for a folder."""
    if path.is_dir():
        raise IsADirectoryError(21, "Is a directory", str(path))
    return path.stat().st_size


def with_plain_outputs(network: Network, inputs: list[Part]) -> Request:
    """Return an inference with all outputs, in matching shapes, without statistics, which take time."""
    shapes = network.shapes_with(inputs)
    outputs = [
        Part(binding, SKIPPED if binding.is_statistics else shapes.get(binding.position, binding.dims))
        for binding in network.outputs
    ]
    return Request(inputs, outputs)


def from_files(network: Network, files: Sequence[Path], where: str) -> Request:
    """Return an inference whose inputs are raw files, in the order of the inputs.

    Raises InputError if the number or the size of the files is wrong.
    """
    check_count(network.inputs, len(files), where)
    sizes = [file_bytes(path) for path in files]
    shapes = network.shapes_of_sizes(sizes)
    inputs = [
        Part(binding, shapes.get(binding.position) or binding.dims_for(size, str(path)), (path,))
        for binding, path, size in zip(network.inputs, files, sizes, strict=True)
    ]
    return with_plain_outputs(network, inputs)


def from_batch_of_files(network: Network, rows: Sequence[Sequence[Path]], where: str) -> Request:
    """Return an inference whose inputs are joined from files of batch 1.

    Raises InputError if the number or the size of the files is wrong.
    """
    inputs = []
    for row in rows:
        check_count(network.inputs, len(row), where)
    for binding, *files in zip(network.inputs, *rows, strict=True):
        full = [dims for dims in binding.allowed if dims[:1] == (network.batch,)] or [binding.dims]
        of_one = {prod(dims) * binding.item_bytes // network.batch: dims for dims in full}
        one = min(of_one, key=lambda nbytes: nbytes != file_bytes(files[0]))
        for path in files:
            if (found := file_bytes(path)) != one:
                raise InputError(
                    f"{path} has {found} bytes; {binding.name!r} needs {one} for one sample of a batch of "
                    f"{network.batch}",
                    code="runner.file_size",
                )
        inputs.append(Part(binding, of_one[one], tuple(files)))
    return with_plain_outputs(network, inputs)


def check_count(bindings: Sequence[Binding], given: int, where: str, kind: str = "input") -> None:
    """Refuse too many or too few files for the inputs or outputs (`kind`) of one inference.

    Raises InputError with their names and sizes, in order.
    """
    if given == len(bindings):
        return
    names = ", ".join(f"{binding.name!r} ({binding.nbytes} bytes)" for binding in bindings) or "none"
    is_several = where == "-i" and given > len(bindings)
    raise InputError(
        f"{where}: found {counted(given, 'file')}, expected one for each {kind} of the program: {names}",
        code="runner.file_count",
        hints=(_SEVERAL,) if is_several else (),
    )


def of_data(network: Network, arrays: Sequence[NDArray[Any]]) -> Request:
    """Return an inference with the default shapes, whose inputs are the first of these bytes."""
    shapes = network.shapes_with(())
    parts = [Part(binding, shapes.get(binding.position, binding.dims)) for binding in network.inputs]
    inputs = [part._replace(data=array[: part.nbytes]) for part, array in zip(parts, arrays, strict=True)]
    return with_plain_outputs(network, inputs)


def resolve(path: str, folder: Path) -> Path:
    """Return a path from a file: absolute, or relative to the folder of the file."""
    return folder / Path(path)
