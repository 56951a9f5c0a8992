"""What clients can hold is bounded: memory, connections, heads, loads, and the time of the event loop."""

import asyncio
import itertools
import json
import logging
import os
import re
import threading
import tracemalloc
from collections import OrderedDict
from functools import partial

import pytest
import uvicorn
from hypothesis import example, given
from hypothesis import strategies as st

from qaic.errors import InputError, StateError
from qaic.serving.grpc_service import read_message
from qaic.serving.http_app import HttpApp, SiteCheck, _Answer
from qaic.serving.http_protocol import BoundedProtocol
from qaic.serving.limits import Limits, MemoryBudget
from qaic.serving.repository import Repository
from qaic.serving.request_body import read_request
from qaic.serving.server import LogHandler
from qaic.serving.server_state import ServerState

HEAD = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,16],"data":['
TAIL = b"]}]}"
MANY = 200_000


# --- bodies -------------------------------------------------------------------------------------------------


def held_while(read, body):
    """Return the most bytes that Python held while a body was refused, and the reason."""
    tracemalloc.start()
    try:
        with pytest.raises(InputError) as caught:
            read(body)
        return tracemalloc.get_traced_memory()[1], caught.value.message
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (HEAD + b"[1]," * MANY + b"[1]" + TAIL, f"{MANY + 1} numbers of data"),
        (HEAD + b"1.5," * MANY + b"1" + TAIL, f"{MANY + 1} numbers of data"),
        (HEAD + b"[]," * MANY + b"[]" + TAIL, "has 0 numbers of data"),
        (HEAD + b'"' + b"a" * MANY + b'",' + b'"b",' * MANY + b'"c"' + TAIL, "no array of numbers"),
        (HEAD + b"{}," * MANY + b"{}" + TAIL, "no array of numbers"),
        (b'{"inputs":[' + b"[]," * MANY + b"[]]}", "more than 32768 tensors or fields"),
        (b'{"id":"' + b"a" * (2 << 20) + b'"}', "more than 2097152 bytes besides"),
        (b'{"inputs":[' + b'{"data":[]},' * 5000 + b"{}]}", "more than 4096 tensors"),
        (b'{"inputs":[{"d\\u0061ta":[0]}]}', "escape sequences"),
    ],
)
def test_json_is_counted_before_anything_is_allocated(body, part):
    held, message = held_while(lambda text: read_request(text, None), body)
    assert part in message
    assert held < 64 << 10


def field(number, value):
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value):
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def message(contents):
    return field(5, field(1, b"x") + field(2, b"FP32") + field(3, b"\x01\x10") + field(5, contents))


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (field(6, b"") * MANY, "tensors or fields"),
        (field(5, b"") * MANY, "tensors or fields"),
        (field(7, b"") * MANY, "tensors or fields"),
        (field(5, field(4, b"") * MANY), "tensors or fields"),
        (field(6, field(2, b"") * MANY), "tensors or fields"),
        (message(field(2, b"\x01" * MANY)), "has 0 numbers in fp32_contents"),
        (message(field(8, b"") * MANY), "has 0 numbers in fp32_contents"),
        (message(field(6, b"\x00" * 4 * MANY)), f"has {MANY} numbers in fp32_contents"),
        (message(b"\x35\x00\x00\x80\x3f" * MANY), f"has {MANY} numbers in fp32_contents"),
        (b"\xff" * 100, "not a message"),
    ],
)
def test_messages_are_counted_before_they_are_parsed(body, part):
    held, found = held_while(read_message, body)
    assert part in found
    assert held < 64 << 10


@pytest.mark.parametrize("shape", [[0, 2**63], [0, 2**62, 4], [2**63, 0]])
def test_shapes_that_no_array_has(shape):
    tensor = {"name": "x", "datatype": "FP32", "shape": shape, "data": []}
    body = json.dumps({"inputs": [tensor]})
    with pytest.raises(InputError, match="no array can have"):
        read_request(body.encode(), None)


def test_what_is_large_is_read_on_another_thread():
    async def threads():
        state = ServerState(Repository(dict, drain_s=0), Limits())
        small = await state.off_loop(1 << 10, threading.current_thread)
        large = await state.off_loop(1 << 20, threading.current_thread)
        state.close()
        return small, large

    small, large = asyncio.run(threads())
    assert small is threading.current_thread()
    assert large is not threading.current_thread()


