"""State that the protocols of a server share: its models, its limits, and its shutdown."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from qaic import __version__
from qaic.errors import (
    CompileError,
    DeviceError,
    DeviceTimeoutError,
    InferenceError,
    InputError,
    OptionError,
    QaicError,
    QpcError,
    StateError,
)
from qaic.serving.limits import Limits, MemoryBudget
from qaic.serving.repository import Repository

T = TypeVar("T")

#: bytes that the event loop reads and writes itself, because waking a thread takes about as long
_SMALL_BYTES: Final = 64 << 10
#: threads that read and write larger tensors
_CODEC_THREADS: Final = 2

_EXTENSIONS: Final = ("binary_tensor_data", "model_repository", "model_configuration", "statistics")


@dataclass(slots=True)
class ServerState:
    """State of a server, one for all its protocols."""

    #: The models.
    repository: Repository
    #: Limits of requests.
    limits: Limits
    #: True while the server stops.
    is_draining: bool = False
    memory: MemoryBudget = field(init=False)
    _codecs: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self.memory = MemoryBudget(self.limits.memory_bytes)
        self._codecs = ThreadPoolExecutor(_CODEC_THREADS, "codec")

    async def off_loop(self, size: int, work: Callable[..., T], *arguments: Any) -> T:
        """Read or write ``size`` bytes, on another thread unless they are few. Does not block the loop."""
        if size <= _SMALL_BYTES:
            return work(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._codecs, work, *arguments)

    async def until_end(self, work: Awaitable[T]) -> T:
        """Await a coroutine that a stop of the server may cancel.

        Raises StateError if the time for requests of a stopping server is over (``serving.ending``).
        """
        try:
            return await work
        except asyncio.CancelledError:
            if not self.is_draining:
                raise
            raise StateError(
                "the server is shutting down, and the device did not respond within the remaining time",
                code="serving.ending",
            ) from None

    def close(self) -> None:
        """Release the threads."""
        self._codecs.shutdown(wait=False, cancel_futures=True)

    @property
    def is_ready(self) -> bool:
        """Return True if every model is ready and the server is not stopping."""
        return self.repository.is_ready and not self.is_draining

    @staticmethod
    def metadata() -> dict[str, Any]:
        """Describe the server in the form of the protocol."""
        return {"name": "openqaic", "version": __version__, "extensions": _EXTENSIONS}

    def check_model_control(self) -> None:
        """Refuse a client's load or unload if the server was started without model control.

        Raises StateError if model control is off.
        """
        if not self.limits.model_control:
            raise StateError(
                "this server was started without model control; models cannot be loaded or unloaded",
                code="serving.model_control",
                hints=("start it with --model-control, behind a proxy that checks users",),
            )


@dataclass(frozen=True, slots=True)
class Failure:
    """Answer to a client."""

    #: Status of HTTP.
    http: int
    #: Name of the status of gRPC.
    grpc: str
    #: Reason of the failure.
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
    (CompileError, 400, "INVALID_ARGUMENT"),
    (DeviceTimeoutError, 504, "DEADLINE_EXCEEDED"),
    (InferenceError, 500, "INTERNAL"),
    (DeviceError, 503, "UNAVAILABLE"),
    (StateError, 503, "UNAVAILABLE"),
)


def failure_of(error: BaseException) -> Failure:
    """Return the response to a client for an exception; without details for a defect."""
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
    return Failure(500, "INTERNAL", "internal error; the server's log has the details")
