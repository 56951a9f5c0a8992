"""The resources of clients are limited: memory, connections, headers, loads, and time of the event loop."""

import asyncio
import json
import logging
import os
import re
import threading
import tracemalloc
from types import SimpleNamespace

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from qaic.errors import InputError, StateError
from qaic.serving.grpc_service import _answer, _Inbox, read_message
from qaic.serving.http_app import HttpApp, SiteCheck, _Answer
from qaic.serving.limits import Limits, MemoryBudget
from qaic.serving.repository import Repository
from qaic.serving.request_body import read_request
from qaic.serving.server import LogHandler
from qaic.serving.server_state import ServerState

HEAD = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,16],"data":['
TAIL = b"]}]}"
MANY = 200_000
#: Lines of a request after its method and path.
SCOPE = {"type": "http", "http_version": "1.1", "headers": [(b"host", b"a")], "query_string": b""}


# --- bodies -------------------------------------------------------------------------------------------------


def held_while(read, body):
    """Return the peak memory of Python while a body was refused, and the reason."""
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
        (HEAD + b"[1]," * MANY + b"[1]" + TAIL, f"{MANY + 1:,} numbers"),
        (HEAD + b"1.5," * MANY + b"1" + TAIL, f"{MANY + 1:,} numbers"),
        (HEAD + b"[]," * MANY + b"[]" + TAIL, "has 0 numbers"),
        (HEAD + b'"' + b"a" * MANY + b'",' + b'"b",' * MANY + b'"c"' + TAIL, "not an array of numbers"),
        (HEAD + b"{}," * MANY + b"{}" + TAIL, "not an array of numbers"),
        (b'{"inputs":[' + b"[]," * MANY + b"[]]}", "more than 32768 tensors or fields"),
        (b'{"id":"' + b"a" * (2 << 20) + b'"}', "more than 2097152 bytes, not counting"),
        (b'{"inputs":[' + b'{"data":[]},' * 5000 + b"{}]}", "more than 4096 tensors"),
        (b'{"inputs":[{"d\\u0061ta":[0]}]}', "escape sequences"),
    ],
)
def test_json_is_counted_before_anything_is_allocated(body, part):
    held, message = held_while(lambda text: read_request(text, None)[1](), body)
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
        (message(field(6, b"\x00" * 4 * MANY)), f"has {MANY:,} numbers in fp32_contents"),
        (message(b"\x35\x00\x00\x80\x3f" * MANY), f"has {MANY:,} numbers in fp32_contents"),
        (b"\xff" * 100, "not a message"),
    ],
)
def test_messages_are_counted_before_they_are_parsed(body, part, monkeypatch):
    """Python does not count the memory of the parser, so refused bodies must not reach the parser."""
    parsed = []

    class Request:
        """A message that records the number of bytes that are parsed."""

        def __init__(self):
            self.message = service_pb2.ModelInferRequest()

        def ParseFromString(self, content):  # noqa: N802 (of the message)
            parsed.append(len(content))
            self.message.ParseFromString(content)

        def __getattr__(self, name):
            return getattr(self.message, name)

    messages = SimpleNamespace(**vars(service_pb2) | {"ModelInferRequest": Request})
    monkeypatch.setattr("qaic.serving.grpc_service.service_pb2", messages)
    held, found = held_while(lambda text: read_message(text)[1](), body)
    assert part in found
    assert held < 64 << 10
    assert sum(parsed) < 1 << 10


def test_numbers_of_messages_are_known_before_they_are_decoded():
    numbers = b"\x01" * MANY
    raw = field(5, field(1, b"x") + field(2, b"INT64") + field(3, varint(MANY)) + field(5, field(3, numbers)))
    size, decode = read_message(raw)
    (array,) = decode()[1].values()
    assert size == array.nbytes == 8 * MANY


class Models:
    """Models that all exist, but must not receive inputs."""

    def find(self, _name, _version):
        """Find any model."""
        return SimpleNamespace(most_tensors=1)


