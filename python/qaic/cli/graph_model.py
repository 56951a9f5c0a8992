"""The ONNX graph of a container, which does not contain the weights."""

import shlex
from typing import TYPE_CHECKING

from qaic.errors import QpcError, StateError
from qaic.qpc import Qpc

if TYPE_CHECKING:
    import onnx


def read_graph(qpc: Qpc) -> "onnx.ModelProto":
    """Read the graph. Blocking.

    Raises StateError for containers without a graph, which are for a card or contain several programs, and
    QpcError if the graph is damaged.
    """
    content = qpc.graph if qpc.is_program else None
    if content is None:
        raise StateError(
            f"{qpc.path} contains no graph: only programs for the CPU device contain one",
            code="inspect.no_graph",
            hints=(f"`openqaic inspect {shlex.quote(str(qpc.path))}` shows its contents",),
        )
    import onnx
    from google.protobuf.message import DecodeError

    try:
        return onnx.load_from_string(content.tobytes())
    except DecodeError as error:
        raise QpcError(f"{qpc.path}: its graph cannot be read: {error}", code="inspect.graph") from error
