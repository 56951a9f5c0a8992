"""Invalid requests get a 4xx response with the reason; meanwhile, the server answers other requests."""

import argparse
import json
import resource
import shutil
import socket

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

import qaic
import serving_support as support
import session_models
from qaic.cli.openqaic import main, parser
from qaic.errors import InputError, OptionError, QaicError
from qaic.serving.model_config import read_settings
from qaic.serving.model_sources import find_sources
from qaic.serving.repository import Repository
from qaic.serving.request_body import read_request, write_answer
from qaic.serving.server import Server
from qaic.serving.server_state import failure_of
from qaic.serving.statistics import Metrics, ModelStatistics

X = np.ones((1, 16), np.float32)
INFER = "/v2/models/affine/infer"


@pytest.fixture(scope="module")
def small(repository):
    """A server with a limit of 1 MiB for a body, and 1 s to receive it."""
    arguments = ["--max-body", "1", "--body-timeout", "1"]
    with support.serving(repository, arguments=arguments) as server:
        yield server


def tensor(**changes):
    return {"name": "x", "datatype": "FP32", "shape": [1, 16], "data": [0.0] * 16} | changes


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"", "the body is not JSON"),
        (b"{", "the body is not JSON"),
        (b"[" * 30_000, "the body is not JSON"),
        (b"[" * 100_000, "more than 32768 tensors or fields"),
        (b'{"inputs":' + b"[" * 500 + b"]" * 500 + b"}", "'inputs' is not a list of objects"),
        (b"\xff\xfe", "the body is not JSON"),
        (b"[]", "not a JSON object"),
        ({}, "'inputs' is not a list"),
        ({"inputs": [[]]}, "'inputs' is not a list of objects"),
        ({"inputs": []}, "missing inputs: x"),
        ({"inputs": [{}]}, "no 'name'"),
        ({"inputs": [tensor(name=3)]}, "no 'name'"),
        ({"inputs": [tensor(datatype=None)]}, "no 'datatype'"),
        ({"inputs": [tensor(datatype="BYTES")]}, "datatype 'BYTES'"),
        ({"inputs": [tensor(datatype="FP16")]}, "send it as binary data"),
        ({"inputs": [tensor(shape=[1, -16])]}, "not a whole number of at least 0"),
        ({"inputs": [tensor(shape=[1, 16.0])]}, "not a whole number of at least 0"),
        ({"inputs": [tensor(shape=[2**62, 2**62])]}, "16 numbers"),
        ({"inputs": [tensor(shape=[1] * 100)]}, "no 'shape'"),
        ({"inputs": [tensor(shape="1,16")]}, "no 'shape'"),
        ({"inputs": [tensor(data=None)]}, "no 'data'"),
        ({"inputs": [tensor(data=[0.0] * 15)]}, "15 numbers"),
        ({"inputs": [tensor(data=[[0.0] * 15, [0.0]])]}, "its lists differ"),
        ({"inputs": [tensor(data=["1"] * 16)]}, "not an array of numbers"),
        ({"inputs": [tensor(data=[None] * 16)]}, "not an array of numbers"),
        (
            {"inputs": [tensor(data=[float("nan")] * 16)]},
            "'data' of input 'x': it is not JSON (NaN and Infinity",
        ),
        ({"inputs": [tensor(datatype="INT64", data=[10**30] * 16)]}, "does not convert"),
        ({"inputs": [tensor(datatype="INT32", data=[0.5] * 16)]}, "does not convert"),
        ({"inputs": [tensor(datatype="INT8", data=[300] * 16)]}, "int8 holds -128 to 127"),
        ({"inputs": [tensor(), tensor()]}, "input 'x' is given twice"),
        ({"inputs": [tensor(parameters={"binary_data_size": 64})]}, "'data' and 'binary_data_size'"),
        ({"inputs": [tensor(parameters=[])]}, "'parameters' is not an object"),
        ({"inputs": [tensor(parameters={"shared_memory_region": "r"})]}, "shared memory"),
        ({"inputs": [tensor()], "outputs": [{"name": "z"}]}, "output 'z' does not exist"),
        ({"inputs": [tensor(name=str(i)) for i in range(18)]}, "18 tensors; 17 is the limit"),
        ({"inputs": [tensor()], "outputs": [{"name": "y"}] * 18}, "18 tensors; 17 is the limit"),
        ({"inputs": [tensor()], "outputs": "y"}, "'outputs' is not a list"),
        ({"inputs": [tensor()], "id": 3}, "'id' is not a string"),
        ({"inputs": [tensor()], "parameters": {"timeout": -1}}, "microseconds"),
        ({"inputs": [tensor(shape=[1, 4, 4])]}, r"x [1, 4, 4]; allowed are x [1 to 8, 16]"),
    ],
)
def test_json_that_is_wrong(server, body, part):
    status, answer = server.ask("POST", INFER, body)
    assert status == 400, answer
    assert part in answer["error"]
    assert server.infer(X)[0] == 200