def test_numbers_count_before_they_are_decoded():
    """A body within the budget is refused if its numbers exceed the budget."""

    async def run():
        state = ServerState(Models(), Limits(memory_bytes=1 << 20))
        shape = HEAD.replace(b"1,16", b"1,%d" % (2 * MANY))
        body, sent = shape + b"0," * (2 * MANY - 1) + b"0" + TAIL, []

        async def receive():
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message):
            sent.append(message)

        path = "/v2/models/m/infer"
        scope = {**SCOPE, "method": "POST", "path": path}
        await HttpApp(state).app(scope, receive, send)
        assert len(body) < state.memory.total_bytes
        assert state.memory.used_bytes == 0
        state.close()
        return sent[0]["status"], sent[1]["body"]

    status, answer = asyncio.run(run())
    assert status == 503
    assert b"leaves too few" in answer


@pytest.mark.parametrize("shape", [[0, 2**63], [0, 2**62, 4], [2**63, 0]])
def test_shapes_that_no_array_has(shape):
    tensor = {"name": "x", "datatype": "FP32", "shape": shape, "data": []}
    body = json.dumps({"inputs": [tensor]})
    with pytest.raises(InputError, match="not possible for an array"):
        read_request(body.encode(), None)[1]()


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

        # The test sends more large bodies than there are threads that read them, and ends none of them.
        reading = [asyncio.create_task(state.off_loop(1 << 20, may_end.wait)) for _ in range(8)]
        await asyncio.sleep(0)
        scope = {**SCOPE, "method": "GET", "path": "/v2/health/live"}
        health = asyncio.create_task(HttpApp(state).app(scope, receive, send))
        for _ in range(100):
            await asyncio.sleep(0)
        before = statuses[:1], [task.done() for task in reading]
        may_end.set()
        await asyncio.gather(health, *reading)
        state.close()
        assert before == ([200], [False] * 8)

    asyncio.run(run())


def test_a_message_that_arrives_wakes_one_of_those_that_wait(monkeypatch):
    monkeypatch.setattr("qaic.serving.grpc_service._GRACE_S", 1000.0)

    async def run():
        inbox, waits, count = _Inbox(4, 1000.0), [], 100

        class Freed(asyncio.Event):
            """An event that counts its waiters."""

            async def wait(self):
                waits.append(self)
                return await super().wait()

        inbox._freed = Freed()
        arrived = [asyncio.Event() for _ in range(count)]

        async def message(index):
            await arrived[index].wait()
            yield b"%d" % index

        reading = [asyncio.create_task(inbox.read(message(index), None)) for index in range(count)]
        for index in range(count):
            arrived[index].set()
            assert await reading[index] == b"%d" % index
        assert len(waits) <= count

    asyncio.run(run())


def test_a_message_that_arrives_slowly_gives_way_and_is_aborted_once(monkeypatch, caplog):
    monkeypatch.setattr("qaic.serving.grpc_service._GRACE_S", 0.0)

    async def run():
        inbox, aborted = _Inbox(1, 1000.0), []

        async def abort(code, text):
            aborted.append((code, text))
            raise grpc.aio.AbortError

        async def never():
            await asyncio.Event().wait()
            yield b""

        async def whole():
            yield b"message"

        context = SimpleNamespace(abort=abort)
        slow = asyncio.create_task(_answer(context, lambda: inbox.read(never(), context)))
        await asyncio.sleep(0)
        assert await inbox.read(whole(), context) == b"message"
        with pytest.raises(grpc.aio.AbortError):
            await slow
        assert aborted == [
            (grpc.StatusCode.RESOURCE_EXHAUSTED, "the message arrived too slowly while others waited")
        ]

    asyncio.run(run())
    assert not caplog.records


@pytest.mark.parametrize(
    ("path", "method"),
    [("/metrics", "GET"), ("/v2/models/stats", "GET"), ("/v2/repository/index", "POST")],
)
def test_one_answer_about_all_models_is_made_in_a_turn(monkeypatch, path, method):
    async def run():
        repository = Repository(dict, drain_s=0)
        state, turn, turns = ServerState(repository, Limits()), [0], []

        def counted(*_, **__):
            turns.append(turn[0])
            return b"" if path == "/metrics" else []

        async def count():
            while True:
                turn[0] += 1
                await asyncio.sleep(0)

        async def send(_message):
            pass

        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        monkeypatch.setattr("qaic.serving.http_app.generate_latest", counted)
        monkeypatch.setattr(repository, "statistics", counted)
        monkeypatch.setattr(repository, "index", counted)
        app = HttpApp(state).app
        counting = asyncio.create_task(count())
        scope = {**SCOPE, "method": method, "path": path}
        await asyncio.gather(*(app(dict(scope), receive, send) for _ in range(20)))
        counting.cancel()
        state.close()
        assert len(turns) == len(set(turns)) == 20

    asyncio.run(run())


