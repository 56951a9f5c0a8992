"""Limits of connections: headers, chunked bodies, pipelined requests, and the ends of connections."""

import asyncio
import itertools
import select
import socket
from collections import OrderedDict
from functools import partial

import pytest
import uvicorn
import uvloop
from hypothesis import example, given
from hypothesis import strategies as st

from http_connections import GET, POST, connections
from qaic.serving.http_protocol import BoundedProtocol, HttpServer
from qaic.serving.limits import Limits, MemoryBudget, Turns


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
    # The first connection has a request.
    first.data_received(GET + b"\r\n")
    fourth = connect()
    assert second.transport.is_aborted
    assert not any(one.transport.is_closed for one in (first, third, fourth))


def answered(protocol):
    """End the request of a connection if its body is complete, as an application does when it responds."""
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
        # If the application asks for more data, the limit still holds.
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


#: A request inside a body.
INNER = b"\r\n\r\nGET / HTTP/1.1\r\n\r\n"
REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(["get", "length", "chunks"]),
        st.lists(st.binary(min_size=1, max_size=40) | st.just(INNER), max_size=4),
    ),
    max_size=5,
)


def written(requests):
    """Return the bytes of the requests, the end of each, and the bytes of it that arrive."""
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
        expected.append((len(stream), (f"/{index}", body)))
    return stream, expected


@example(requests=[("chunks", [INNER, INNER]), ("get", [])], cuts=[172], late=False, end=None)
@given(
    requests=REQUESTS,
    cuts=st.lists(st.integers(0, 2000), max_size=12),
    late=st.booleans(),
    end=st.none() | st.integers(0, 2000),
)
def test_requests_arrive_whole_however_their_bytes_are_cut(requests, cuts, late, end):
    """The client closes its sending direction after some byte, or does not close it."""
    stream, expected = written(requests)
    connect = connections()
    protocol, found = connect(), []
    stream = stream[:end]
    places = sorted({0, *(min(cut, len(stream)) for cut in cuts), len(stream)})
    for begin, end in itertools.pairwise(places):
        protocol.data_received(stream[begin:end])
        if not late:
            protocol.loop.run_soon()
        while not late and (one := answered(protocol)):
            found.append(one)
    if end is not None:
        is_open = protocol.eof_received()
        assert is_open is not protocol.transport.is_closed
    protocol.loop.run_soon()
    while one := answered(protocol):
        found.append(one)
        protocol.loop.run_soon()
    assert found == [request for place, request in expected if place <= len(stream)]
    # If the client closed its direction, no more data can arrive and no response is due.
    assert protocol.transport.is_closed is (end is not None)
    assert not protocol.transport.is_aborted
    if end is not None:
        protocol.connection_lost(None)
        assert connect.memory.used_bytes == 0


def test_a_stopping_server_waits_for_the_rest_of_a_head(connect):
    begun, idle, unread = connect(), connect(), connect()
    begun.data_received(GET)
    unread.transport.socket, client = socket.socketpair()
    with unread.transport.socket, client:
        client.sendall(b"G")
        for protocol in (begun, idle, unread):
            protocol.shutdown()
    assert idle.transport.is_closed
    assert not begun.transport.is_closed
    assert not unread.transport.is_closed
    begun.data_received(b"\r\n")
    assert begun.cycle.keep_alive is False
    assert answered(begun) == ("/v2", b"")


def test_the_end_of_a_server_answers_what_its_event_loop_has_not_seen():
    """The event loop does not run between the requests and the end of the connection."""
    head, answers = GET + b"\r\n", []

    async def answer(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})
        await send({"type": "http.response.body", "body": b"a"})

    async def run(listener):
        loop = asyncio.get_running_loop()
        bounds = {"limits": Limits(), "memory": MemoryBudget(1 << 20), "idle": OrderedDict()}
        protocol = partial(BoundedProtocol, turns=Turns(loop.call_soon), **bounds)
        config = uvicorn.Config(answer, http=protocol, ws="none", lifespan="off", log_config=None)
        config.load()
        server = HttpServer(config, listener)
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listener])
        kept = socket.create_connection(listener.getsockname(), timeout=60)
        kept.sendall(head)
        await loop.run_in_executor(None, kept.recv, 1 << 16)
        clients = [kept, *(socket.create_connection(listener.getsockname(), timeout=60) for _ in range(8))]
        for client in clients:
            client.sendall(head)
        await server.shutdown()
        # The test refuses the connections that the server closed.
        for each in (listener, server._listener):
            each.close()
        for client in clients:
            with client, client.makefile("rb") as stream:
                answers.append(stream.read())

    with socket.create_server(("127.0.0.1", 0), backlog=16) as listener:
        uvloop.run(run(listener))
    assert [bytes(one).startswith(b"HTTP/1.1 200") for one in answers] == [True] * 9


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def test_a_client_that_sends_no_more_gets_interim_responses_until_its_answer(connect):
    protocol = connect()
    protocol.data_received(GET + b"\r\n")
    assert protocol.eof_received()
    for second in range(600):
        # Go's clients refuse a sixth response.
        assert protocol.transport.written == CONTINUE * sum(second >= at for at in (0, 2, 8, 32))
        connect.loop.turn(1)
    answered = connect()
    answered.data_received(GET + b"\r\n")
    answered.eof_received()
    answered.cycle.response_started = True
    connect.loop.turn(1)
    connect.loop.turn(1)
    assert answered.transport.written == CONTINUE
    answered.transport.close()
    assert protocol.cycle.keep_alive is False
    protocol.transport.close()
    # The time limit of the header is also in the past.
    connect.loop.turn(20)
    assert not connect.loop.timers


def test_a_client_that_refuses_an_interim_response_has_gone(connect):
    protocol = connect()
    protocol.data_received(GET + b"\r\n")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        protocol.transport.socket, _ = listener.accept()
    with protocol.transport.socket as server:
        assert protocol.eof_received()
        connect.loop.turn(1)
        assert not protocol.transport.is_closed
        client.close()
        server.sendall(CONTINUE)
        # Only errors are reported: the end of the client was readable before.
        refusal = select.poll()
        refusal.register(server, 0)
        assert refusal.poll(60_000)
        connect.loop.turn(1)
    assert protocol.transport.is_aborted


def test_a_client_of_an_old_version_that_sends_no_more_has_gone(connect):
    """HTTP/1.0 has no interim responses, so nothing shows that the client has disconnected."""
    protocol = connect()
    protocol.data_received(GET.replace(b"1.1", b"1.0") + b"\r\n")
    assert not protocol.eof_received()
    assert protocol.transport.is_closed


def test_a_connection_that_has_ended_is_not_read_again(connect):
    protocol = connect()
    protocol.data_received(GET + b"\r\n")
    protocol.flow.pause_reading()
    protocol.eof_received()
    protocol.flow.resume_reading()
    assert protocol.transport.is_paused
