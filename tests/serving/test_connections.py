"""Bounds of connections: heads, bodies in chunks, requests sent ahead, and the turns that they take."""

import itertools
import json
from collections import Counter, OrderedDict
from functools import partial

import pytest
import uvicorn
from hypothesis import example, given
from hypothesis import strategies as st

import child_process
import serving_support as support
import session_models
from qaic.serving.http_protocol import BoundedProtocol, HttpToolsProtocol
from qaic.serving.limits import Limits, MemoryBudget, Turns


class Transport:
    """A connection without a network, which keeps what is written."""

    def __init__(self):
        self.written, self.is_closed, self.is_aborted, self.is_paused = b"", False, False, False

    def get_extra_info(self, _name, default=None):
        return default

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
    """An event loop whose clock is turned by hand."""

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
    """Answers nothing."""


@pytest.fixture
def connect():
    return connections()


def connections(most=3):
    """Return what opens connections of one server, which has so many at most."""
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


GET = b"GET /v2 HTTP/1.1\r\nHost: a\r\n"
POST = b"POST /v2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "parts",
    [
        [b"GET /" + b"a" * 2000],
        [b"GET /"] + [b"a" * 100] * 20,
        [GET, b"X: " + b"a" * 2000, b"a" * 2000],
        [GET] + [b"X: " + b"a" * 100] + [b"a" * 100] * 20,
        [GET] + [b"X: 1\r\n"] * 20,
        [GET + b"X: 1\r\n" * 20 + b"\r\n"],
    ],
)
def test_long_heads_are_refused(connect, parts):
    protocol = connect()
    for part in parts:
        if not protocol.transport.is_closed:
            protocol.data_received(part)
    assert protocol.transport.is_closed
    assert protocol.transport.written.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "parts",
    [
        [b"1;" + b"a" * 100] + [b"a" * 100] * 20,
        [b"1\r\nx\r\n0\r\nX: "] + [b"a" * 100] * 20,
        [b"1\r\nx\r\n0\r\n"] + [b"X: 1\r\n"] * 20,
    ],
)
def test_long_chunk_extensions_and_trailers_end_the_connection(connect, parts):
    protocol = connect()
    protocol.data_received(POST)
    for part in parts:
        if not protocol.transport.is_closed:
            protocol.data_received(part)
    assert protocol.transport.is_aborted


def test_heads_below_the_limits_are_taken(connect):
    protocol = connect()
    for byte in GET + b"X: " + b"a" * 500 + b"\r\n\r\n":
        protocol.data_received(bytes([byte]))
    assert protocol.cycle is not None
    assert not protocol.transport.is_closed


@pytest.mark.parametrize("sent", [b"", b"G", GET, b"\r\n"])
def test_a_head_has_limited_time(connect, sent):
    protocol = connect()
    connect.loop.turn(5)
    if sent:
        protocol.data_received(sent)
    connect.loop.turn(4.9)
    assert not protocol.transport.is_closed
    connect.loop.turn(0.2)
    assert protocol.transport.is_closed


def test_a_body_is_not_limited_by_the_time_of_heads(connect):
    protocol = connect()
    protocol.data_received(POST)
    connect.loop.turn(20)
    assert not protocol.transport.is_closed


def test_a_new_connection_takes_the_place_of_the_longest_idle(connect):
    first, second, third = connect(), connect(), connect()
    # The first has a request.
    first.data_received(GET + b"\r\n")
    fourth = connect()
    assert second.transport.is_aborted
    assert not any(one.transport.is_closed for one in (first, third, fourth))


def answered(protocol):
    """End the request of a connection, if its body is complete, as an application that answers does."""
    cycle = protocol.loop.running[-1] if protocol.loop.running else None
    if cycle is None or cycle.more_body:
        return None
    protocol.loop.running.remove(cycle)
    cycle.response_complete = True
    cycle.on_response()
    return cycle.scope["path"], bytes(cycle.body)


def test_requests_that_are_sent_ahead_stay_bytes_of_the_budget(connect):
    protocol = connect()
    ahead = (GET + b"\r\n") * 1000
    protocol.data_received(GET + b"\r\n" + ahead)
    first = protocol.cycle
    assert connect.memory.used_bytes == len(ahead)
    assert not protocol.pipeline
    assert protocol.transport.is_paused
    assert answered(protocol) == ("/v2", b"")
    assert protocol.cycle is not first
    assert connect.memory.used_bytes == len(ahead) - len(GET) - 2
    protocol.connection_lost(None)
    assert connect.memory.used_bytes == 0