def test_a_wrong_method_gets_those_that_are_allowed():
    async def run():
        state, sent = ServerState(Repository(dict, drain_s=0), Limits()), []

        async def send(message):
            sent.append(message)

        await HttpApp(state).app({**SCOPE, "method": "PUT", "path": "/metrics"}, None, send)
        state.close()
        return sent[0]["status"], dict(sent[0]["headers"])[b"allow"]

    assert asyncio.run(run()) == (405, b"GET, HEAD")


# --- log ----------------------------------------------------------------------------------------------------


def test_a_log_that_nobody_reads_delays_nothing():
    read, write = os.pipe()
    with os.fdopen(read) as lines, os.fdopen(write, "w") as stream:
        handler = LogHandler(stream)
        # The log is not read during this time.
        for number in range(20_000):
            handler.handle(logging.makeLogRecord({"msg": f"line {number}"}))
        found = [json.loads(lines.readline()) for _ in range(1000)]
        handler.handle(logging.makeLogRecord({"msg": "last"}))
        while found[-1]["message"] != "last":
            found.append(json.loads(lines.readline()))
        handler.close()
    assert found[0]["message"] == "line 0"
    assert any(re.fullmatch(r"dropped log lines: [1-9]\d*", line["message"]) for line in found)


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
            # The body of 600 bytes is removed; that of 300 bytes is kept.
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
                # The buffer of the transport is full.
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


# --- sites --------------------------------------------------------------------------------------------------


def status_of(headers, *, checks_host=True, version="1.1"):
    async def app(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    statuses = []

    async def send(message):
        statuses.append(message.get("status"))

    check = SiteCheck(app, frozenset({"models.example"}), checks_host=checks_host)
    raw = [(name.encode(), value.encode()) for name, value in headers]
    asyncio.run(check({"type": "http", "http_version": version, "headers": raw}, None, send))
    return statuses[0]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
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
        # The name of another site resolves to this server.
        ({"host": "other.example", "origin": "http://other.example"}, 403),
        ({"host": "127.0.0.1:8000", "sec-fetch-site": "cross-site"}, 403),
        ({"host": "127.0.0.1:8000", "sec-fetch-site": "same-site"}, 403),
        ({"host": "127.0.0.1:8000", "sec-fetch-site": "same-origin"}, 200),
    ],
)
def test_requests_of_other_sites_are_refused(headers, status):
    assert status_of(headers.items()) == status


@pytest.mark.parametrize("checks_host", [True, False])
@pytest.mark.parametrize(
    ("version", "hosts", "status"),
    [
        ("1.1", [], 400),
        ("1.1", [""], 400),
        ("1.1", ["a", "a"], 400),
        ("1.1", ["other.example", "127.0.0.1"], 400),
        ("1.1", ["other.example", ""], 400),
        ("1.1", ["a"], 200),
        ("1.0", [], 200),
        ("1.0", [""], 200),
        ("1.0", ["a", "b"], 400),
        ("2.0", [], 400),
    ],
)
def test_a_request_names_one_host(version, hosts, status, checks_host):
    """HTTP/1.0 does not have this header, and browsers do not send HTTP/1.0."""
    headers = [("host", host) for host in hosts]
    assert status_of(headers, version=version, checks_host=checks_host) == status


def test_the_host_is_compared_in_every_version():
    assert status_of([("host", "other.example")], version="1.0") == 403


def test_a_server_for_other_hosts_has_any_name_but_for_browsers():
    headers = [("host", "other.example")]
    assert status_of(headers, checks_host=False) == 200
    assert status_of([*headers, ("origin", "http://other.example")], checks_host=False) == 403


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
