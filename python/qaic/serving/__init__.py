"""Serves models over the Open Inference Protocol: ``pip install 'openqaic[serve]'``.

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
        Each path is a Triton model repository for the backend ``qaic``, a container, a folder of containers,
        or an ONNX file, which is compiled first.
    host
        Address to listen on. There is no authentication: use a proxy if it is not the loopback.
    http_port, grpc_port
        Ports; 0: a free port; None: the protocol is not served.
    drain_s
        Seconds until requests must end after SIGTERM, or after their model is unloaded.
    limits
        Limits of requests, a `qaic.serving.limits.Limits`.
    access_log
        True to log each HTTP request.

    Raises
    ------
    OSError
        A path cannot be used.
    qaic.errors.QaicError
        No model could be loaded.
    qaic.errors.StateError
        A port cannot be used, or the packages of the extra ``serve`` are missing.
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