def test_requests_sent_ahead_beyond_the_budget_end_the_connection(connect):
    protocol = connect()
    for _ in range(4):
        protocol.data_received((GET + b"\r\n") * 20_000)
    assert protocol.transport.is_aborted
    protocol.connection_lost(None)
    assert connect.memory.used_bytes == 0


def test_small_chunks_are_parsed_in_many_turns(connect):
    protocol = connect()
    protocol.data_received(POST)
    turns, chunks = 0, 10_000
    protocol.data_received(b"1\r\nx\r\n" * chunks + b"0\r\n\r\n")
    while connect.loop.soon:
        before = len(protocol.cycle.body)
        # An application that asks for more does not let more in.
        protocol.flow.resume_reading()
        assert protocol.transport.is_paused
        connect.loop.soon.pop(0)()
        turns += 1
        assert len(protocol.cycle.body) - before <= 400
    assert len(protocol.cycle.body) == chunks
    assert turns > 20
    assert connect.memory.used_bytes == 0
    assert not protocol.cycle.more_body
    assert not protocol.transport.is_paused


@pytest.mark.parametrize(("lines", "is_taken"), [(b"\r\n", True), (4 * b"\r\n", True), (5 * b"\r\n", False)])
def test_few_empty_lines_in_front_of_a_head_are_skipped(connect, lines, is_taken):
    protocol = connect()
    protocol.data_received(lines)
    assert protocol.parser is None
    assert connect.memory.used_bytes == 0
    protocol.data_received(GET + b"\r\n")
    assert (protocol.cycle is not None) is is_taken
    assert protocol.transport.is_closed is (not is_taken)


def test_a_head_of_lines_without_carriage_returns_is_refused_at_once(connect):
    protocol = connect()
    protocol.data_received(b"GET / HTTP/1.1\nHost: a\n\n")
    assert protocol.transport.written.startswith(b"HTTP/1.1 400")


def test_a_connection_without_a_head_has_no_parser(connect):
    protocol = connect()
    protocol.data_received(GET + b"X: ")
    assert protocol.parser is None
    assert connect.memory.used_bytes == len(GET) + 3
    protocol.data_received(b"1\r\n\r\n")
    assert protocol.cycle is not None
    assert connect.memory.used_bytes == 0


def test_a_request_for_another_protocol_is_the_last_of_its_connection(connect):
    protocol = connect()
    protocol.data_received(GET + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
    assert protocol.cycle.keep_alive is False


#: a request inside of a body
INNER = b"\r\n\r\nGET / HTTP/1.1\r\n\r\n"
REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(["get", "length", "chunks"]),
        st.lists(st.binary(min_size=1, max_size=40) | st.just(INNER), max_size=4),
    ),
    max_size=5,
)


@example(requests=[("chunks", [INNER, INNER]), ("get", [])], cuts=[172], late=False)
@given(requests=REQUESTS, cuts=st.lists(st.integers(0, 2000), max_size=12), late=st.booleans())
def test_requests_arrive_whole_however_their_bytes_are_cut(requests, cuts, late):
    expected, stream = [], b""
    for index, (kind, parts) in enumerate(requests):
        head = b"\r\n" * (index % 2) + b"POST /%d HTTP/1.1\r\nHost: a\r\n" % index
        body = b"".join(parts)
        if kind == "chunks":
            chunks = b"".join(b"%x;e=1\r\n%s\r\n" % (len(part), part) for part in parts)
            stream += head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
        else:
            body = b"" if kind == "get" else body
            stream += head + b"Content-Length: %d\r\n\r\n" % len(body) + body
        expected.append((f"/{index}", body))
    protocol = connections()()
    found = []
    places = sorted({0, *(min(cut, len(stream)) for cut in cuts), len(stream)})
    for begin, end in itertools.pairwise(places):
        protocol.data_received(stream[begin:end])
        if not late:
            protocol.loop.run_soon()
        while not late and (one := answered(protocol)):
            found.append(one)
    protocol.loop.run_soon()
    while one := answered(protocol):
        found.append(one)
        protocol.loop.run_soon()
    assert found == expected
    assert not protocol.transport.is_closed


# --- turns of the event loop --------------------------------------------------------------------------------

#: steps of connections in a turn
MOST_STEPS = 32


def flooded(connect, count, sent):
    """Open connections that each send the same at once."""
    flood = []
    for _ in range(count):
        flood.append(connect())
        flood[-1].data_received(sent)
    return flood


