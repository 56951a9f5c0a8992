"""Requests that pages of other sites make browsers send are refused, whatever their names resolve to."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson
from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


_FIX = "; start the server with --allowed-host NAME if NAME is a name of it"


class SiteCheck:
    """An application in front of another that compares ``Host`` and ``Origin`` with the names of this server.

    Parameters
    ----------
    app
        The other application.
    allowed_hosts
        Names of this server besides addresses, names without a dot, and ``localhost``.
    checks_host
        Refuse all requests for other names. Otherwise only requests of browsers, which have an ``Origin``.
    """

    def __init__(
        self, app: Callable[..., Awaitable[None]], allowed_hosts: frozenset[str], *, checks_host: bool
    ) -> None:
        self._app = app
        self._allowed_hosts = allowed_hosts
        self._checks_host = checks_host

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or refuse it with 403."""
        app = self._app
        if scope["type"] == "http" and (reason := self._why_refused(dict(scope["headers"]))):
            app = Response(orjson.dumps({"error": reason}), 403, media_type="application/json")
        await app(scope, receive, send)

    def _why_refused(self, headers: dict[bytes, bytes]) -> str:
        host = headers.get(b"host", b"").decode("latin-1")
        if headers.get(b"sec-fetch-site", b"none") in (b"cross-site", b"same-site"):
            return "a page of another site sent this request, which is not allowed"
        origin = headers.get(b"origin")
        if origin is not None:
            site = origin.decode("latin-1").partition("://")[2]
            if site.lower() != host.lower() or not self._is_own(host):
                return f"the origin {origin.decode('latin-1')[:200]!r} is not this server{_FIX}"
        elif self._checks_host and host and not self._is_own(host):
            return f"the host {host[:200]!r} is not this server{_FIX}"
        return ""

    def _is_own(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self._allowed_hosts or "." not in name.removesuffix(".") or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True
