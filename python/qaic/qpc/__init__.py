"""``qaic.Qpc``: the content of a program container, as read-only views and plain values.

Payloads, constants and initializers are numpy views of the mapped file, without a copy; each view keeps the
file mapped. Content is decoded at the first access, so opening takes the same time at any size.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from qaic import _core
from qaic.errors import QpcError, QpcFormatError, StateError
from qaic.model_path import QPC_MAGIC, find_model
from qaic.qpc.initializers import CONSTANTS, Initializers, bad_plan, check_records
from qaic.qpc.records import (
    EMPTY,
    BufferMapping,
    Constants,
    ConstantsInfo,
    DataType,
    Finding,
    Header,
    IoType,
    Metadata,
    ProgramInfo,
    Segment,
    TensorSpec,
    bytes_array,
)
from qaic.support.atomic_io import replace_bytes
from qaic.support.program_names import GRAPH_SECTION, PLAN_SECTION, QPC_FILE_NAME, free_name
from qaic.support.text import counted

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from qaic.compiler.diagnostics.messages import Diagnostic
else:
    Buffer = bytes | bytearray | memoryview
    # Importing the compiler takes longer than opening a container.
    Diagnostic = Any

__all__ = [
    "BufferMapping",
    "Constants",
    "ConstantsInfo",
    "DataType",
    "Finding",
    "Header",
    "IoType",
    "Metadata",
    "ProgramInfo",
    "Qpc",
    "Segment",
    "Slices",
    "TensorSpec",
    "validate",
]


#: size of the header, which holds the size of the container in bytes 8 to 16
_HEADER_BYTES: Final = 40
#: bytes read from a pipe at a time
_PIECE_BYTES: Final = 1 << 20


class Slices(Mapping[str, "Qpc"]):
    """Segment name -> the container in the segment, one per device."""

    def __init__(self, container: _core.Qpc, names: Sequence[str]) -> None:
        self._container = container
        self._opened: dict[str, Qpc | None] = dict.fromkeys(names)

    def __getitem__(self, name: str) -> Qpc:
        opened = self._opened[name]
        if opened is None:
            inner = self._container.inner(name)
            if inner is None:
                raise KeyError(name)
            opened = self._opened[name] = Qpc(inner)
        return opened

    def __contains__(self, name: object) -> bool:
        # A damaged container is in the mapping; opening it raises the error.
        return name in self._opened

    def __iter__(self) -> Iterator[str]:
        return iter(self._opened)

    def __len__(self) -> int:
        return len(self._opened)

    def __repr__(self) -> str:
        return f"<slices {', '.join(self)}>"


class Qpc:
    """A program container, opened for inspection.

    Parameters
    ----------
    source
        A container file, a directory that contains ``programqpc.bin``, a glob that matches one of these, the
        bytes of a container (which are copied), or another ``Qpc``.
    mmap
        Map files of 1 MiB and more instead of reading them. A mapped file must not be truncated while views
        of it are in use; ``False`` avoids that.

    Attributes
    ----------
    diagnostics
        Messages of the compiler in the container: a tuple of objects with ``severity``, ``code``,
        ``message`` and ``nodes``. The result of :func:`qaic.compile` also has messages about the given
        options.

    Raises
    ------
    FileNotFoundError
        The path does not exist.
    qaic.errors.QpcError
        The container is malformed. :func:`validate` lists all defects.

    Examples
    --------
    >>> import qaic
    >>> qpc = qaic.Qpc(qaic.compile("model.onnx"))
    >>> print(*qpc.inputs)
    x float32[1, 16]
    >>> qpc.initializers["dense.weight"].shape
    (16, 16)
    >>> qaic.Session(qpc.save("copy.qpc")).run(x=[[0.0] * 16])["y"].shape
    (1, 16)
    """

    def __init__(
        self, source: str | os.PathLike[str] | Buffer | Qpc | _core.Qpc, *, mmap: bool = True
    ) -> None:
        self._mmap = mmap
        if isinstance(source, _core.Qpc):
            self._core = source
        elif isinstance(source, Qpc):
            self._core = source._core  # noqa: SLF001 (the same class)
            self.diagnostics = source.diagnostics
        elif isinstance(source, str | os.PathLike):
            self._core = _open_path(Path(os.fspath(source)), mmap=mmap)
        else:
            self._core = _core.Qpc(memoryview(source), mmap)

    def __repr__(self) -> str:
        where = f"{str(self.path)!r}, " if self.path else ""
        size = self.header["size"]
        if not self.is_program:
            return f"<Qpc {where}{counted(len(self.slices), 'slice')}, {size} bytes>"
        try:
            target = self.target
        except QpcError:
            target = "unreadable"
        network = self.network_descriptor
        inputs, outputs = (len(network.get(key, ())) for key in ("inputs", "outputs"))
        return (
            f"<Qpc {where}{target} program {network.get('network_name', '')!r}: {inputs} in, {outputs} out, "
            f"{counted(self._core.num_cores, 'core')}, {size} bytes>"
        )

    def _repr_html_(self) -> str:
        from qaic.report import Table, columns_of

        if not self.is_program:
            sizes = [(name, self.segments[name].size) for name in self.slices]
            return Table("slices", repr(self), columns_of("slice | size:bytes"), sizes)._repr_html_()
        tensors = [("input", spec) for spec in self.inputs] + [("output", spec) for spec in self.outputs]
        rows = [(side, spec.name, str(spec.shape), str(spec.dtype)) for side, spec in tensors]
        columns = columns_of("direction | name | shape | dtype")
        return Table("tensors", repr(self), columns, rows)._repr_html_()

    def __fspath__(self) -> str:
        """Return the path of the file, so that a container can be used as a path.

        Raises
        ------
        qaic.errors.StateError
            The container came from bytes, or is a slice of another container.
        """
        if self.path is None:
            raise StateError(
                "the container has no file: it was read from bytes or is part of another container",
                code="qpc.no_file",
                hints=("save(path) writes a file",),
            )
        return str(self.path)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the path, or the bytes if there is no file."""
        source = self.content.tobytes() if self.path is None else self.path.absolute()
        return (_reopened, (source, self._mmap, self.diagnostics))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the container to a file. Blocks while every byte is written.

        Parameters
        ----------
        path
            File, or an existing folder for ``programqpc.bin``. The file is written atomically.

        Returns
        -------
        pathlib.Path
            The file.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        target = Path(path)
        if target.is_dir():
            target = target / QPC_FILE_NAME
        replace_bytes(target, self._core.content())
        return target

    # --- the container --------------------------------------------------------------------------------------

    @property
    def compiled(self) -> _core.Qpc:
        """The object of the compiled module, for other parts of this package."""
        return self._core

    @property
    def path(self) -> Path | None:
        """The file of the container; ``None`` if it was opened from bytes."""
        path = self._core.path
        return None if path is None else Path(path)

    @property
    def content(self) -> NDArray[np.uint8]:
        """Read-only view of the whole container."""
        return bytes_array(self._core.content())

    @property
    def header(self) -> Header:
        """Header fields, as attributes or by key; ``images`` is the position of the segment table."""
        return Header(self._core.header)

    @property
    def is_program(self) -> bool:
        """True if the container contains a program; otherwise :attr:`slices` contains its containers."""
        return self._core.is_program

    @property
    def warnings(self) -> tuple[str, ...]:
        """Irregularities of the container that are not errors."""
        return tuple(self._core.warnings)

    @cached_property
    def segments(self) -> Mapping[str, Segment]:
        """Segments by name, in the order of the segment table."""
        return MappingProxyType({entry[0]: Segment(*entry, self._core) for entry in self._core.segments})

    @cached_property
    def slices(self) -> Mapping[str, Qpc]:
        """Containers by segment name, opened at the first access; empty for a program."""
        if self.is_program:
            return MappingProxyType({})
        magic = QPC_MAGIC
        names = [s.name for s in self.segments.values() if s.data[: len(magic)].tobytes() == magic]
        return Slices(self._core, names)

    def validate(self) -> list[Finding]:
        """Verify the whole container, including CRCs. Blocks while every byte is read."""
        return [Finding(*finding) for finding in self._core.validate()]

    def extract(
        self, directory: str | os.PathLike[str], pattern: str = "*", *, force: bool = False
    ) -> list[Path]:
        """Write payloads to files, and their decoded content to folders ``<segment>_dir``.

        Parameters
        ----------
        directory
            Output folder, created if missing. Nothing is written outside of it, whatever the names of
            segments.
        pattern
            Glob for the paths under ``directory``, such as ``"*networkdesc.json"``. ``*`` also matches
            slashes.
        force
            Overwrite existing files.

        Returns
        -------
        list of Path
            The files, which are written atomically.

        Raises
        ------
        FileExistsError
            A file exists and ``force`` is false; nothing was written.

        Warns
        -----
        UserWarning
            A damaged part could not be decoded.
        """
        from qaic.qpc import extract

        return extract.write(_contents(self), Path(directory), pattern, force=force)

    # --- the program ----------------------------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Name, shape and dtype of each input that :class:`qaic.Session` takes, in order."""
        return _tensor_specs(self._core.tensors()[0])

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Name, shape and dtype of each output, in order."""
        return _tensor_specs(self._core.tensors()[1])

    @cached_property
    def program_info(self) -> ProgramInfo:
        """Name, cores, memory and buffers of the program."""
        info = json.loads(self._core.program_info_json())
        program = info["programs"][0]
        return ProgramInfo(
            name=program["name"],
            program_index=program["programIndex"],
            num_cores=program["numCores"],
            size=program["size"],
            batch_size=program["batchSize"],
            num_semaphores=program["numSemaphores"],
            num_mc_id=program["numMcId"],
            total_required_memory=program["totalRequiredMemory"],
            stats_available=program["statsAvailable"],
            buffer_mappings=tuple(map(_mapping, program["bufferMappings"])),
            buffer_mappings_dma=tuple(map(_mapping, program["bufferMappingsDma"])),
            constants=tuple(
                ConstantsInfo(entry["name"], entry["index"], entry["size"]) for entry in info["constants"]
            ),
        )

    @property
    def buffer_mappings(self) -> tuple[BufferMapping, ...]:
        """The caller's buffers: inputs, then outputs."""
        return self.program_info.buffer_mappings

    @property
    def buffer_mappings_dma(self) -> tuple[BufferMapping, ...]:
        """The DMA buffers."""
        return self.program_info.buffer_mappings_dma

    @cached_property
    def network_descriptor(self) -> dict[str, Any]:
        """``networkdesc.bin`` with the field names of the format, without zero values."""
        return _decode(self._core.network_desc_json())

    @cached_property
    def io_desc(self) -> dict[str, Any]:
        """``IoDesc`` with the field names of the format, without zero values."""
        return _decode(self._core.io_desc_json())

    @property
    def io_desc_bytes(self) -> bytes:
        """``IoDesc`` as a serialized message."""
        return self._core.io_desc()

    @cached_property
    def constants(self) -> Constants:
        """Constants descriptor and the two parts of ``constants.bin``."""
        decoded = _decode(self._core.constants_json())
        split = decoded["static_size"]
        if split is None:
            return Constants(decoded["descriptor"], None, None)
        payload = self.segments[CONSTANTS].data
        return Constants(decoded["descriptor"], payload[:split], payload[split:])

    @cached_property
    def metadata(self) -> Metadata | None:
        """Metadata: ``section`` (of the ELF), ``section_size``, ``encoding``, ``fields``; or ``None``."""
        text = self._core.metadata_json()
        return None if text is None else Metadata(_decode(text))

    # --- records of our compiler -------------------------------------------------------------------------

    @cached_property
    def diagnostics(self) -> tuple[Diagnostic, ...]:  # noqa: D102  # described with the class
        from qaic.compiler.diagnostics import messages

        return messages.read(self._core)

    @cached_property
    def plan(self) -> dict[str, Any] | None:
        """Decisions of the compiler; ``None`` for a container compiled for a card."""
        section = self._core.elf_section(PLAN_SECTION)
        if section is None:
            return None
        try:
            plan = json.loads(bytes_array(section).tobytes(), parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise bad_plan(f"section {PLAN_SECTION} is not JSON: {error}") from error
        if not isinstance(plan, dict):
            raise bad_plan(f"section {PLAN_SECTION} has type {type(plan).__name__}, an object is expected")
        return plan

    @property
    def target(self) -> str:
        """The target of the compilation: ``"cpu"`` or ``"card"``."""
        plan = self.plan
        return "card" if plan is None else str(plan.get("target", "cpu"))

    @property
    def options(self) -> dict[str, Any]:
        """Compile options that were set; empty if they were not recorded."""
        options = (self.plan or {}).get("options", {})
        if not isinstance(options, dict):
            raise bad_plan(f"options have type {type(options).__name__}, an object is expected")
        return options

    @property
    def graph(self) -> NDArray[np.uint8] | None:
        """View of the ONNX model, without its large initializers; ``None`` for a card."""
        section = self._core.elf_section(GRAPH_SECTION)
        return None if section is None else bytes_array(section)

    @cached_property
    def initializers(self) -> Initializers:
        """Name -> read-only array of the weights in ``constants.bin``; empty when the plan lists none."""
        records = check_records((self.plan or {}).get("initializers", []))
        segment = self.segments.get(CONSTANTS)
        return Initializers(records, EMPTY if segment is None else segment.data)


def validate(source: str | os.PathLike[str] | Buffer) -> list[Finding]:
    """Verify a container, even one that does not open. Blocks while every byte is read.

    Parameters
    ----------
    source
        As for :class:`Qpc`.
    """
    if isinstance(source, str | os.PathLike):
        source = _with_end(_resolve(Path(os.fspath(source))))
    return [Finding(*finding) for finding in _core.validate_container(source)]


#: segment -> file in its folder -> what the file contains
_DECODED: Final[dict[str, dict[str, Callable[[Qpc], object]]]] = {
    "networkdesc.bin": {
        "networkdesc.json": lambda qpc: qpc.network_descriptor,
        "iodesc.json": lambda qpc: qpc.io_desc,
    },
    "constantsdesc.bin": {"constantsdesc.json": lambda qpc: qpc.constants.descriptor},
    "network.elf": {
        "metadata.json": lambda qpc: qpc.metadata,
        "plan.json": lambda qpc: qpc.plan,
        "graph.onnx": lambda qpc: qpc.graph,
    },
}


def _contents(qpc: Qpc, folder: str = "") -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the path of each file that a container is extracted to, and a function that reads its content."""
    from qaic.qpc import extract

    names = extract.file_names(qpc.segments)
    taken = set(names.values())
    for name, segment in qpc.segments.items():
        yield folder + names[name], partial(getattr, segment, "data")
        decoded = _DECODED.get(name, {}) if qpc.is_program else {}
        if not decoded and name not in qpc.slices:
            continue
        inside = folder + free_name(names[name] + "_dir", taken) + "/"
        yield from ((inside + file, partial(decode, qpc)) for file, decode in decoded.items())
        if name in qpc.slices:
            try:
                inner = qpc.slices[name]
            except QpcError as error:
                extract.warn_left_out(inside, error)
            else:
                yield from _contents(inner, inside)


def _reopened(source: Path | bytes, mmap: bool, diagnostics: tuple[Diagnostic, ...]) -> Qpc:  # noqa: FBT001
    qpc = Qpc(source, mmap=mmap)
    qpc.diagnostics = diagnostics
    return qpc


def _tensor_specs(tensors: Sequence[_core.Tensor]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(one.name, one.shape, np.dtype(one.dtype)) for one in tensors if one.visible)


def _resolve(path: Path) -> Path:
    """Find the file of a path; an existing path that is no directory, such as a pipe, is used unchanged."""
    return path if path.exists() and not path.is_dir() else find_model(path).path


def _open_path(path: Path, *, mmap: bool) -> _core.Qpc:
    path = _resolve(path)
    try:
        return _core.Qpc(_with_end(path), mmap)
    except QpcError as error:
        if path.suffix.lower() == ".onnx":
            error.hints = (*error.hints, f"`openqaic compile {shlex.quote(str(path))}` compiles the model")
        raise


def _with_end(path: Path) -> Path | bytearray:
    """Return the path, or the bytes of a source that may be endless: a pipe, a device, a kernel file.

    A file that the kernel generates states no size.
    """
    return path if path.is_file() and path.stat().st_size else _read_stream(path)


def _read_stream(path: Path) -> bytearray:
    """Read a pipe or device, which may be endless: at most one byte more than the header states."""
    data = bytearray()
    limit = _HEADER_BYTES
    with path.open("rb") as stream:
        while len(data) < limit and (piece := stream.read(min(limit - len(data), _PIECE_BYTES))):
            data += piece
            if len(data) == _HEADER_BYTES and data.startswith(QPC_MAGIC):
                limit = max(limit, int.from_bytes(data[8:16], "little") + 1)
    return data


def _decode(text: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(text)
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _mapping(entry: Mapping[str, Any]) -> BufferMapping:
    return BufferMapping(
        name=entry["bufferName"],
        index=entry["index"],
        io_type=IoType(entry["ioType"]),
        size=entry["size"],
        is_partial_allowed=entry["isPartialBufferAllowed"],
        data_type=_data_type(entry),
    )


def _data_type(entry: Mapping[str, Any]) -> DataType:
    try:
        return DataType(entry["dataType"])
    except ValueError as error:
        raise QpcFormatError(
            f"binding {entry['bufferName']!r}: unknown element type {entry['dataType']}",
            code="qpc.unknown_element_type",
        ) from error