def turn(loop):
    """Run what was scheduled before, and answer the requests that ran before; returns those that started."""
    soon, running = loop.soon[:], loop.running[:]
    del loop.soon[:]
    for step in soon:
        step()
    for cycle in running:
        loop.running.remove(cycle)
        cycle.response_complete = True
        cycle.on_response()
    return [cycle for cycle in loop.running if cycle not in running]


def test_few_requests_start_in_a_turn_and_every_connection_gets_its_share(connect):
    ahead = 20
    flood = flooded(connect, 200, (GET + b"\r\n") * ahead)
    # The first of each.
    assert len(connect.loop.running) == len(flood)
    fresh, answered = connect(), Counter(protocol.transport for protocol in flood)
    answered.update(cycle.transport for cycle in turn(connect.loop))
    fresh.data_received(GET + b"\r\n")
    assert fresh.cycle is not None
    while connect.loop.running or connect.loop.soon:
        started = turn(connect.loop)
        assert len(started) <= MOST_STEPS
        answered.update(cycle.transport for cycle in started)
        counts = [answered[protocol.transport] for protocol in flood]
        assert max(counts) - min(counts) <= 1
    assert set(counts) == {ahead}
    assert connect.memory.used_bytes == 0


def test_turns_are_shorter_while_connections_are_opened(connect):
    flooded(connect, 200, (GET + b"\r\n") * 20)
    turn(connect.loop)
    turn(connect.loop)
    assert len(turn(connect.loop)) == MOST_STEPS
    for _ in range(20):
        connect()
        assert len(turn(connect.loop)) == 4
    assert len(turn(connect.loop)) == MOST_STEPS


def test_few_pieces_of_bodies_are_parsed_in_a_turn(connect):
    flood = flooded(connect, 100, POST + b"1\r\nx\r\n" * 1000)
    while connect.loop.soon:
        before = [len(protocol.cycle.body) for protocol in flood]
        soon = connect.loop.soon[:]
        del connect.loop.soon[:]
        for step in soon:
            step()
        after = [len(protocol.cycle.body) for protocol in flood]
        assert sum(one != two for one, two in zip(before, after, strict=True)) <= MOST_STEPS
    assert set(after) == {1000}


@pytest.fixture
def parsed(monkeypatch):
    """Return a list that gets each connection whose parser gets something."""
    found, receive = [], HttpToolsProtocol.data_received

    def counted(self, data):
        found.append(self)
        receive(self, data)

    monkeypatch.setattr(HttpToolsProtocol, "data_received", counted)
    return found


FIXED = b"POST /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: 20\r\n\r\n"


@pytest.mark.parametrize(
    ("segments", "body"),
    [
        ([GET + b"\r\n"], b""),
        ([GET, b"X: 1\r\n", b"\r\n"], b""),
        ([FIXED + b"x" * 20], b"x" * 20),
        ([FIXED] + [b"x"] * 20, b"x" * 20),
        ([POST] + [b"1\r\nx\r\n"] * 20, b"x" * 20),
        ([POST] + [bytes([byte]) for byte in b"1;e=1\r\nx\r\n" * 3], b"x" * 3),
    ],
    ids=["heads", "lines of heads", "bodies", "bytes of bodies", "chunks", "bytes of chunks"],
)
def test_few_steps_are_in_a_turn_however_small_the_segments_are(parsed, segments, body):
    """All connections of a server send a segment in each turn in which they are read."""
    connect = connections(1000)
    unsent = {connect(): list(segments) for _ in range(200)}
    while any(unsent.values()) or connect.loop.soon:
        parsed.clear()
        soon = connect.loop.soon[:]
        del connect.loop.soon[:]
        for step in soon:
            step()
        for protocol, left in unsent.items():
            if left and not protocol.transport.is_paused:
                protocol.data_received(left.pop(0))
        # The first requests of the connections opened last are in addition.
        assert len(set(parsed)) <= 2 * MOST_STEPS
        # A step has a head and what arrived of the body.
        assert len(parsed) <= 2 * len(set(parsed))
    assert all(bytes(protocol.cycle.body) == body for protocol in unsent)
    assert connect.memory.used_bytes == 0


