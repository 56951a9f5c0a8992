"""Containers: ``QpcFile``, the bytes of a file, and facts about programs, buffers and constants."""

import json
from dataclasses import asdict, dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

from qaic.rt.enums import BufferDataTypeEnum, BufferIoTypeEnum, of_qaicrt
from qaic.rt.exceptions import ExceptionInit, ExceptionRuntime
from qaic.support.open_regular import read_regular
from qaic.support.program_names import QPC_FILE_NAME


@of_qaicrt
@dataclass(slots=True)
class BufferMapping:
    """A buffer of a program."""

    bufferName: str = "Invalid"
    index: int = 0
    """Position among the buffers, inputs before outputs."""
    ioType: BufferIoTypeEnum = BufferIoTypeEnum.BUFFER_IO_TYPE_INVAL
    size: int = 0
    """Bytes."""
    isPartialBufferAllowed: bool = False
    """True if fewer bytes may be passed."""
    dataType: BufferDataTypeEnum = BufferDataTypeEnum.BUFFER_DATA_TYPE_INVAL


@dataclass(slots=True)
class BufferMappingV2(BufferMapping):
    """A buffer of a program with its possible dimensions."""

    defaultDimensions: list[int] = field(default_factory=list)
    allowedDimensions: list[list[int]] = field(default_factory=list)
    """One list per specialization; empty when there is only one."""


@of_qaicrt
@dataclass(slots=True)
class QpcProgramInfo:
    """Facts about a program."""

    bufferMappings: list[BufferMapping] = field(default_factory=list)
    bufferMappingsDma: list[BufferMapping] = field(default_factory=list)
    name: str = ""
    programIndex: int = 0
    numCores: int = 0
    size: int = 0
    """Bytes of the program's ELF file, without constants."""
    batchSize: int = 0
    numSemaphores: int = 0
    numMcId: int = 0
    """Multicast ids."""
    totalRequiredMemory: int = 0
    """Device memory of one activation in bytes."""


@of_qaicrt
@dataclass(slots=True)
class QpcConstantsInfo:
    """A segment of constants."""

    name: str = ""
    constantsIndex: int = 0
    size: int = 0
    """Bytes."""

    @property
    def index(self) -> int:
        """``constantsIndex`` by its other documented name."""
        return self.constantsIndex

    @index.setter
    def index(self, value: int) -> None:
        self.constantsIndex = value


@of_qaicrt
@dataclass(slots=True)
class QpcInfo:
    """Programs and constants of a container."""

    program: list[QpcProgramInfo] = field(default_factory=list)
    constants: list[QpcConstantsInfo] = field(default_factory=list)


def container_info(text: str) -> QpcInfo:
    """Return the structures, given the JSON of the compiled module.

    `text` is the result of ``qaic._core.Qpc.program_info_json``.
    """
    info: dict[str, Any] = json.loads(text)
    return QpcInfo(
        list(map(_program, info["programs"])),
        [QpcConstantsInfo(part["name"], part["index"], part["size"]) for part in info["constants"]],
    )


def _program(entry: dict[str, Any]) -> QpcProgramInfo:
    facts = {part.name: entry[part.name] for part in fields(QpcProgramInfo)}
    buffers = {name: list(map(_mapping, facts[name])) for name in ("bufferMappings", "bufferMappingsDma")}
    return QpcProgramInfo(**facts | buffers)


def buffer_mappings(text: str, program_index: int) -> list[BufferMapping]:
    """Return the user's buffers of one program, given the JSON of the compiled module.

    `text` is the result of ``qaic._core.Qpc.program_info_json``. Raises ExceptionRuntime if there is no such
    program.
    """
    return _mappings(text, program_index, "bufferMappings")


def transfer_mappings(text: str, program_index: int) -> list[BufferMapping]:
    """Return the transfer buffers of one program; as :func:`buffer_mappings`."""
    return _mappings(text, program_index, "bufferMappingsDma")


def _mappings(text: str, program_index: int, key: str) -> list[BufferMapping]:
    programs = json.loads(text)["programs"]
    if not 0 <= program_index < len(programs):
        raise ExceptionRuntime(
            f"Runtime Exception: program index {program_index} does not exist; the container has "
            f"{len(programs)} program(s), numbered from 0",
            code="call.argument",
        )
    return list(map(_mapping, programs[program_index][key]))


def buffer_mappings_v2(text: str, io_desc: str) -> list[BufferMappingV2]:
    """Return the buffers with their dimensions.

    `text` is the result of ``qaic._core.Qpc.program_info_json``, and `io_desc` that of ``io_desc_json``.
    """
    described: dict[str, Any] = json.loads(io_desc)
    bindings = described.get("selected_set", {}).get("bindings", [])
    variants = [entry.get("shapes", []) for entry in described.get("allowed_shapes", [])]
    return [
        BufferMappingV2(
            **asdict(mapping),
            defaultDimensions=list(bindings[index].get("dims", [])),
            allowedDimensions=[list(shapes[index].get("dims", [])) for shapes in variants],
        )
        for index, mapping in enumerate(buffer_mappings(text, 0))
    ]


def _mapping(entry: dict[str, Any]) -> BufferMapping:
    types = {"ioType": BufferIoTypeEnum(entry["ioType"]), "dataType": _data_type(entry["dataType"])}
    return BufferMapping(**entry | types)


def _data_type(code: int) -> BufferDataTypeEnum:
    # The type does not change how bytes are moved, so unknown types are accepted.
    known = code in {member.value for member in BufferDataTypeEnum}
    return BufferDataTypeEnum(code) if known else BufferDataTypeEnum.BUFFER_DATA_TYPE_INVAL


@of_qaicrt
class QpcFile:
    """A container file that :meth:`load` reads.

    Parameters
    ----------
    basePath
        Directory of the file.
    qpcFilename
        Name of the file.
    """

    __slots__ = ("__weakref__", "_data", "_path")

    def __init__(self, basePath: str | PathLike[str], qpcFilename: str = QPC_FILE_NAME) -> None:
        self._path = Path(basePath, qpcFilename)
        self._data = b""

    def load(self) -> bool:
        """Read the file. Blocking.

        Raises
        ------
        ExceptionInit
            The file cannot be read.
        """
        try:
            self._data = read_regular(self._path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ExceptionInit(
                f"Initialization Exception: in object: QpcFile {self._path} cannot be read: {reason}",
                code="file.io",
            ) from error
        return True

    def getBuffer(self) -> memoryview:
        """View of the bytes, read-only; empty before :meth:`load`."""
        return memoryview(self._data)

    def data(self) -> memoryview:
        """View of the bytes, read-only; empty before :meth:`load`."""
        return self.getBuffer()

    def size(self) -> int:
        """Return the number of bytes; 0 before :meth:`load`."""
        return len(self._data)

    def __copy__(self) -> NoReturn:
        raise TypeError("a QpcFile cannot be copied; create another one from the path")

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        self.__copy__()
