"""Files of a model and its weights."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from qaic.compiler.diagnostics.messages import refuse

if TYPE_CHECKING:
    import onnx

    from qaic.compiler.frontend.files.onnx_file import OnnxFile

#: a file, or a model in memory without external data
ModelSource: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto"


def digest_of(source: "OnnxFile") -> str:
    """Identify the content of an opened model."""
    from qaic.compiler.frontend.files import content_digest

    if source.content is None:
        return content_digest.files_digest(source.files)
    return content_digest.content_digest(source.content)


def opened(model: ModelSource) -> "OnnxFile":
    """Open a model from any source; the result is a context manager."""
    from qaic.compiler.frontend.files import onnx_file

    if isinstance(model, str | os.PathLike):
        return onnx_file.open_model(Path(model))
    if isinstance(model, bytes):
        return onnx_file.open_bytes(model)
    from google.protobuf.message import EncodeError

    try:
        return onnx_file.open_bytes(model.SerializeToString(deterministic=True))
    except (EncodeError, ValueError) as error:
        raise refuse(
            "model in memory",
            code="graph_too_large",
            found=f"a message that protobuf cannot serialize ({error})",
            expected="at most 2 GiB",
            fix="save it with external data and pass the path",
        ) from error
