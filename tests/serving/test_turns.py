"""Turns of the event loop are short for any data of clients, and garbage collections visit few objects."""

import itertools
import json
from collections import Counter

import pytest

import child_process
import serving_support as support
import session_models
from http_connections import GET, POST, connections
from qaic.serving.http_protocol import HttpToolsProtocol

#: Maximum number of steps of connections in a turn.
MOST_STEPS = 32


def flooded(connect, count, sent):
    """Open connections that each send the same data at once."""
    flood = []
    for _ in range(count):
        flood.append(connect())
        flood[-1].data_received(sent)
    return flood


def turn(loop):
    """Run scheduled callbacks, and answer the requests that ran before; return the requests that started."""
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
    # Each connection starts its first request.
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
    """Return a list that receives each connection whose parser gets data."""
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
    """In each turn, all connections of a server receive one segment."""
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
        # The first requests of the most recent connections are counted in addition.
        assert len(set(parsed)) <= 2 * MOST_STEPS
        # A step processes a header and the available part of the body.
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
        """Bytes that count the searches in them."""

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
    # Each byte is searched together with those that can belong to the same terminator, in both of its forms.
    assert sum(searched) <= 2 * 5 * len(head)


def test_a_whole_head_that_waits_for_its_turn_is_neither_late_nor_idle(connect):
    flood = flooded(connect, 100, (GET + b"\r\n") * 2)
    turn(connect.loop)
    waiting = [protocol for protocol in flood if protocol.cycle.response_complete]
    assert waiting
    # If there are more connections than the server accepts, no connection is closed for another, and no
    # header times out.
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


COUNT = """
import asyncio, gc, json, socket, sys
from qaic.serving.server import Server

COUNT = 200
tensor = {"name": "x", "datatype": "FP32", "shape": [1, 16], "data": [1.0] * 16}
body = json.dumps({"inputs": [tensor]}).encode()
head = b"POST /v2/models/affine/infer HTTP/1.1\\r\\nHost: a\\r\\nContent-Length: %d\\r\\n\\r\\n"

async def open_requests(server, count):
    address = ("127.0.0.1", server.http_port)
    opened = [socket.create_connection(address) for _ in range(count)]
    for one in opened:
        one.sendall(head % len(body) + body)
    waiting.extend(opened)
    (model,) = repository.loaded()
    while model.batcher.waiting < len(waiting):
        await asyncio.sleep(0)
    gc.collect()
    return len(gc.get_objects())

async def count(server):
    # The first requests import and create what all share.
    before, after = [await open_requests(server, count) for count in (10, COUNT)]
    print((after - before) / COUNT, gc.get_freeze_count())
    server.stop()

waiting = []
from qaic.serving import server as module
make = module.Repository

def made(*arguments, **keywords):
    global repository
    repository = make(*arguments, **keywords)
    return repository

module.Repository = made
Server([sys.argv[1]], http_port=0, grpc_port=None).run(lambda server: asyncio.ensure_future(count(server)))
"""


def test_a_collection_visits_few_objects_for_each_open_request(tmp_path):
    """A collection visits all objects that it tracks, and the event loop waits for it.

    A waiting request has 88 such objects. Most belong to uvicorn and asyncio: connection, parser, coroutines,
    futures.
    """
    more = "dynamic_batching { max_queue_delay_microseconds: 3600000000 }"
    support.add_model(tmp_path, "affine", session_models.affine(support.WIDTH, 512), more=more)
    done = child_process.run_script(COUNT, tmp_path)
    tracked, frozen = map(float, done.stdout.split())
    assert tracked < 110
    # Objects of models and libraries are not among them.
    assert frozen > 10_000


def test_a_health_check_on_a_new_connection_waits_for_few_short_turns(tmp_path):
    """The test counts the turns of the server's own event loop while 20,000 pipelined requests wait."""
    path = session_models.save(tmp_path, session_models.affine(support.WIDTH, support.BATCH), "small.onnx")
    done = child_process.run_script(FLOOD, path)
    turns_of_checks, starts_of_turns = json.loads(done.stdout.splitlines()[-1])
    assert len(turns_of_checks) == 10
    assert max(turns_of_checks) <= 3
    # One of them is a health check.
    assert max(starts_of_turns) <= MOST_STEPS + 1
