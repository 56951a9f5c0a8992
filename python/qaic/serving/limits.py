"""Limits of a server's clients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a server. The guide (``docs/guide/serving.md``) gives the reasons for the defaults.

    Parameters
    ----------
    max_body_bytes
        Bytes of a request.
    memory_bytes
        Bytes of all requests and answers together, over HTTP and gRPC.
    body_timeout_s
        Seconds in which a body has to arrive, and in which a client has to take an answer.
    max_head_bytes, max_headers
        Bytes of a request line with its headers, and number of headers.
    head_timeout_s
        Seconds from the opening of a connection, or the first byte of a request, to the end of its headers.
    idle_timeout_s
        Seconds that a connection may stay open between two requests.
    max_connections
        Connections of HTTP, and calls of gRPC at a time. A new connection takes the place of the one that has
        been idle longest; where none is idle, requests get 503 and RESOURCE_EXHAUSTED.
    max_loads
        Loads and unloads that run or wait.
    model_control
        Whether clients may load and unload models.
    allowed_hosts
        Names of this server besides addresses, names without a dot, and ``localhost``.
    """

    max_body_bytes: int = 64 << 20
    memory_bytes: int = 256 << 20
    body_timeout_s: float = 30.0
    max_head_bytes: int = 32 << 10
    max_headers: int = 100
    head_timeout_s: float = 10.0
    idle_timeout_s: float = 65.0
    max_connections: int = 4096
    max_loads: int = 8
    model_control: bool = False
    allowed_hosts: frozenset[str] = frozenset()
