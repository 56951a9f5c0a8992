"""Finds the container file for the path that a user gives."""

import errno
import glob
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qaic.errors import OptionError
from qaic.support.open_regular import NotRegularError, open_regular, read_regular
from qaic.support.program_names import QPC_FILE_NAME
from qaic.support.text import nearest_name

if TYPE_CHECKING:
    import onnx

QPC_MAGIC = bytes.fromhex("7ccda100")
"""First four bytes of a container."""


@dataclass(frozen=True)
class ModelFile:
    """A file, and true if it is a compiled container."""

    path: Path
    is_container: bool


def find_model(model_path: str | os.PathLike[str]) -> ModelFile:
    """Find the file that ``model_path`` selects.

    Parameters
    ----------
    model_path
        An ``.onnx`` file, a container file, a directory that contains ``programqpc.bin``, or a glob that
        matches exactly one of these.

    Raises
    ------
    FileNotFoundError
        The path does not exist.
    OptionError
        Several files match, or the file is neither a container nor an ONNX model, or not a regular file.
    """
    path = Path(os.fspath(model_path))
    if not path.exists() and glob.has_magic(str(path)):
        path = _only_match(str(path))
    if path.is_dir():
        path = _program_in(path)
    if not path.exists():
        raise missing_file(path)
    try:
        with open_regular(path) as file:
            head = file.read(len(QPC_MAGIC))
    except NotRegularError:
        raise OptionError(
            f"{path} is a pipe or device; a program container or an .onnx file is expected",
            code="option.model_path",
            context={"path": str(path)},
            hints=("copy its content to a file; qaic.Qpc also takes the bytes of a container",),
        ) from None
    if head == QPC_MAGIC:
        return ModelFile(path, is_container=True)
    if path.suffix.lower() == ".onnx":
        return ModelFile(path, is_container=False)
    if path.suffix.lower() == ".bin":
        # The file has the name of a container, so opening it reports the defect.
        return ModelFile(path, is_container=True)
    raise OptionError(
        f"{path} is neither a program container (it starts with {head.hex(' ') or 'nothing'}, a container "
        f"with {QPC_MAGIC.hex(' ')}) nor a file with the suffix .onnx",
        code="option.model_path",
        context={"path": str(path), "found": head.hex(), "expected": QPC_MAGIC.hex()},
        hints=("models of other frameworks must be exported to ONNX first",),
    )


def missing_file(path: Path) -> FileNotFoundError:
    """Create the error for a file that does not exist, with the most similar name in its folder."""
    try:
        beside = sorted(entry.name for entry in path.parent.iterdir())
    except OSError:
        beside = []
    near = nearest_name(path.name, beside, 0.7)
    hint = f"; did you mean {path.with_name(near)}?" if near else ""
    return FileNotFoundError(errno.ENOENT, f"{os.strerror(errno.ENOENT)}{hint}", str(path))


def _program_in(folder: Path) -> Path:
    path = folder / QPC_FILE_NAME
    if not path.exists():
        models = sorted(entry.name for entry in folder.glob("*.onnx"))
        which = "one of these files" if models[1:] else "that file"
        more = f" and {len(models) - 3} more" if models[3:] else ""
        instead = f"; it contains {', '.join(models[:3])}{more}: pass {which}" if models else ""
        raise FileNotFoundError(errno.ENOENT, f"the folder contains no {QPC_FILE_NAME}{instead}", str(folder))
    return path


def _only_match(pattern: str) -> Path:
    matches = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 (a pattern may be absolute)
    if not matches:
        raise FileNotFoundError(errno.ENOENT, "no file matches this pattern", pattern)
    if len(matches) > 1:
        shown = ", ".join(matches[:5]) + (", ..." if len(matches) > 5 else "")
        raise OptionError(
            f"model_path {pattern!r} matches {len(matches)} files, exactly one is expected: {shown}",
            code="option.model_path",
            context={"pattern": pattern, "matches": matches},
        )
    return Path(matches[0])


_TEXT_SUFFIX: Final = ".onnxtxt"
#: limit of a file in the text form, which takes several times the memory of the model
_LONGEST_TEXT: Final = 256 << 20


def open_model(path: Path) -> "Path | onnx.ModelProto":
    """Find a model; read a model in the text form of protobuf.

    Raises OptionError if the file is a container or not a model, and OSError if it cannot be read.
    """
    if not path.exists():
        raise missing_file(path)
    if path.suffix.lower() == _TEXT_SUFFIX:
        return _from_text(path)
    model = find_model(path)
    if model.is_container:
        raise OptionError(
            f"{model.path} is a compiled container; an .onnx file is expected",
            code="option.model_path",
            context={"path": str(model.path)},
        )
    return model.path


def _from_text(path: Path) -> "onnx.ModelProto":
    content = read_regular(path, _LONGEST_TEXT)
    if len(content) > _LONGEST_TEXT:
        raise _wrong(path, f"it is larger than {_LONGEST_TEXT >> 20} MiB")
    import onnx
    from google.protobuf import text_format

    try:
        return text_format.Parse(content.decode("utf-8"), onnx.ModelProto())
    except (text_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        raise _wrong(path, str(error)) from error


def _wrong(path: Path, problem: str) -> OptionError:
    return OptionError(
        f"{path} is not a model in the text form of protobuf: {problem}",
        code="option.model_path",
        context={"path": str(path)},
    )
