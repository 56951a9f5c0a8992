"""Answers to a client when something fails: an HTTP status, a gRPC status, and the message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from qaic.errors import (
    DeviceError,
    DeviceTimeoutError,
    InferenceError,
    InputError,
    OptionError,
    QaicError,
    QpcError,
    StateError,
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Answer to a client.

    Parameters
    ----------
    http
        Status of HTTP.
    grpc
        Name of the status of gRPC.
    message
        What went wrong.
    """

    http: int
    grpc: str
    message: str


_LONGEST: Final = 2000
_BY_CODE: Final = {
    "serving.unknown_model": (404, "NOT_FOUND"),
    "serving.unsupported": (400, "UNIMPLEMENTED"),
    "serving.model_control": (403, "PERMISSION_DENIED"),
    "serving.queue_full": (503, "RESOURCE_EXHAUSTED"),
    "serving.memory": (503, "RESOURCE_EXHAUSTED"),
    "serving.loads": (503, "RESOURCE_EXHAUSTED"),
    "serving.body_size": (413, "RESOURCE_EXHAUSTED"),
    "serving.slow_body": (408, "DEADLINE_EXCEEDED"),
    "serving.content_encoding": (415, "UNIMPLEMENTED"),
}
_BY_CLASS: Final = (
    (InputError, 400, "INVALID_ARGUMENT"),
    (OptionError, 400, "INVALID_ARGUMENT"),
    (QpcError, 400, "INVALID_ARGUMENT"),
    (DeviceTimeoutError, 504, "DEADLINE_EXCEEDED"),
    (InferenceError, 500, "INTERNAL"),
    (DeviceError, 503, "UNAVAILABLE"),
    (StateError, 503, "UNAVAILABLE"),
)


def failure_of(error: BaseException) -> Failure:
    """Return what a client gets for an exception; of a bug, no details."""
    if isinstance(error, QaicError):
        # Names come from clients, and a status of gRPC is sent in a header.
        message = "; ".join((error.message, *error.hints))[:_LONGEST]
        if error.code in _BY_CODE:
            return Failure(*_BY_CODE[error.code], message)
        for kind, http, grpc in _BY_CLASS:
            if isinstance(error, kind):
                return Failure(http, grpc, message)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return Failure(503, "UNAVAILABLE", f"{where}{error.strerror or error}")
    return Failure(500, "INTERNAL", "internal error; the server's log says more")
