"""``qaic.ray.deployment``: the routes and the batches of the server, in replicas of Ray Serve."""

import http.client
import json
import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import qaic.ray
import session_models
from qaic.errors import InputShapeError, StateError
from serving_support import BATCH, WIDTH, expected


@pytest.fixture(scope="module")
def serve(cluster):
    from ray import serve

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    yield serve, port
    serve.shutdown()


@pytest.fixture(scope="module")
def handle(serve, tmp_path_factory):
    """The application for a file, whose name is that of the model; settings of Serve are passed through."""
    path = session_models.save(
        tmp_path_factory.mktemp("model"), session_models.affine(WIDTH, BATCH), "affine.onnx"
    )
    application = qaic.ray.deployment(
        path,
        options={"set_size": 4},
        ray_actor_options={"num_cpus": 0.2},
        autoscaling_config={"min_replicas": 2, "max_replicas": 2},
        max_queue_delay_s=0.02,
    )
    return serve[0].run(application, route_prefix="/")


@pytest.fixture
def ask(serve, handle):
    def ask(path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", serve[1], timeout=60)
        try:
            connection.request("GET" if body is None else "POST", path, body and json.dumps(body))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    return ask


def request(x):
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}]}


def test_routes_are_those_of_the_protocol(ask):
    assert ask("/v2")[1]["name"] == "openqaic"
    assert ask("/v2/health/ready") == (200, {"ready": True})
    status, metadata = ask("/v2/models/affine")
    assert status == 200
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, WIDTH]}]
    assert ask("/v2/models/other")[0] == 404
    assert ask("/v2/models/affine/infer", {"inputs": 1})[0] == 400
    # Serve replaces models, not clients.
    assert ask("/v2/repository/models/affine/unload", {})[0] == 403


def test_requests_share_batches_and_keep_their_bits(ask):
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=(1 + i % 3, WIDTH)).astype(np.float32) for i in range(60)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda x: ask("/v2/models/affine/infer", request(x)), inputs))
    for x, (status, answer) in zip(inputs, answers, strict=True):
        assert status == 200
        y = np.array(answer["outputs"][0]["data"], np.float32).reshape(answer["outputs"][0]["shape"])
        assert y.tobytes() == expected(x).tobytes()
    _, statistics = ask("/v2/models/affine/stats")
    (model,) = statistics["model_stats"]
    assert model["inference_count"] > model["execution_count"] > 0


def test_another_deployment_asks_by_the_handle(handle):
    x = np.ones((3, WIDTH), np.float32)
    assert handle.infer.remote({"x": x}).result()["y"].tobytes() == expected(x).tobytes()
    with pytest.raises(InputShapeError, match=r"the inputs are x \[3, 4\]"):
        handle.infer.remote({"x": x[:, :4]}).result()


def test_settings_of_serve_are_passed_through(serve, handle):
    (deployed,) = serve[0].status().applications["default"].deployments.values()
    assert deployed.replica_states == {"RUNNING": 2}


def test_what_keeps_state_is_refused_at_once(cluster):
    counter = session_models.model(
        [session_models.helper.make_node("Add", ["x", "past"], ["past_RetainedState"])],
        [("x", "float32", [1, 3]), ("past", "float32", [1, 3])],
        [("past_RetainedState", "float32", [1, 3])],
    )
    with pytest.raises(StateError, match="all requests would share it"):
        qaic.ray.deployment(counter, options={"retained_state": True})
    with pytest.raises(StateError, match="all requests would share it"):
        qaic.ray.map_batches(cluster.data.range(1), counter, options={"retained_state": True})
