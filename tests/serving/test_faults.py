"""Full queues, clients that disconnect, deadlines, lost cards, full disks, and a stop under load."""

import asyncio
import json
import shutil
import signal
import socket
import threading
import time

import numpy as np
import pytest
from onnx import helper

import child_process
import qaic
import serving_support as support
import session_models
from qaic.serving import server as server_module

X = np.ones((1, 16), np.float32)
#: A request with one row waits an hour for other requests, and two requests can wait.
PATIENT = """
dynamic_batching {
  max_queue_delay_microseconds: 3600000000
  default_queue_policy { max_queue_size: 2 }
}
"""


@pytest.fixture
def patient(tmp_path):
    support.add_model(tmp_path, "affine", session_models.affine(support.WIDTH, support.BATCH), more=PATIENT)
    with support.serving(tmp_path) as server:
        yield server


def body(**parameters):
    return json.dumps(
        {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 16], "data": [1.0] * 16}],
            "parameters": parameters,
        }
    ).encode()


def send(server, data, model="affine"):
    """Send a request without waiting for the response."""
    connection = socket.create_connection(("127.0.0.1", server.http_port), timeout=60)
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


def await_metric(server, line):
    """Poll the metrics until they contain a line."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        text = server.ask("GET", "/metrics")[1].decode()
        if line in text:
            return
    raise AssertionError(text)


def await_queue(server, length):
    """Poll until this number of requests wait."""
    await_metric(server, f'qaic_queue_length{{model="affine",version="1"}} {length}.0')


def test_a_full_queue_and_clients_that_go(patient):
    waiting = [send(patient, body()) for _ in range(2)]
    await_queue(patient, 2)
    status, answer = patient.infer(X)
    assert status == 503
    assert "the number of waiting requests is 2, the limit" in answer["error"]
    said = support.run_client(
        """
import tritonclient.grpc as triton
client = triton.InferenceServerClient(GRPC)
given = triton.InferInput("x", [1, 16], "FP32"); given.set_data_from_numpy(np.ones((1, 16), np.float32))
try:
    client.infer("affine", [given])
except triton.InferenceServerException as error:
    print(error.status())
""",
        patient,
    )
    assert said.strip() == "StatusCode.RESOURCE_EXHAUSTED"
    for connection in waiting:
        connection.close()
    await_queue(patient, 0)


def test_deadlines(patient):
    status, answer = patient.ask("POST", "/v2/models/affine/infer", body(timeout=30000))
    assert status == 504
    assert "no inference started" in answer["error"]
    said = support.run_client(
        """
import tritonclient.grpc as triton
client = triton.InferenceServerClient(GRPC)
given = triton.InferInput("x", [1, 16], "FP32"); given.set_data_from_numpy(np.ones((1, 16), np.float32))
for options in (dict(client_timeout=0.2), dict(timeout=30000)):
    try:
        client.infer("affine", [given], **options)
    except triton.InferenceServerException as error:
        print(error.status())
""",
        patient,
    )
    assert said.splitlines() == ["StatusCode.DEADLINE_EXCEEDED"] * 2
    await_queue(patient, 0)


def test_the_end_answers_what_waits(patient):
    connection = send(patient, body())
    await_queue(patient, 1)
    codes = []
    end = threading.Thread(target=lambda: codes.append(patient.end()))
    end.start()
    with connection:
        answer = connection.recv(1 << 16)
    end.join()
    assert answer.startswith(b"HTTP/1.1 200")
    assert codes == [0]
    assert any("shutting down" in line for line in patient.log)


def test_a_client_that_sends_no_more_gets_its_answer_and_one_that_goes_leaves_the_queue(patient):
    """Both clients close their sending direction, and look the same until the server sends data."""
    waiting, gone = send(patient, body()), send(patient, body())
    await_queue(patient, 2)
    waiting.shutdown(socket.SHUT_WR)
    gone.close()
    await_queue(patient, 1)
    late = send(patient, body())
    await_queue(patient, 2)
    late.shutdown(socket.SHUT_WR)
    assert late.recv(1 << 16)
    late.close()
    await_queue(patient, 1)
    assert patient.end() == 0
    *interim, answer = read_to_end(waiting).split(b"HTTP/1.1 ")[1:]
    assert set(interim) == {b"100 Continue\r\n\r\n"}
    assert answer.startswith(b"200")


def test_the_end_does_not_wait_for_an_inference_that_is_stuck(tmp_path):
    shutil.copy(session_models.FIXTURES / "s01_simple_f32_file.qpc", tmp_path / "simple.qpc")
    stuck = {"QAIC_DEVICE": "noop", "QAIC_NOOP_FAULTS": "execute@*=stuck"}
    image = {"name": "image", "datatype": "FP32", "shape": [1, 3, 8, 8], "data": [0.0] * 192}
    data = json.dumps({"inputs": [image]}).encode()
    with support.serving(tmp_path, arguments=["--drain", "0.5"], environment=stuck) as server:
        connection = send(server, data, "simple")
        await_metric(server, 'qaic_running_inferences{model="simple",version="1"} 1.0')
        assert server.end() == 0
        with connection:
            answer = connection.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"the server is shutting down, and the device did not respond" in answer
        assert any("requests were not answered in time" in line for line in server.log)
        assert not any("Traceback" in line for line in server.log)


LOST = """
import asyncio, http.client, json, sys, threading
import numpy as np
from qaic._core import EmuControl
from qaic.serving.server import Server

