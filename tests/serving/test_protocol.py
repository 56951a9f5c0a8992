"""Triton's clients, each in a separate process, receive the same results as a session."""

import json

import numpy as np
import pytest

import serving_support as support

COMMON = """
from concurrent.futures import ThreadPoolExecutor
import tritonclient.{protocol} as triton
client = triton.InferenceServerClient({address})
def infer(x, model="affine", **options):
    given = triton.InferInput("x", list(x.shape), "FP32")
    given.set_data_from_numpy(x, **IN)
    return client.infer(model, [given], outputs=[triton.InferRequestedOutput("y", **OUT)], **options)
x = np.random.default_rng(3).normal(size=(3, 16)).astype(np.float32)
"""
PROTOCOLS = {
    "json": COMMON.format(protocol="http", address="HTTP") + "IN = OUT = dict(binary_data=False)\n",
    "binary": COMMON.format(protocol="http", address="HTTP") + "IN = OUT = dict(binary_data=True)\n",
    "grpc": COMMON.format(protocol="grpc", address="GRPC") + "IN = OUT = {}\n",
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_results_are_those_of_a_session_bit_for_bit(server, protocol):
    said = support.run_client(
        PROTOCOLS[protocol]
        + """
answer = infer(x, request_id="42")
response = answer.get_response()
name = response["model_name"] if isinstance(response, dict) else response.model_name
id = response["id"] if isinstance(response, dict) else response.id
assert (name, id) == ("affine", "42")
print(answer.as_numpy("y").tobytes().hex())
""",
        server,
    )
    x = np.random.default_rng(3).normal(size=(3, 16)).astype(np.float32)
    assert said.strip() == support.expected(x).tobytes().hex()


@pytest.mark.parametrize("protocol", ["binary", "grpc"])
def test_all_types_travel_as_bytes(server, protocol):
    said = support.run_client(
        PROTOCOLS[protocol]
        + """
feeds = [("half", np.array([0.5, -2, 65504], np.float16), "FP16"),
         ("count", np.array([[1, -2], [3, 2**40]]), "INT64"), ("flag", np.array([True]), "BOOL")]
inputs = []
for name, array, datatype in feeds:
    inputs.append(triton.InferInput(name, list(array.shape), datatype))
    inputs[-1].set_data_from_numpy(array)
answer = client.infer("types", inputs)
for name in ("half_out", "count_out", "flag_out"):
    array = answer.as_numpy(name)
    print(array.dtype, array.ravel().tolist())
""",
        server,
    )
    assert said.splitlines() == [
        "float16 [1.0, -4.0, inf]",
        f"int64 [2, -4, 6, {2**41}]",
        "bool [False]",
    ]


@pytest.mark.parametrize("protocol", ["binary", "grpc"])
def test_descriptions(server, protocol):
    said = support.run_client(
        PROTOCOLS[protocol]
        + """
import json
infer(x)
as_json = {} if triton.__name__.endswith("http") else dict(as_json=True)
config = client.get_model_config("affine", **as_json)
statistics = client.get_inference_statistics("affine", **as_json)
print(json.dumps([client.is_server_live(), client.is_server_ready(), client.is_model_ready("affine"),
    client.get_server_metadata(**as_json), client.get_model_metadata("affine", **as_json),
    config.get("config", config), statistics, client.get_model_repository_index(**as_json)]))
""",
        server,
    )
    live, ready, model_ready, metadata, model, config, statistics, index = json.loads(said)
    # Some models could not be loaded.
    assert (live, ready, model_ready) == (True, False, True)
    assert "binary_tensor_data" in metadata["extensions"]
    assert model["versions"] == ["1"]
    assert [int(size) for size in model["inputs"][0]["shape"]] == [-1, 16]
    assert config["max_batch_size"] == 8
    assert config["parameters"]["set_size"] == {"string_value": "4"}
    (stats,) = statistics["model_stats"]
    assert int(stats["inference_stats"]["success"]["count"]) >= 1
    assert int(stats["inference_count"]) >= 3
    rows = index["models"] if isinstance(index, dict) else index
    states = {row["name"]: row.get("state") for row in rows}
    assert states["affine"] == states["types"] == "READY"
    assert {name for name, state in states.items() if state == "UNAVAILABLE"} == {
        "broken",
        "damaged",
        "empty",
        "foreign",
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_many_clients_at_once_get_their_own_rows(server, protocol):
    support.run_client(
        PROTOCOLS[protocol]
        + """
import threading
alone = {}
xs = [np.random.default_rng(seed).normal(size=(1 + seed % 4, 16)).astype(np.float32) for seed in range(40)]
expected = [infer(x).as_numpy("y").tobytes() for x in xs]
def client_thread(seed):
    global_client = triton.InferenceServerClient(HTTP if triton.__name__.endswith("http") else GRPC)
    for turn in range(20):
        index = (seed * 7 + turn) % 40
        x = xs[index]
        given = triton.InferInput("x", list(x.shape), "FP32")
        given.set_data_from_numpy(x, **IN)
        found = global_client.infer("affine", [given], outputs=[triton.InferRequestedOutput("y", **OUT)])
        assert found.as_numpy("y").tobytes() == expected[index]
    global_client.close()
    return True
if triton.__name__.endswith("http"):
    from gevent.threadpool import ThreadPool
    pool = ThreadPool(8)
    assert all(pool.map(client_thread, range(8)))
else:
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(client_thread, range(8)))
""",
        server,
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_refusals_say_what_the_library_says(server, protocol):
    said = support.run_client(
        PROTOCOLS[protocol]
        + """
def refused(call):
    try:
        call()
    except triton.InferenceServerException as error:
        print(error.status(), "|", error.message())
refused(lambda: infer(np.zeros((9, 16), np.float32)))
refused(lambda: infer(np.zeros((1, 3), np.float32)))
refused(lambda: infer(x, model="affin"))
refused(lambda: infer(x, model="broken"))
given = triton.InferInput("z", [1], "FP32"); given.set_data_from_numpy(np.zeros(1, np.float32), **IN)
refused(lambda: client.infer("affine", [given]))
given = triton.InferInput("x", [1, 16], "FP64"); given.set_data_from_numpy(np.full((1, 16), 1e300), **IN)
refused(lambda: client.infer("affine", [given]))
""",
        server,
    )
    bad, unknown = (
        ("StatusCode.INVALID_ARGUMENT", "StatusCode.NOT_FOUND") if protocol == "grpc" else ("400", "404")
    )
    lines = said.splitlines()
    statuses = [line.split(" | ")[0] for line in lines]
    assert statuses == [bad, bad, unknown, unknown, bad, bad]
    assert "x [9, 16]; allowed are x [1 to 8, 16]" in lines[0]
    assert "model 'affin' does not exist" in lines[2]
    assert "config.pbtxt is not a model configuration" in lines[3]
    assert "input 'z' does not exist; the program has ['x']" in lines[4]
    assert "contains 1e+300; float32 holds numbers up to" in lines[5]


def test_a_model_is_replaced_and_unloaded_while_clients_ask(server):
    said = support.run_client(
        PROTOCOLS["binary"]
        + """
from gevent.threadpool import ThreadPool
done = []
def ask():
    own = triton.InferenceServerClient(HTTP)
    count = 0
    while not done:
        given = triton.InferInput("x", [3, 16], "FP32")
        given.set_data_from_numpy(x)
        own.infer("affine", [given])
        count += 1
    own.close()
    return count
pool = ThreadPool(2)
counts = [pool.spawn(ask) for _ in range(2)]
for _ in range(5):
    client.load_model("affine")
done.append(True)
print(min(count.get() for count in counts))
client.unload_model("types")
print(client.is_model_ready("types"))
client.load_model("types")
print(client.is_model_ready("types"))
try:
    client.load_model("damaged")
except triton.InferenceServerException as error:
    print(error.status())
""",
        server,
    )
    asked, *rest = said.splitlines()
    assert int(asked) >= 1
    assert rest == ["False", "True", "400"]


def test_metrics(server):
    x = np.zeros((2, 16), np.float32)
    assert server.infer(x)[0] == 200
    status, text = server.ask("GET", "/metrics")
    assert status == 200
    lines = dict(line.rsplit(" ", 1) for line in text.decode().splitlines() if not line.startswith("#"))
    labels = '{model="affine",version="1"}'
    assert float(lines["qaic_request_duration_seconds_count" + labels]) >= 1
    assert float(lines["qaic_batch_rows_sum" + labels]) >= 2
    assert float(lines["qaic_device_busy_seconds_total" + labels]) > 0
    assert float(lines["qaic_queue_length" + labels]) == 0
    assert float(lines["qaic_model_ready" + labels]) == 1