def binary(head, data, length=None):
    encoded = json.dumps(head).encode()
    return encoded + data, {
        "inference-header-content-length": str(len(encoded) if length is None else length)
    }


@pytest.mark.parametrize(
    ("size", "nbytes", "length", "part"),
    [
        (65, 64, None, "declares 65 bytes; 64 follow"),
        (2**70, 64, None, "e+21 bytes; 64 follow"),
        (2**60, 64, None, "64 follow"),
        (-1, 64, None, "declares -1 bytes"),
        (True, 64, None, "declares True bytes"),
        ("64", 64, None, "declares 64 bytes"),
        (60, 60, None, "has 60 bytes of data; FP32 of shape [1, 16] has 64"),
        (64, 70, None, "6 bytes follow"),
        (64, 64, 10**9, "the header declares 1000000000 bytes"),
        (64, 64, -3, "the header declares -3 bytes"),
        (64, 64, 5, "the body is not JSON"),
        (64, 64, "0" * 5000, "bytes of JSON"),
    ],
)
def test_sizes_that_lie(server, size, nbytes, length, part):
    head = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 16]}]}
    head["inputs"][0]["parameters"] = {"binary_data_size": size}
    body, headers = binary(head, bytes(nbytes), length)
    status, answer = server.ask("POST", INFER, body, headers)
    assert status == 400, answer
    assert part in answer["error"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
TENSOR = st.fixed_dictionaries(
    {},
    optional={
        "name": st.just("x") | JSON,
        "datatype": st.sampled_from(["FP32", "FP16", "INT8", "BOOL", "UINT64", "BYTES"]) | JSON,
        "shape": st.lists(st.integers(-1, 5), max_size=4) | JSON,
        "data": st.lists(st.floats() | st.integers() | st.booleans() | JSON, max_size=8) | JSON,
        "parameters": st.fixed_dictionaries({}, optional={"binary_data_size": st.integers(-1, 40) | JSON}),
    },
)
REQUEST = st.fixed_dictionaries(
    {},
    optional={
        "inputs": st.lists(TENSOR, max_size=3) | JSON,
        "outputs": st.lists(TENSOR, max_size=2) | JSON,
        "parameters": st.dictionaries(st.sampled_from(["timeout", "binary_data_output"]), JSON) | JSON,
        "id": st.text() | JSON,
    },
)


@given(request=REQUEST, data=st.binary(max_size=40), length=st.none() | st.integers(-5, 400))
def test_any_body_is_read_or_refused(request, data, length):
    head = json.dumps(request).encode()
    header = None if length is None and not data else str(len(head) + (length or 0) % 3)
    try:
        size, decode = read_request(head + data, header)
        inputs = decode().inputs
    except InputError:
        return
    assert all(array.nbytes <= 8 * (len(head) + len(data)) for array in inputs.values())
    decoded = [one["name"] for one in request["inputs"] if "data" in one]
    assert sum(inputs[name].nbytes for name in decoded) <= size <= 4 * len(head)


@given(
    arrays=st.lists(
        st.tuples(
            st.sampled_from(["float32", "float64", "int8", "uint64", "bool", "int32"]),
            st.lists(st.integers(0, 4), max_size=3),
        ),
        min_size=1,
        max_size=3,
    ),
    is_binary=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_what_is_written_reads_back_bit_for_bit(arrays, is_binary, seed):
    rng = np.random.default_rng(seed)
    outputs = {
        f"o{index}": (rng.normal(size=shape) * 100).astype(dtype)
        for index, (dtype, shape) in enumerate(arrays)
    }
    asked = read_request(
        json.dumps({"inputs": [], "parameters": {"binary_data_output": is_binary}}).encode(), None
    )[1]()
    parts, head_length = write_answer(asked, "m", 1, outputs)
    body = b"".join(parts)
    answer = json.loads(body[:head_length])
    # A response has the form of a request; only the names of its lists differ.
    answer["inputs"] = answer.pop("outputs")
    again = read_request(
        json.dumps(answer).encode() + (body[head_length:] if head_length else b""),
        str(len(json.dumps(answer).encode())),
    )[1]()
    assert {name: (a.dtype, a.shape, a.tobytes()) for name, a in again.inputs.items()} == {
        name: (a.dtype, a.shape, a.tobytes()) for name, a in outputs.items()
    }


CONFIG = support.CONFIG.format(
    name="m",
    more="max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 10 "
    "default_queue_policy { max_queue_size: 2 } } version_policy: { specific: { versions: [1] } }",
).encode()


@given(
    changes=st.lists(
        st.tuples(
            st.integers(0, len(CONFIG)),
            st.integers(0, 20),
            st.binary(max_size=6)
            | st.sampled_from([b"-1", b"9" * 400, b"nan", b"{", b"}", b"[", b'"', b"\0"]),
        ),
        max_size=4,
    )
)
def test_any_configuration_is_read_or_refused(tmp_path_factory, changes):
    config = CONFIG
    for place, length, more in changes:
        config = config[:place] + more + config[place + length :]
    path = tmp_path_factory.mktemp("config") / "config.pbtxt"
    path.write_bytes(config)
    try:
        settings = read_settings("m", path)
    except OptionError:
        assert changes
        return
    assert changes or settings.max_batch_size == 8


@given(data=st.data())
def test_a_damaged_model_is_no_model(tmp_path_factory, data):
    """A client that requests the load receives the reason, and the server keeps running."""
    folder = tmp_path_factory.mktemp("models")
    onnx_path = session_models.save(folder, session_models.affine(4, 2), "small.onnx")
    container = folder / "small.qpc"
    shutil.copy(qaic.compile(onnx_path), container)
    path = data.draw(st.sampled_from([onnx_path, container]))
    content = path.read_bytes()
    place, length = data.draw(st.integers(0, len(content))), data.draw(st.integers(0, 40))
    bad = (
        data.draw(st.sampled_from([b"", b"\xff" * length, b"\0" * 8, b"9" * 30])) + content[place + length :]
    )
    path.write_bytes(content[:place] + bad)
    repository = Repository(lambda: find_sources([path]), drain_s=0)
    failures = []
    try:
        repository.load("small")
    except (QaicError, OSError) as error:
        failures.append(failure_of(error).http)
    repository.close()
    assert failures in ([], [400], [503])


def flags_of_serve():
    """Flags of the server."""
    made = parser(frozenset({"serve"}))
    (commands,) = (one for one in made._actions if isinstance(one, argparse._SubParsersAction))
    return sorted(commands.choices["serve"]._option_string_actions)


VALUES = ["", "0", "-1", "1", "9" * 5000, "nan", "1e999", "no", "::1", "a\0b", "\udcff", "\x1b[31m", ".."]


@given(given=st.lists(st.tuples(st.sampled_from(flags_of_serve()), st.sampled_from(VALUES)), max_size=4))
def test_no_argument_of_a_server_is_a_defect(tmp_path_factory, given):
    with pytest.MonkeyPatch.context() as patch:
        # The server loads nothing and opens no port.
        patch.setattr(Server, "run", lambda _server, _on_ready: None)
        patch.setattr("qaic.serving.server.log_to_stderr", lambda **_: None)
        patch.chdir(tmp_path_factory.mktemp("serve"))
        try:
            code = main(["serve", ".", *(word for pair in given for word in pair)])
        except SystemExit as usage:
            code = usage.code
    assert code in {0, 1, 2}


def test_names_in_metrics_are_printable():
    metrics = Metrics(list)
    ModelStatistics("a\x1b[31m\n\u202e", 1, metrics).request_ended(queue_ns=0, run_ns=0, is_success=True)
    text = generate_latest(metrics.registry).decode()
    assert "qaic_requests_total{" in text
    assert all(line.isprintable() for line in text.splitlines())


def test_bodies_beyond_the_limit_are_not_read(small):
    assert small.ask("POST", INFER, b"x" * (1 << 20))[0] == 400
    connection = socket.create_connection(("127.0.0.1", small.http_port))
    with connection:
        # The client never sends a byte of the body.
        connection.sendall(f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: {10**15}\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
    chunked = socket.create_connection(("127.0.0.1", small.http_port))
    with chunked:
        chunked.sendall(f"POST {INFER} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        try:
            for _ in range(17):
                chunked.sendall(piece)
        except OSError:
            # The server has responded and closed the connection.
            pass
        assert chunked.recv(100).startswith(b"HTTP/1.1 413")
    said = support.run_client(
        """
import tritonclient.grpc as triton
x = np.zeros((1, 2**20), np.float32)
given = triton.InferInput("x", list(x.shape), "FP32"); given.set_data_from_numpy(x)
try:
    triton.InferenceServerClient(GRPC).infer("affine", [given])
except triton.InferenceServerException as error:
    print(error.status())
""",
        small,
    )
    assert said.strip() == "StatusCode.RESOURCE_EXHAUSTED"
    assert small.infer(X)[0] == 200


def test_a_slow_sender_is_given_up(small):
    with socket.create_connection(("127.0.0.1", small.http_port)) as connection:
        connection.sendall(f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{{".encode())
        connection.settimeout(600)
        assert connection.recv(100).startswith(b"HTTP/1.1 408")
    assert small.infer(X)[0] == 200


@pytest.mark.parametrize("header", [{"content-encoding": "gzip"}, {"transfer-encoding": "gzip, chunked"}])
def test_compressed_bodies_are_refused(server, header):
    status, answer = server.ask("POST", INFER, b"1\r\nx\r\n0\r\n\r\n", header)
    assert (status, "has the coding 'gzip" in answer["error"]) == (415, True)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v2/models/none", None, 404),
        ("GET", "/v2/models/affine/versions/7", None, 404),
        ("GET", "/v2/models/affine/versions/..", None, 404),
        ("GET", "/v2/models/affine/versions/" + "1" * 5000, None, 404),
        ("GET", "/v2/models/" + "a" * 5000, None, 404),
        ("GET", "/v2/models/..%2f..%2fetc", None, 404),
        ("GET", INFER, None, 405),
        ("POST", "/v2/repository/models/none/load", None, 404),
        ("POST", "/v2/repository/models/..%2fsecret/load", None, 404),
        ("POST", "/v2/repository/models/none/unload", None, 404),
        ("POST", "/v2/repository/models/affine/load", {"parameters": {"config": "{}"}}, 400),
        ("POST", "/v2/repository/index", [], 400),
    ],
)
def test_paths_that_are_wrong(server, method, path, body, status):
    found, answer = server.ask(method, path, body)
    assert found == status
    assert answer["error"]


def test_a_thousand_connections(server):
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < 2500:
        pytest.skip("this user may not open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    head = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n"
    sockets = [socket.create_connection(("127.0.0.1", server.http_port), timeout=60) for _ in range(1000)]
    try:
        for one in sockets:
            one.sendall(head)
        # All connections are open and idle, and the server accepts one more request.
        assert server.infer(X)[0] == 200
        for one in sockets:
            one.sendall(b"\r\n")
        assert all(one.recv(15) == b"HTTP/1.1 200 OK" for one in sockets)
    finally:
        for one in sockets:
            one.close()


def test_a_client_that_goes_in_the_middle_of_its_body(server):
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.http_port)) as connection:
            connection.sendall(f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: 999\r\n\r\n{{".encode())
    assert server.infer(X)[0] == 200


def test_typed_fields_of_messages(server):
    said = support.run_client(
        """
import grpc
from tritonclient.grpc import service_pb2 as pb, service_pb2_grpc
stub = service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(GRPC))
def ask(count=16, shape=(1, 16), datatype="FP32", raw=(), **contents):
    request = pb.ModelInferRequest(model_name="affine", raw_input_contents=raw)
    request.inputs.add(name="x", datatype=datatype, shape=shape).contents.fp32_contents.extend([1.0] * count)
    try:
        answer = stub.ModelInfer(request)
        print(np.frombuffer(answer.raw_output_contents[0], np.float32).shape)
    except grpc.RpcError as error:
        print(error.code().name, error.details())
ask()
ask(count=15)
ask(shape=(1, -16))
ask(shape=(2**40, 2**40))
ask(datatype="FP16")
ask(datatype="STRING")
ask(raw=[b"1", b"2"])
ask(raw=[b"123"])
request = pb.ModelInferRequest(model_name="affine")
request.inputs.add(name="n" * 2**20, datatype="FP32", shape=[1]).contents.fp32_contents.append(1)
try:
    stub.ModelInfer(request)
except grpc.RpcError as error:
    print(error.code().name, error.details())
""",
        server,
    )
    answered, *refused = said.splitlines()
    assert answered == "(16,)"
    assert all(line.startswith("INVALID_ARGUMENT") for line in refused), refused
    for line, part in zip(
        refused,
        [
            "15 numbers in fp32_contents",
            "not a whole number",
            "16 numbers in fp32_contents",
            "raw_input_contents",
            "datatype 'STRING'",
            "2 entries; 1 expected",
            "3 bytes",
            "nnnn",
        ],
        strict=True,
    ):
        assert part in line