def test_few_requests_end_in_a_turn_when_all_connections_end(connect):
    flood = flooded(connect, 200, FIXED)
    while connect.loop.soon:
        connect.loop.run_soon()
    cycles = [protocol.cycle for protocol in flood]
    for protocol in flood:
        protocol.connection_lost(None)
    assert not protocol.connections
    assert all(cycle.disconnected for cycle in cycles)
    ended = [0]
    while connect.loop.soon:
        connect.loop.soon.pop(0)()
        ended.append(sum(cycle.message_event.is_set() for cycle in cycles))
    assert ended[-1] == len(flood)
    assert max(after - before for before, after in itertools.pairwise(ended)) <= MOST_STEPS


def test_the_end_of_a_head_is_searched_once_in_each_byte(connect):
    searched = []

    class Counted(bytes):
        """Bytes that count where they are searched."""

        def __radd__(self, other):
            return Counted(bytes(other) + bytes(self))

        def find(self, what, start):
            searched.append(len(self) - start)
            return super().find(what, start)

    protocol = connect()
    head = GET + b"X: " + b"a" * 900 + b"\r\n\r\n"
    for byte in head:
        protocol.data_received(Counted([byte]))
    assert protocol.cycle is not None
    # Each byte with those that may belong to the same end, for both forms of it.
    assert sum(searched) <= 2 * 5 * len(head)


def test_a_whole_head_that_waits_for_its_turn_is_neither_late_nor_idle(connect):
    flood = flooded(connect, 100, (GET + b"\r\n") * 2)
    turn(connect.loop)
    waiting = [protocol for protocol in flood if protocol.cycle.response_complete]
    assert waiting
    # More connections than the server takes do not push one out, and neither does the time of a head.
    connect()
    connect.loop.turn(20)
    assert not any(protocol.transport.is_closed for protocol in flood)
    waiting[0].connection_lost(None)
    while connect.loop.running or connect.loop.soon:
        turn(connect.loop)
    assert not waiting[0].connections & set(waiting[:1])
    assert connect.memory.used_bytes == 0


FLOOD = """
import asyncio, json, socket, sys
from qaic.serving.http_protocol import BoundedProtocol
from qaic.serving.server import Server

CONNECTIONS, AHEAD = 200, 100
LIVE = b"GET /v2/health/live HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n"
turns, starts, health, begun = [0], [], [], set()
take_head, end, receive = (
    BoundedProtocol.on_headers_complete, BoundedProtocol.on_response_complete, BoundedProtocol.data_received
)

def counted_head(self):
    starts.append(turns[0])
    begun.add(self)
    take_head(self)

def counted_bytes(self, data):
    if b"X-Check" in data:
        self.began = turns[0]
    receive(self, data)

def counted_end(self):
    if hasattr(self, "began"):
        health.append(turns[0] - self.began)
    end(self)

BoundedProtocol.on_headers_complete = counted_head
BoundedProtocol.data_received, BoundedProtocol.on_response_complete = counted_bytes, counted_end

async def count():
    while True:
        turns[0] += 1
        await asyncio.sleep(0)

async def attack(server):
    counting = asyncio.create_task(count())
    address = ("127.0.0.1", server.http_port)
    flood = [socket.create_connection(address) for _ in range(CONNECTIONS)]
    for one in flood:
        one.sendall(LIVE * AHEAD)
    while len(begun) < CONNECTIONS:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    first, started = turns[0], len(starts)
    for _ in range(10):
        with socket.create_connection(address) as fresh:
            fresh.sendall(LIVE.replace(b"Host", b"X-Check: 1\\r\\nHost"))
            fresh.setblocking(False)
            while True:
                try:
                    assert fresh.recv(15) == b"HTTP/1.1 200 OK"
                    break
                except BlockingIOError:
                    await asyncio.sleep(0)
    # The flood was there all the time.
    assert len(starts) < CONNECTIONS * AHEAD
    checks = starts[started:]
    print(json.dumps([health, [checks.count(number) for number in range(first, turns[0])]]))
    counting.cancel()
    server.stop()

Server([sys.argv[1]], http_port=0, grpc_port=None, drain_s=1).run(
    lambda server: asyncio.ensure_future(attack(server))
)
"""


def test_a_health_check_on_a_new_connection_waits_for_few_short_turns(tmp_path):
    """Turns of the server's own event loop are counted while 20,000 requests wait that were sent ahead."""
    path = session_models.save(tmp_path, session_models.affine(support.WIDTH, support.BATCH), "small.onnx")
    done = child_process.run_script(FLOOD, path)
    turns_of_checks, starts_of_turns = json.loads(done.stdout.splitlines()[-1])
    assert len(turns_of_checks) == 10
    assert max(turns_of_checks) <= 3
    # One health check is among them.
    assert max(starts_of_turns) <= MOST_STEPS + 1