def test_health_checks_need_no_thread_that_reads_bodies():
    async def run():
        state = ServerState(Repository(dict, drain_s=0), Limits())
        may_end, statuses = threading.Event(), []

        async def send(message):
            statuses.append(message.get("status"))

        async def receive():
            await asyncio.Event().wait()

        # More large bodies than threads that read them, none of which ends.
        reading = [asyncio.create_task(state.off_loop(1 << 20, may_end.wait)) for _ in range(8)]
        await asyncio.sleep(0)
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/v2/health/live",
            "headers": [],
            "query_string": b"",
        }
        await HttpApp(state).app(scope, receive, send)
        assert statuses[0] == 200
        assert not any(task.done() for task in reading)
        may_end.set()
        await asyncio.gather(*reading)
        state.close()

    asyncio.run(run())


# --- log ----------------------------------------------------------------------------------------------------


def test_a_log_that_nobody_reads_delays_nothing():
    read, write = os.pipe()
    with os.fdopen(read) as lines, os.fdopen(write, "w") as stream:
        handler = LogHandler(stream)
        # Nobody reads meanwhile.
        for number in range(20_000):
            handler.handle(logging.makeLogRecord({"msg": f"line {number}"}))
        found = [json.loads(lines.readline()) for _ in range(1000)]
        handler.handle(logging.makeLogRecord({"msg": "last"}))
        while found[-1]["message"] != "last":
            found.append(json.loads(lines.readline()))
        handler.close()
    assert found[0]["message"] == "line 0"
    assert any(re.fullmatch(r"[1-9]\d* lines were lost", line["message"]) for line in found)


# --- memory -------------------------------------------------------------------------------------------------


async def body_of(parts, arrived):
    for part in parts:
        yield part
        arrived.set()
        await asyncio.sleep(0)
    await asyncio.Event().wait()


def test_the_largest_unfinished_body_gives_way():
    async def run():
        budget = MemoryBudget(1000)

        async def receive(parts, arrived):
            with budget.lease() as lease:
                async for _ in lease.collect(body_of(parts, arrived)):
                    pass

        arrived = [asyncio.Event() for _ in range(2)]
        tasks = [
            asyncio.create_task(receive([b"x" * size], event))
            for size, event in zip((600, 300), arrived, strict=True)
        ]
        for event in arrived:
            await event.wait()
        with budget.lease() as lease:
            # The body of 600 bytes goes, that of 300 stays.
            lease.resize(400)
            await asyncio.sleep(0)
            with pytest.raises(StateError, match="leaves too few") as caught:
                await tasks[0]
            assert caught.value.code == "serving.memory"
            assert not tasks[1].done()
            assert budget.used_bytes == 700
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert budget.used_bytes == 0

    asyncio.run(run())


def test_the_body_that_is_largest_itself_is_refused():
    async def run():
        budget = MemoryBudget(1000)
        with budget.lease() as other, budget.lease() as lease:
            other.resize(900)
            with pytest.raises(StateError, match="leaves too few"):
                async for _ in lease.collect(body_of([b"x" * 60] * 3, asyncio.Event())):
                    pass
        assert budget.used_bytes == 0

    asyncio.run(run())


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 700)), max_size=40))
def test_the_budget_is_never_exceeded(changes):
    budget = MemoryBudget(1000)
    leases = [budget.lease() for _ in range(5)]
    for index, size in changes:
        before = leases[index].held_bytes
        try:
            leases[index].resize(size)
        except StateError:
            assert leases[index].held_bytes == before
            assert size > before
        assert budget.used_bytes == sum(lease.held_bytes for lease in leases) <= budget.total_bytes


@pytest.mark.parametrize("has_connection", [True, False])
def test_an_answer_that_nobody_takes_is_given_up(has_connection):
    async def run():
        budget, aborted = MemoryBudget(1 << 20), []
        lease, sent = budget.lease(), []
        lease.resize(1 << 17)
        answer = _Answer([b"x" * (1 << 17)], None, lease, 0.01)

        async def send(message):
            sent.append(message["type"])
            if len(sent) == 3:
                # The transport is full.
                await asyncio.Event().wait()

        extensions = {"extensions": {"qaic.abort": lambda: aborted.append(True)}} if has_connection else {}
        await answer({"type": "http", **extensions}, None, send)
        return sent, aborted, budget.used_bytes

    sent, aborted, used = asyncio.run(run())
    assert sent == ["http.response.start", "http.response.body", "http.response.body"]
    assert aborted == [True] * has_connection
    assert used == 0


