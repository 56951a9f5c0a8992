"""The examples of serving run as described."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import qaic
import serving_support as support
from child_process import started
from guide_blocks import blocks

EXAMPLES = Path(__file__).parents[2] / "examples" / "serving"


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def run(name, *arguments):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def ports(tmp_path_factory):
    http, grpc = free_ports(2)
    repository = tmp_path_factory.mktemp("example") / "model_repository"
    with started(
        [sys.executable, str(EXAMPLES / "server.py"), str(repository), str(http), str(grpc)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == f"serving {repository}\n"
        # The server loads the model, then listens.
        while process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", grpc)).close()
            except ConnectionRefusedError:
                continue
            break
        yield http, grpc
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


def test_client(ports):
    said = run("client.py", *ports)
    assert said.startswith("y (1, 4) [")
    assert said.endswith("] the same by gRPC\n")


def test_code_of_the_guide(tmp_path):
    (block,) = [one for one in blocks() if one.page == "docs/guide/serving.md" and one.language == "python"]
    assert "127.0.0.1:8000" in block.code
    model = tmp_path / "model.onnx"
    subprocess.run([sys.executable, str(EXAMPLES.parent / "make_model.py"), str(model)], check=True)
    with support.serving(model) as server:
        source = block.code.replace("127.0.0.1:8000", f"127.0.0.1:{server.http_port}")
        done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with qaic.Session(model) as session:
        assert done.stdout == f"{session.run(np.ones((1, 16), np.float32))['y']}\n"


def test_batch_job(ports, tmp_path):
    rows = np.random.default_rng(0).normal(size=(501, 16)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    said = run("batch_job.py", tmp_path / "rows.npy", tmp_path / "results.npy", ports[1])
    assert said.startswith("501 rows, results of shape (501, 4)")
    weight = np.linspace(-1, 1, 64, dtype=np.float32).reshape(16, 4)
    found = np.load(tmp_path / "results.npy")
    np.testing.assert_allclose(found, np.maximum(rows @ weight, 0), rtol=1e-4, atol=1e-5)