server = Server([sys.argv[1]], http_port=0, grpc_port=None)
opened = threading.Event()
thread = threading.Thread(target=server.run, args=(lambda _: opened.set(),))
thread.start()
opened.wait()
name = sys.argv[2]
body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 16], "data": [1.0] * 16}]})

def ask(method="POST", path=f"/v2/models/{name}/infer"):
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    connection.request(method, path, body if method == "POST" else None)
    answer = connection.getresponse()
    data = json.loads(answer.read())
    connection.close()
    return answer.status, data

stop, statuses = threading.Event(), []
def load():
    while not stop.is_set():
        statuses.append(ask()[0])
loads = [threading.Thread(target=load) for _ in range(4)]
first = ask()
card = EmuControl()
for one in loads:
    one.start()
card.reset()
lost = ask()
while lost[0] == 200:
    lost = ask()
ready = ask("GET", "/v2/health/ready")[0]
card.hurry()
while ask()[0] != 200:
    card.hurry()
again = ask()
stop.set()
for one in loads:
    one.join()
server.stop()
thread.join()
print(json.dumps([first, lost, ready, again, sorted(set(statuses))]))
"""


def test_a_card_that_is_lost_under_load_comes_back(tmp_path, monkeypatch):
    monkeypatch.setenv("QAIC_KMD", "emu")
    path = session_models.save(tmp_path, session_models.affine(support.WIDTH, support.BATCH), "small.onnx")
    done = child_process.run_script(LOST, path, "small", device="kmd")
    first, lost, ready, again, statuses = json.loads(done.stdout.splitlines()[-1])
    assert first[0] == again[0] == 200
    assert lost[0] == 503
    assert "lost" in lost[1]["error"] or "device" in lost[1]["error"]
    assert ready in (200, 503)
    assert set(statuses) <= {200, 503}
    assert again[1]["outputs"] == first[1]["outputs"]


LOAD = """
import gc, http.client, json, os, signal, sys, threading
import numpy as np
import tritonclient.grpc as triton
from qaic.serving.grpc_service import GrpcService
from qaic.serving.http_protocol import BoundedProtocol
from qaic.serving.server import Server

accepted, answers, frozen = {"http": 0, "grpc": 0}, {"http": [], "grpc": []}, []
take_head, take_call = BoundedProtocol.on_headers_complete, GrpcService.service

def counted_head(self):
    accepted["http"] += 1
    take_head(self)

def counted_call(self, details):
    accepted["grpc"] += details.method.endswith("/ModelInfer")
    return take_call(self, details)

BoundedProtocol.on_headers_complete, GrpcService.service = counted_head, counted_call
name, most = sys.argv[2], 5000
tensor = {"name": "x", "datatype": "FP32", "shape": [1, 16], "data": [1.0] * 16}
body = json.dumps({"inputs": [tensor]})
enough = threading.Event()

def note(protocol, status):
    answers[protocol].append(status)
    if min(map(len, answers.values())) >= 100:
        enough.set()

