"""Serving models by the Open Inference Protocol: ``pip install 'openqaic[serve]'``.

``openqaic serve`` is the command for it; the guide is ``docs/guide/serving.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qaic.errors import StateError

if TYPE_CHECKING:
    import os

    from qaic.serving.limits import Limits
    from qaic.serving.server import Server

__all__ = ["serve"]


def serve(
    *paths: str | os.PathLike[str],
    host: str = "127.0.0.1",
    http_port: int | None = 8000,
    grpc_port: int | None = 8001,
    drain_s: float = 30.0,
    limits: Limits | None = None,
    access_log: bool = False,
) -> None:
    """Serve models over HTTP and gRPC until SIGTERM or Ctrl-C. Blocking.

    Parameters
    ----------
    *paths
        Each a Triton model repository for the backend ``qaic``, a container, a folder of containers, or an
        ONNX file, which is compiled first.
    host
        Address to listen on. There is no authentication: beyond the loopback put a proxy before it.
    http_port, grpc_port
        Ports; 0: a free one; None: no such protocol.
    drain_s
        Seconds that requests have to end after SIGTERM, and those of a model that is unloaded.
    limits
        What clients may ask for, a `qaic.serving.limits.Limits`.
    access_log
        Whether each request of HTTP is logged.

    Raises
    ------
    OSError
        A path or port cannot be used.
    qaic.errors.QaicError
        Nothing can be served: no model could be loaded.
    qaic.errors.StateError
        The packages of the extra ``serve`` are missing.
    """
    server = server_class()(
        paths,
        host=host,
        http_port=http_port,
        grpc_port=grpc_port,
        drain_s=drain_s,
        limits=limits,
        access_log=access_log,
    )
    server.run()


def server_class() -> type[Server]:
    """Import the server.

    Raises
    ------
    qaic.errors.StateError
        The packages of the extra ``serve`` are missing.
    """
    try:
        from qaic.serving.server import Server
    except ModuleNotFoundError as error:
        raise StateError(
            f"the package {error.name} is missing, which serving needs",
            code="serving.packages",
            hints=("pip install 'openqaic[serve]'",),
        ) from error
    return Server
