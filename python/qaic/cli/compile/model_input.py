"""The model that ``qaic-compile`` is given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from qaic.errors import OptionError
from qaic.model_path import find_model, missing_file
from qaic.support.open_regular import read_regular

if TYPE_CHECKING:
    import onnx

_TEXT_SUFFIX: Final = ".onnxtxt"
#: text takes several times the memory of what it says
_LONGEST_TEXT: Final = 256 << 20


def open_model(path: Path) -> Path | onnx.ModelProto:
    """Find a model; one in the text form of protobuf is read.

    Raises
    ------
    OptionError
        It is compiled already, or no model.
    OSError
        It cannot be read.
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


def _from_text(path: Path) -> onnx.ModelProto:
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
        f"{path} is no model in the text form of protobuf: {problem}",
        code="option.model_path",
        context={"path": str(path)},
    )
