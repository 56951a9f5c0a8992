"""What clients of a server may ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a server.

    Parameters
    ----------
    max_body_bytes
        Bytes of a request.
    body_timeout_s
        Seconds in which a body has to arrive.
    max_connections
        Connections of HTTP, and calls of gRPC at a time; beyond that 503 and RESOURCE_EXHAUSTED.
    model_control
        Whether clients may load and unload models.
    """

    max_body_bytes: int = 64 << 20
    body_timeout_s: float = 30.0
    max_connections: int = 4096
    model_control: bool = True