def test_a_large_answer_is_sent_without_joining_its_parts():
    parts = [b"{}", memoryview(b""), memoryview(b"x" * (1 << 17))]
    lease, sent = MemoryBudget(1 << 20).lease(), []
    lease.resize(2 + (1 << 17))

    async def send(message):
        sent.append(message)

    answer = _Answer(parts, 2, lease, 60)
    asyncio.run(answer({"type": "http"}, None, send))
    assert dict(sent[0]["headers"])[b"content-length"] == b"%d" % (2 + (1 << 17))
    assert [message["more_body"] for message in sent[1:]] == [True, True, False]
    assert sent[1]["body"] is parts[0]
    assert sent[2]["body"] is parts[2]
    assert lease.held_bytes == 0


# --- connections --------------------------------------------------------------------------------------------


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


def connections():
    """Return what opens connections of one server."""
    loop, idle, memory = Loop(), OrderedDict(), MemoryBudget(1 << 20)
    limits = Limits(max_connections=3, max_head_bytes=1000, max_headers=10, head_timeout_s=10)
    config = uvicorn.Config(
        nothing,
        http=partial(BoundedProtocol, limits=limits, memory=memory, idle=idle),
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


# --- sites --------------------------------------------------------------------------------------------------


def status_of(headers, *, checks_host=True):
    async def app(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    statuses = []

    async def send(message):
        statuses.append(message.get("status"))

    check = SiteCheck(app, frozenset({"models.example"}), checks_host=checks_host)
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    asyncio.run(check({"type": "http", "headers": raw}, None, send))
    return statuses[0]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "127.0.0.1:8000"}, 200),
        ({"host": "[::1]:8000"}, 200),
        ({"host": "localhost"}, 200),
        ({"host": "server:8000"}, 200),
        ({"host": "models.example:8000"}, 200),
        ({"host": "other.example"}, 403),
        ({"host": "127.0.0.1.other.example"}, 403),
        ({"host": "[other"}, 403),
        ({"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:8000"}, 200),
        ({"host": "models.example", "origin": "https://models.example"}, 200),
        ({"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:9000"}, 403),
        ({"host": "127.0.0.1:8000", "origin": "http://other.example"}, 403),
        ({"host": "127.0.0.1:8000", "origin": "null"}, 403),
        # The name of another site that resolves to this server.
        ({"host": "other.example", "origin": "http://other.example"}, 403),
        ({"host": "127.0.0.1:8000", "sec-fetch-site": "cross-site"}, 403),
        ({"host": "127.0.0.1:8000", "sec-fetch-site": "same-site"}, 403),
        ({"host": "127.0.0.1:8000", "sec-fetch-site": "same-origin"}, 200),
    ],
)
def test_requests_of_other_sites_are_refused(headers, status):
    assert status_of(headers) == status


def test_a_server_for_other_hosts_has_any_name_but_for_browsers():
    assert status_of({"host": "other.example"}, checks_host=False) == 200
    assert status_of({"host": "other.example", "origin": "http://other.example"}, checks_host=False) == 403


# --- loads --------------------------------------------------------------------------------------------------


def test_loads_wait_for_their_turn_and_are_refused_at_the_end():
    async def run():
        repository = Repository(dict, drain_s=0, max_loads=3)
        begun, may_end = threading.Event(), threading.Event()
        names = []

        def load(name):
            names.append(name)
            begun.set()
            may_end.wait(60)

        repository.load = load
        tasks = [asyncio.create_task(repository.load_async(name)) for name in "abc"]
        await asyncio.to_thread(begun.wait, 60)
        with pytest.raises(StateError) as full:
            await repository.load_async("d")
        tasks[1].cancel()
        await asyncio.sleep(0)
        repository.begin_end()
        with pytest.raises(StateError) as waited:
            await tasks[2]
        with pytest.raises(StateError) as late:
            await repository.unload_async("e")
        may_end.set()
        await tasks[0]
        return names, [error.value.code for error in (full, waited, late)]

    names, codes = asyncio.run(run())
    assert names == ["a"]
    assert codes == ["serving.loads", "serving.ending", "serving.ending"]


@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_every_load_gets_its_turn_unless_it_is_cancelled(cancelled):
    async def run():
        repository = Repository(dict, drain_s=0, max_loads=8)
        gate, names = threading.Event(), []

        def load(name):
            gate.wait(60)
            names.append(name)

        repository.load = load
        tasks = [asyncio.create_task(repository.load_async(str(index))) for index in range(len(cancelled))]
        await asyncio.sleep(0)
        for task, is_cancelled in zip(tasks[1:], cancelled[1:], strict=True):
            if is_cancelled:
                task.cancel()
        gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        return names

    assert asyncio.run(run()) == [
        str(index) for index, is_cancelled in enumerate(cancelled) if index == 0 or not is_cancelled
    ]