def ask_http(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for _ in range(most):
        try:
            connection.request("POST", f"/v2/models/{name}/infer", body)
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            return
        note("http", answer.status)

def ask_grpc(port):
    apart = [("grpc.use_local_subchannel_pool", 1)]
    client = triton.InferenceServerClient(f"127.0.0.1:{port}", channel_args=apart)
    given = triton.InferInput("x", [1, 16], "FP32")
    given.set_data_from_numpy(np.ones((1, 16), np.float32))
    for _ in range(most):
        try:
            client.infer(name, [given])
        except triton.InferenceServerException:
            return
        note("grpc", 200)

threads = []

def begin(server):
    frozen.append(gc.get_freeze_count())
    threads.extend(threading.Thread(target=ask_http, args=(server.http_port,)) for _ in range(8))
    threads.extend(threading.Thread(target=ask_grpc, args=(server.grpc_port,)) for _ in range(4))
    threads.append(threading.Thread(target=lambda: (enough.wait(), os.kill(os.getpid(), signal.SIGTERM))))
    for thread in threads:
        thread.start()

Server([sys.argv[1]], http_port=0, grpc_port=0).run(begin)
for thread in threads:
    thread.join()
print(json.dumps([accepted, answers, frozen[0], gc.get_freeze_count()]))
"""


def test_the_end_under_load_answers_every_request_that_was_taken(tmp_path):
    path = session_models.save(tmp_path, session_models.affine(support.WIDTH, support.BATCH), "small.onnx")
    done = child_process.run_script(LOAD, path, "small")
    accepted, answers, frozen, left = json.loads(done.stdout.splitlines()[-1])
    assert {protocol: set(found) for protocol, found in answers.items()} == {"http": {200}, "grpc": {200}}
    assert {protocol: len(found) for protocol, found in answers.items()} == accepted
    # Garbage collections do not visit the objects of models and libraries while the server answers requests.
    assert frozen > 10_000
    assert left == 0


def test_a_full_disk_leaves_what_needs_none(tmp_path):
    container = tmp_path / "container.qpc"
    shutil.copy(qaic.compile(session_models.affine(support.WIDTH, support.BATCH)), container)
    model = session_models.save(tmp_path, session_models.affine(100, 2), "model.onnx")

    # No file can grow beyond 4 KiB.
    no_room = ["sh", "-c", 'ulimit -f 8; exec "$@"', "sh"]
    with support.serving(
        container, model, environment={"QAIC_CACHE_DIR": str(tmp_path / "cache")}, before=no_room
    ) as server:
        assert server.infer(X, "container")[0] == 200
        _, index = server.ask("POST", "/v2/repository/index")
        (row,) = [row for row in index if row["name"] == "model"]
        assert row["state"] == "UNAVAILABLE"
        assert "File too large" in row["reason"]
        assert server.ask("GET", "/v2/health/ready")[0] == 503
    assert not list((tmp_path / "cache").rglob("programqpc.bin"))


def test_the_end_answers_all_that_was_sent_before(tmp_path):
    """The request is sent to a stopped process, which has read nothing when the signal arrives."""
    support.add_model(tmp_path, "affine", session_models.affine(support.WIDTH, support.BATCH))
    with support.serving(tmp_path) as server:
        kept = [send(server, body()) for _ in range(8)]
        for connection in kept:
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        idle = socket.create_connection(("127.0.0.1", server.http_port), timeout=60)
        server.process.send_signal(signal.SIGSTOP)
        head = f"POST /v2/models/affine/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body())}\r\n\r\n"
        for connection in kept[:4]:
            connection.sendall(head.encode() + body())
        for connection in kept[4:]:
            # The client sends two requests on one connection and does not wait for the first response.
            connection.sendall(2 * (head.encode() + body()))
        waiting = [send(server, body()) for _ in range(8)]
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGCONT)
        answers = [read_to_end(connection) for connection in (*kept, *waiting)]
        assert [answer.count(b"HTTP/1.1 200") for answer in answers] == 4 * [1] + 4 * [2] + 8 * [1]
        assert read_to_end(idle) == b""
        assert server.process.wait(60) == 0


def read_to_end(connection):
    """Read the data of a server until it closes the connection."""
    with connection:
        parts = []
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def test_the_end_answers_calls_that_wait(patient):
    said = support.run_client(
        f"""
import os, signal
import tritonclient.grpc as triton
client = triton.InferenceServerClient(GRPC)
given = triton.InferInput("x", [1, 16], "FP32"); given.set_data_from_numpy(np.ones((1, 16), np.float32))
import queue, http.client
answers = queue.Queue()
client.async_infer("affine", [given], lambda result, error: answers.put((result, error)))
metrics = ""
while 'qaic_queue_length{{model="affine",version="1"}} 1.0' not in metrics:
    connection = http.client.HTTPConnection(HTTP)
    connection.request("GET", "/metrics")
    metrics = connection.getresponse().read().decode()
os.kill({patient.process.pid}, signal.SIGTERM)
result, error = answers.get(timeout=60)
print(error, result.as_numpy("y").shape)
""",
        patient,
    )
    assert said.strip() == "None (1, 16)"


def test_the_end_answers_calls_that_were_sent_before(tmp_path):
    """The requests are sent to a stopped process, which has read no byte of them when the signal arrives."""
    support.add_model(tmp_path, "affine", session_models.affine(support.WIDTH, support.BATCH))
    with support.serving(tmp_path) as server:
        said = support.run_client(
            f"""
import os, pathlib, queue, signal, time
import tritonclient.grpc as triton
from qaic.serving.server import unread_connections
server, port = {server.process.pid}, {server.grpc_port}
apart = [("grpc.use_local_subchannel_pool", 1)]
clients = [triton.InferenceServerClient(GRPC, channel_args=apart) for _ in range(8)]
given = triton.InferInput("x", [1, 16], "FP32"); given.set_data_from_numpy(np.ones((1, 16), np.float32))
for client in clients:
    client.infer("affine", [given])
os.kill(server, signal.SIGSTOP)
tasks = list(pathlib.Path(f"/proc/{{server}}/task").iterdir())
while not all("State:\tT" in (task / "status").read_text() for task in tasks):
    time.sleep(0.001)
answers = queue.Queue()
for client in clients:
    client.async_infer("affine", [given], lambda result, error: answers.put((result, error)))
while len(unread_connections(port)) < len(clients):
    time.sleep(0.001)
os.kill(server, signal.SIGTERM)
os.kill(server, signal.SIGCONT)
for _ in clients:
    result, error = answers.get(timeout=60)
    print(error, result and result.as_numpy("y").shape)
""",
            server,
        )
        assert said.splitlines() == ["None (1, 16)"] * 8
        assert server.process.wait(60) == 0
    assert server_module.unread_connections(server.grpc_port) == set()


def test_what_clients_send_after_the_end_began_is_not_waited_for(monkeypatch):
    found = [{"first"}, {"first", "second"}, {"second"}]
    monkeypatch.setattr(server_module, "unread_connections", lambda _: found.pop(0))
    asyncio.run(server_module._take_last_calls("127.0.0.1", 1))
    assert found == []


def test_rows_that_are_not_proved_share_no_inference_unless_declared(tmp_path):
    model = session_models.model(
        [
            helper.make_node("ReduceMax", ["x"], ["m"], axes=[0]),
            helper.make_node("Sub", ["m", "c"], ["d"]),
            helper.make_node("Relu", ["d"], ["r"]),
            helper.make_node("Add", ["x", "r"], ["y"]),
        ],
        [("x", "float32", [2, 16])],
        [("y", "float32", [2, 16])],
        {"c": np.float32(100)},
    )
    support.add_model(tmp_path, "alone", model)
    support.add_model(tmp_path, "asked", model, more="max_batch_size: 2")
    support.add_model(tmp_path, "declared", model, more="max_batch_size: 2 dynamic_batching { }")
    with support.serving(tmp_path) as server:
        statuses = {name: server.infer(X, name)[0] for name in ("alone", "asked", "declared")}
        assert statuses == {"alone": 400, "asked": 400, "declared": 200}
        assert server.infer(np.ones((2, 16), np.float32), "asked")[0] == 200
        assert server.end() == 0
        (line,) = [line for line in server.log if "'alone' is served without batches" in line]
        assert "ReduceMax 'm' works across the batch" in line
        assert "dynamic_batching { }" in line
