"""Repositories, servers in separate processes, and a simple client, for the tests of the server."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
from onnx import helper

import qaic
import session_models
from child_process import started

WIDTH = 16
BATCH = 8
CONFIG = """
name: "{name}"
backend: "qaic"
instance_group [ {{ kind: KIND_MODEL }} ]
parameters [
  {{ key: "device_id" value: {{ string_value: "-1" }} }},
  {{ key: "set_size" value: {{ string_value: "4" }} }},
  {{ key: "no_of_activations" value: {{ string_value: "1" }} }}
]
{more}
"""


def several_types():
    """Inputs and outputs of several types, without a common first dimension."""
    return session_models.model(
        [
            helper.make_node("Add", ["half", "half"], ["half_out"]),
            helper.make_node("Add", ["count", "count"], ["count_out"]),
            helper.make_node("Not", ["flag"], ["flag_out"]),
        ],
        [("half", "float16", [3]), ("count", "int64", [2, 2]), ("flag", "bool", [1])],
        [("half_out", "float16", [3]), ("count_out", "int64", [2, 2]), ("flag_out", "bool", [1])],
    )


def add_model(root, name, model, *, version=1, more="", below="."):
    """Write a model into a Triton repository."""
    folder = root / name / str(version) / below
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(qaic.compile(model), folder / "programqpc.bin")
    (root / name / "config.pbtxt").write_text(CONFIG.format(name=name, more=more))


def make_repository(root):
    """Write models that load and models that do not."""
    add_model(root, "affine", session_models.affine(WIDTH, BATCH), below="deep/er")
    add_model(root, "types", several_types())
    (root / "broken" / "1").mkdir(parents=True)
    (root / "broken" / "config.pbtxt").write_text('backend: "qaic" max_batch_size: [')
    (root / "empty" / "1").mkdir(parents=True)
    (root / "empty" / "config.pbtxt").write_text('backend: "qaic"')
    add_model(root, "damaged", session_models.affine(4, 2))
    program = root / "damaged" / "1" / "programqpc.bin"
    program.write_bytes(program.read_bytes()[:100])
    add_model(root, "foreign", session_models.affine(4, 2))
    (root / "foreign" / "config.pbtxt").write_text('backend: "onnxruntime"')
    return root


class RunningServer:
    """A server in a separate process."""

    def __init__(self, process):
        self.process = process
        self.http_port = self.grpc_port = None
        self.log = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line)

    def await_ports(self):
        """Wait until it answers."""
        line = self.process.stdout.readline()
        if not line.startswith("serving on http://127.0.0.1:"):
            self.process.wait(60)
            self._reader.join()
            raise AssertionError("".join(self.log))
        self.http_port, self.grpc_port = (int(part.rsplit(":", 1)[1]) for part in line.split(" and "))

    def connect(self, timeout=60):
        """Open an HTTP connection."""
        return http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=timeout)

    def ask(self, method, path, body=None, headers=None):
        """Send one request; return its status and its JSON, or its bytes."""
        connection = self.connect()
        try:
            if isinstance(body, dict | list):
                body = json.dumps(body).encode()
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        is_json = answer.headers.get("content-type", "").startswith("application/json")
        return answer.status, json.loads(data) if is_json else data

    def infer(self, x, model="affine"):
        """Send one inference request in JSON."""
        body = {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}]
        }
        return self.ask("POST", f"/v2/models/{model}/infer", body)

    def end(self, number=signal.SIGTERM):
        """Send a signal; return the exit code."""
        self.process.send_signal(number)
        code = self.process.wait()
        self._reader.join()
        return code


@contextlib.contextmanager
def serving(*paths, arguments=(), environment=None, before=()):
    """Run ``openqaic serve`` on free ports of the loopback interface."""
    with started(
        [
            *before,
            sys.executable,
            "-m",
            "qaic",
            "serve",
            *map(str, paths),
            "--http",
            "0",
            "--grpc",
            "0",
            *arguments,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    ) as process:
        server = RunningServer(process)
        try:
            server.await_ports()
            yield server
        finally:
            process.kill()
            server._reader.join()


def run_client(source, server, limit=120):
    """Run Python source as a client in a separate process, with the names ``HTTP``, ``GRPC`` and ``np``."""
    head = (
        f"import numpy as np\nHTTP = '127.0.0.1:{server.http_port}'\nGRPC = '127.0.0.1:{server.grpc_port}'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", head + source],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def expected(x):
    """Return the results of ``affine`` for rows in a separate inference."""
    full = np.zeros((BATCH, WIDTH), np.float32)
    full[: len(x)] = x
    with qaic.Session(session_models.affine(WIDTH, BATCH)) as session:
        return session.run(x=full)["y"][: len(x)]
