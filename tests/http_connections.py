"""HTTP connections of a server without a network, and an event loop whose clock the test sets."""

import socket
from collections import OrderedDict
from functools import partial

import uvicorn

from qaic.serving.http_protocol import BoundedProtocol
from qaic.serving.limits import Limits, MemoryBudget, Turns

GET = b"GET /v2 HTTP/1.1\r\nHost: a\r\n"
POST = b"POST /v2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


class Transport:
    """A connection without a network, which stores the written data."""

    #: A socket without waiting bytes.
    socket, _peer = socket.socketpair()

    def __init__(self):
        self.written, self.is_closed, self.is_aborted, self.is_paused = b"", False, False, False

    def get_extra_info(self, name, default=None):
        return self.socket if name == "socket" else default

    def is_closing(self):
        return self.is_closed

    def write(self, data):
        self.written += data

    def close(self):
        self.is_closed = True

    def abort(self):
        self.is_closed = self.is_aborted = True

    def pause_reading(self):
        self.is_paused = True

    def resume_reading(self):
        self.is_paused = False


class Loop:
    """An event loop whose clock the test sets."""

    def __init__(self):
        self.now, self.timers, self.running, self.soon = 0.0, [], [], []

    def call_later(self, seconds, function):
        timer = Timer(self.now + seconds, function)
        self.timers.append(timer)
        return timer

    def create_task(self, coroutine, **_):
        self.running.append(coroutine.cr_frame.f_locals["self"])
        coroutine.close()
        return Task()

    def call_soon(self, function):
        self.soon.append(function)

    def run_soon(self):
        while self.soon:
            self.soon.pop(0)()

    def turn(self, seconds):
        self.now += seconds
        due = [timer for timer in self.timers if timer.at <= self.now]
        self.timers = [timer for timer in self.timers if timer.at > self.now]
        for timer in due:
            timer.run()


class Task:
    def add_done_callback(self, _function):
        pass


class Timer:
    def __init__(self, at, function):
        self.at, self.run = at, function

    def cancel(self):
        self.run = lambda: None


async def nothing(_scope, _receive, _send):
    """Ignores all calls."""


def connections(most=3):
    """Return a function that opens connections of one server, which accepts at most this number of
    connections.
    """
    loop, idle, memory = Loop(), OrderedDict(), MemoryBudget(1 << 20)
    limits = Limits(max_connections=most, max_head_bytes=1000, max_headers=10, head_timeout_s=10)
    config = uvicorn.Config(
        nothing,
        http=partial(BoundedProtocol, limits=limits, memory=memory, idle=idle, turns=Turns(loop.call_soon)),
        ws="none",
        lifespan="off",
        log_config=None,
    )
    config.load()
    state = uvicorn.server.ServerState()

    def connect():
        protocol = config.http_protocol_class(config=config, server_state=state, app_state={}, _loop=loop)
        protocol.connection_made(Transport())
        return protocol

    connect.loop, connect.memory = loop, memory
    return connect
