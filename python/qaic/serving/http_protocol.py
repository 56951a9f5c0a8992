"""Connections of HTTP: uvicorn's protocol with limits, and an end that answers all that was sent before."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import struct
import termios
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import socket
    from collections import OrderedDict
    from collections.abc import Iterator

    from qaic.serving.limits import Limits


class _HeadError(Exception):
    """A head beyond the limits."""


class BoundedProtocol(HttpToolsProtocol):  # type: ignore[misc]
    """One connection.

    Parameters
    ----------
    limits
        Limits of the server.
    idle
        The connections of the server without a request, the one that is idle longest first.
    """

    def __init__(self, *, limits: Limits, idle: OrderedDict[BoundedProtocol, None], **keywords: Any) -> None:
        super().__init__(**keywords)
        self._limits = limits
        self._idle = idle
        self._timer: asyncio.TimerHandle | None = None
        self._head_bytes = self._header_count = 0
        # Bytes since the parser last understood something.
        self._quiet_bytes = 0
        self._is_in_head = False
        self._is_draining = False

    # --- connections ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._idle[self] = None
        self._start_timer()
        if len(self.connections) > self._limits.max_connections:
            longest = next(iter(self._idle))
            if longest is not self:
                del self._idle[longest]
                longest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._idle.pop(self, None)
        self._stop_timer()

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self._limits.head_timeout_s, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _is_between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    # --- heads ----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._timer is None and self._is_between_requests:
            self._start_timer()
        self._quiet_bytes += len(data)
        super().data_received(data)
        if self._quiet_bytes > self._limits.max_head_bytes and not self.transport.is_closing():
            self.send_400_response("")
        self._mark_last()

    def send_400_response(self, msg: str) -> None:
        is_too_long = self._quiet_bytes > self._limits.max_head_bytes
        if not (is_too_long or self._head_bytes > self._limits.max_head_bytes) and (
            self._header_count <= self._limits.max_headers
        ):
            super().send_400_response(msg)
        elif self._is_between_requests:
            limits = self._limits
            text = (
                f"the request line and headers have more than {limits.max_head_bytes} bytes or "
                f"{limits.max_headers} headers, which is the limit"
            )
            body = b'{"error":"%s"}' % text.encode()
            self.transport.write(
                b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n"
                b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
            )
            self.transport.close()
        else:
            self.transport.abort()

    def _count(self, size: int, headers: int) -> None:
        self._quiet_bytes = 0
        self._head_bytes += size
        self._header_count += headers
        if self._head_bytes > self._limits.max_head_bytes or self._header_count > self._limits.max_headers:
            raise _HeadError

    def on_message_begin(self) -> None:
        self._head_bytes = self._header_count = 0
        self._is_in_head = True
        super().on_message_begin()
        self.scope["extensions"] = {"qaic.abort": self.transport.abort}

    def on_url(self, url: bytes) -> None:
        self._count(len(url), 0)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4, 1)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._quiet_bytes = 0
        self._is_in_head = False
        self._stop_timer()
        self._idle.pop(self, None)
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        self._quiet_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._quiet_bytes = 0
        super().on_body(body)

    # --- ends -----------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_between_requests and not self.transport.is_closing():
            self._idle[self] = None
            if self._is_draining and self._is_last():
                self.transport.close()

    def shutdown(self) -> None:
        """Close the connection after the requests that were sent before this call."""
        self._is_draining = True
        if self._is_between_requests:
            if self._is_last():
                self.transport.close()
        else:
            self._mark_last()

    def _mark_last(self) -> None:
        """Mark the answer to the last request of a server that ends: no other request is taken."""
        if self._is_draining and not self._is_between_requests and self._is_last():
            self.cycle.keep_alive = False

    def _is_last(self) -> bool:
        """Return whether nothing follows: no request waits, and no byte of one was sent."""
        if self.pipeline or self._is_in_head:
            return False
        return unread_bytes(self.transport.get_extra_info("socket")) == 0


def unread_bytes(connection: socket.socket) -> int:
    """Return the number of bytes that were sent to a connection and not read; 0 for one that is closed."""
    try:
        size: int = struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.FIONREAD, bytes(4)))[0]
    except (OSError, ValueError):
        return 0
    return size


class HttpServer(uvicorn.Server):  # type: ignore[misc]
    """A server of uvicorn that leaves signals to its owner, and answers all requests sent before its end.

    Parameters
    ----------
    config
        Configuration of uvicorn, whose protocol is a `BoundedProtocol`.
    listener
        The socket that is listened on.
    """

    def __init__(self, config: uvicorn.Config, listener: socket.socket) -> None:
        super().__init__(config)
        # Of its own: connections that wait here are not lost when the event loop closes the other.
        self._listener = listener.dup()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 (of uvicorn)
        """Take the connections that were opened before, answer what was sent, and close all."""
        for server in self.servers:
            server.close()
        await self._accept_rest()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                await self._wait_tasks_to_complete()
        except TimeoutError:
            for task in self.server_state.tasks:
                task.cancel()
            while self.server_state.tasks:
                await asyncio.sleep(0.01)
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def _accept_rest(self) -> None:
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)  # noqa: FBT003 (its form)
        with self._listener, contextlib.suppress(OSError):
            while True:
                accepted, _ = self._listener.accept()
                await loop.connect_accepted_socket(
                    lambda: self.config.http_protocol_class(
                        config=self.config,
                        server_state=self.server_state,
                        app_state=self.lifespan.state,
                        _loop=loop,
                    ),
                    accepted,
                )
