"""HTTP connections: uvicorn's protocol with limits, and a shutdown that answers all requests."""

import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
from collections import OrderedDict
from collections.abc import Iterator, Sized
from functools import partial
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from qaic.errors import StateError
from qaic.serving.limits import Limits, MemoryBudget, Turns

_END_OF_HEAD: Final = b"\r\n\r\n"
#: bytes of a body in chunks, which may have one byte each, that are parsed in one turn of the event loop
_PIECE_BYTES: Final = 2048
#: carriage returns and line feeds that are skipped in front of a head
_MOST_EMPTY_BYTES: Final = 8
#: seconds between the end of a client's requests and each interim response; Go clients refuse a sixth, and
#: the body may have used one
_INTERIM_AT_S: Final = (0, 2, 8, 32)


class _Flow(FlowControl):  # type: ignore[misc]
    """Flow control of a connection, which stops reading while received bytes wait to be parsed."""

    is_held = is_ended = False

    def resume_reading(self) -> None:
        if not (self.is_held or self.is_ended):
            super().resume_reading()


class _TrailersError(Exception):
    """The trailer after a body exceeds the limit of headers."""


class BoundedProtocol(HttpToolsProtocol):  # type: ignore[misc]
    """One connection. The parser gets one whole head at a time, and none while a request is being answered.

    A connection without a whole head costs the event loop little. Requests that a client sends without
    waiting for answers stay bytes until their turn comes. The first request of a new connection starts at
    once: a health check waits for a few turns of the event loop, which `Turns` keeps short.

    `memory` is the budget of the bytes that were read and not parsed yet. `idle` has the connections without
    a request, the one that is idle longest first. `turns` bounds the steps of all connections in a turn of
    the event loop, except first requests of new connections. `keywords` are those of uvicorn's protocol.
    """

    def __init__(
        self,
        *,
        limits: Limits,
        memory: MemoryBudget,
        idle: "OrderedDict[BoundedProtocol, None]",
        turns: Turns,
        **keywords: Any,
    ) -> None:
        self._keywords = keywords
        self.loop = keywords["_loop"] or asyncio.get_running_loop()
        self.connections = keywords["server_state"].connections
        self.cycle: Any = None
        self.timeout_keep_alive_task: asyncio.TimerHandle | None = None
        self.flow: Any = None
        self.parser: Any = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.pipeline: Sized = ()
        self._limits = limits
        self._idle = idle
        self._turns = turns
        self._timer: asyncio.TimerHandle | None = None
        self._number = 0
        self._unparsed = b""
        # Number of leading bytes that contain no end of a head.
        self._searched = 0
        self._lease = memory.lease()
        # Missing bytes of the body; None for a body in chunks.
        self._body_left: int | None = 0
        # Bytes of a body in chunks since the last result of the parser.
        self._quiet_bytes = 0
        # Carriage returns and line feeds in front of a head.
        self._empty_bytes = 0
        # True if the parser has a part of a head, from the piece that ended a body in chunks.
        self._is_in_head = False
        self._waits_for_turn = self._has_turn = False
        self._is_draining = False

    # --- connections ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.flow = _Flow(transport)
        self.connections.add(self)
        self._idle[self] = None
        self._number = self._turns.make_room()
        self._start_timer()
        if len(self.connections) > self._limits.max_connections:
            longest = next(iter(self._idle))
            if longest is not self:
                del self._idle[longest]
                longest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._idle.pop(self, None)
        self._stop_timer()
        self._hold(b"")
        self.connections.discard(self)
        if not self._is_between_requests:
            # Writing has stopped. Many connections may end at once, so each request ends in a turn of its
            # own.
            self.cycle.disconnected = True
            self._turns.wait(partial(super().connection_lost, exc))
        elif self.parser is not None:
            super().connection_lost(exc)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self._limits.head_timeout_s, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _is_between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    # --- requests -------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._is_between_requests and not self._waits_for_turn:
            self._start_timer()
            self._unset_keepalive_if_required()
        self._parse(self._unparsed + data)
        self._mark_last()

    def eof_received(self) -> bool:
        """Answer the requests that a client sent before it closed its direction of the connection.

        Returns
        -------
        bool
            True to keep the connection open until then.
        """
        self.flow.is_ended = True
        self.shutdown()
        self._close_if_cut_off()
        if not self.transport.is_closing():
            self._probe()
        return not self.transport.is_closing()

    def _close_if_cut_off(self) -> None:
        """Close the connection of a client that sends no more and waits for no answer."""
        waits = self._waits_for_turn or not (
            # A disconnected HTTP/1.0 client cannot be detected, because it may not get interim responses.
            self._is_between_requests or self.cycle.more_body or self.cycle.scope["http_version"] == "1.0"
        )
        if self.flow.is_ended and not waits:
            self.transport.close()

    def _probe(self, second: int = 0) -> None:
        """Send interim responses until the answer begins: a half-closed stream does not show who waits.

        A client that waits for the answer ignores them. The system of a disconnected client refuses them; a
        check every second then ends the connection.
        """
        if self.transport.is_closing():
            return
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
            return
        if second in _INTERIM_AT_S and not self._is_between_requests and not self.cycle.response_started:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.loop.call_later(1, partial(self._probe, second + 1))

    def _parse(self, data: bytes) -> None:
        """Pass the bytes that may be parsed now to the parser, and keep the rest."""
        view, at, is_begun = memoryview(data), 0, False
        while at < len(data) and not self.transport.is_closing() and not self._waits_for_turn:
            if self._body_left is None or self._is_in_head:
                if not self._takes_turn():
                    break
                end = min(at + _PIECE_BYTES, len(data))
                self._quiet_bytes += end - at
                if end < len(data):
                    self._wait_for_turn()
            elif self._body_left:
                # Bytes that arrive with the head belong to the same step.
                if not is_begun and not self._takes_turn():
                    break
                is_begun = True
                end = min(at + self._body_left, len(data))
                self._body_left -= end - at
            elif not self._is_between_requests:
                # The response is sent first.
                break
            elif data[at] in b"\r\n":
                # Some clients end a body with an empty line.
                at += 1
                self._empty_bytes += 1
                if self._empty_bytes > _MOST_EMPTY_BYTES:
                    self._refuse_head()
                continue
            else:
                end = self._end_of_head(data, at)
                if end == at:
                    break
                if not self._takes_turn():
                    # The head is complete, so its timeout ends and the connection is not idle.
                    self._stop_timer()
                    self._unset_keepalive_if_required()
                    self._idle.pop(self, None)
                    break
                if self.parser is None:
                    transport, flow = self.transport, self.flow
                    super().__init__(**self._keywords)
                    super().connection_made(transport)
                    self.flow = flow
                is_begun = True
            super().data_received(view[at:end])
            at = end
            if self._quiet_bytes > self._limits.max_head_bytes and not self.transport.is_closing():
                self.send_400_response("")
        self._hold(b"" if self.transport.is_closing() else data[at:])
        if not self.transport.is_closing():
            is_held = at < len(data) and (self._waits_for_turn or not self._is_between_requests)
            was_held, self.flow.is_held = self.flow.is_held, is_held
            if is_held:
                self.flow.pause_reading()
            elif was_held:
                self.flow.resume_reading()
        self._close_if_cut_off()

    def _takes_turn(self) -> bool:
        """Return True if a head or piece may be parsed in this turn, else schedule it for a later one."""
        is_first = self.parser is None and self._turns.is_recent(self._number)
        if not (self._has_turn or is_first or self._turns.take()):
            self._wait_for_turn()
            return False
        self._has_turn = False
        return True

    def _wait_for_turn(self) -> None:
        self._waits_for_turn = True
        self._turns.wait(self._go_on)

    def _go_on(self) -> None:
        """Parse the next head or piece."""
        self._waits_for_turn, self._has_turn = False, True
        self._parse(self._unparsed)
        self._has_turn = False
        self._mark_last()

    def _end_of_head(self, data: bytes, at: int) -> int:
        """Return where a head ends; `at` if it is not complete, or beyond the limits and refused."""
        start = max(at, self._searched - len(_END_OF_HEAD))
        found = data.find(_END_OF_HEAD, start)
        if found < 0:
            # The parser reports the error of lines without a carriage return.
            found = data.find(b"\n\n", start)
        self._searched = len(data) - at if found < 0 else 0
        end = len(data) if found < 0 else found + len(_END_OF_HEAD)
        # The request line and the empty line are not headers.
        most_lines = self._limits.max_headers + 2
        if end - at > self._limits.max_head_bytes or data.count(b"\n", at, end) > most_lines:
            self._refuse_head()
            return at
        return at if found < 0 else end

    def _hold(self, data: bytes) -> None:
        if data or self._unparsed:
            self._unparsed = data
            try:
                self._lease.resize(len(data))
            except StateError:
                self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        if self._quiet_bytes > self._limits.max_head_bytes or len(self.headers) > self._limits.max_headers:
            self.transport.abort()
        else:
            super().send_400_response(msg)

    def _refuse_head(self) -> None:
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

    def on_message_begin(self) -> None:
        self._is_in_head = True
        super().on_message_begin()
        self.scope["extensions"] = {"qaic.abort": self.transport.abort}

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > self._limits.max_headers:
            raise _TrailersError

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._idle.pop(self, None)
        self._empty_bytes = self._quiet_bytes = 0
        self._is_in_head = False
        headers = dict(self.headers)
        self._body_left = None if b"transfer-encoding" in headers else int(headers.get(b"content-length", 0))
        super().on_headers_complete()
        if self.parser.should_upgrade():
            # No other protocol is supported, and the parser accepts no request after an upgrade.
            self.cycle.keep_alive = False

    def _unsupported_upgrade_warning(self) -> None:
        self.logger.warning("a request for another protocol is answered by HTTP")

    def on_chunk_header(self) -> None:
        self._quiet_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._quiet_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._quiet_bytes = 0
        self._body_left = 0
        super().on_message_complete()

    # --- ends -----------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_between_requests and not self.transport.is_closing():
            self._idle[self] = None
            if self._unparsed:
                self._start_timer()
                self._parse(self._unparsed)
                self._mark_last()
            elif self._is_draining and self._is_last():
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
        """Mark the response to the last request of a stopping server: the connection accepts no other."""
        if self._is_draining and not self._is_between_requests and self._is_last():
            self.cycle.keep_alive = False

    def _is_last(self) -> bool:
        """Return True if no request waits, and no byte of another has arrived."""
        if self.pipeline or self._unparsed:
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
    """Server of uvicorn that leaves signals to its owner, and answers all requests sent before its end.

    `config` is the configuration of uvicorn, whose protocol is a `BoundedProtocol`; `listener` is the
    listening socket.
    """

    def __init__(self, config: uvicorn.Config, listener: socket.socket) -> None:
        super().__init__(config)
        # This socket is separate: its waiting connections survive when the event loop closes the other
        # socket.
        self._listener = listener.dup()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 (of uvicorn)
        """Accept the connections that were opened before, answer their requests, and close all."""
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
