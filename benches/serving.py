"""Compare the server with other servers for onnxruntime: requests per second, latency, own overhead.

python benches/serving.py --kserve PYTHON --mlserver PYTHON            six minutes on an idle machine
python benches/serving.py --kserve PYTHON --mlserver PYTHON --quick    a short run

Run it in an environment with the extra ``serve`` and the dependency group ``scale`` (`make test-scale`
creates one). Each ``PYTHON`` has one of the servers and onnxruntime, because kserve, MLServer and Triton's
client cannot share a process. Servers, clients and this program are separate processes on the loopback
interface. The servers are measured in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper, numpy_helper
from python.harness.row import table
from serving_mlserver import write_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
WIDTH, LAYERS, BATCH = 1024, 3, 16
BATCH_SIZES = (1, 2, 4, 8, BATCH)
CONCURRENCY = (1, 8, 64)
#: JSON with the measurements of a client follows this text.
RESULT = "result "


def model(path: Path, batch: int | str, width: int, layers: int) -> Path:
    """Write a network of fully connected layers, whose weights are read once per batch."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array((rng.normal(size=(width, width)) / width**0.5).astype(np.float32), f"w{i}")
        for i in range(layers)
    ]
    nodes = []
    last = "x"
    for i in range(layers):
        nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"]))
        last = "y" if i == layers - 1 else f"r{i}"
        nodes.append(helper.make_node("Relu", [f"m{i}"], [last]))
    values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [batch, width]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "layers", values[:1], values[1:], weights)
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(built.SerializeToString())
    return path


def with_batch_sizes(path: Path) -> Path:
    """Compile a model for batches of 1, 2, 4, 8 and 16 rows; return a container with the model's name."""
    import qaic

    sizes = path.with_name("specializations.json")
    sizes.write_text(json.dumps({"specializations": [{"batch": rows} for rows in BATCH_SIZES]}))
    compiled = qaic.compile(path, output_dir=path.parent / "ours", network_specialization_config=sizes)
    return Path(compiled.path).rename(path.with_suffix(".qpc"))


def client(port: int, width: int, concurrency: int, form: str, seconds: float) -> None:
    """Send requests with Triton's client, this number at a time; print requests per second and latencies."""
    import gevent

    x = np.random.default_rng(1).normal(size=(1, width)).astype(np.float32)
    if form == "grpc":
        import grpc.experimental.gevent
        import tritonclient.grpc as triton

        grpc.experimental.gevent.init_gevent()
        connection = triton.InferenceServerClient(f"127.0.0.1:{port}")
        forms: dict[str, bool] = {}
    else:
        import tritonclient.http as triton

        connection = triton.InferenceServerClient(f"127.0.0.1:{port}", concurrency=concurrency)
        forms = {"binary_data": form == "binary"}
    given = triton.InferInput("x", [1, width], "FP32")
    given.set_data_from_numpy(x, **forms)
    wanted = [triton.InferRequestedOutput("y", **forms)]
    latencies: list[float] = []

    def ask(until: float) -> None:
        while time.perf_counter() < until:
            started = time.perf_counter()
            # kserve returns 500 for a request without an id.
            connection.infer("layers", [given], outputs=wanted, request_id="1")
            latencies.append(time.perf_counter() - started)

    for warm_up in (True, False):
        started = time.perf_counter()
        latencies.clear()
        until = started + (0.5 if warm_up else seconds)
        gevent.joinall([gevent.spawn(ask, until) for _ in range(concurrency)], raise_error=True)
    elapsed = time.perf_counter() - started
    latencies.sort()
    print(RESULT + json.dumps([len(latencies) / elapsed, latencies[int(len(latencies) * 0.99)] * 1e3]))


@contextlib.contextmanager
def serving(command: list[str], port: int) -> Iterator[None]:
    """Run a server until the block ends."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    # MLServer imports the model's class from the folder of this file.
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(HERE)}, **quiet) as process:
        try:
            until = time.monotonic() + 120
            while True:
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                if process.poll() is not None or time.monotonic() > until:
                    sys.exit(f"{' '.join(command)} does not serve")
                time.sleep(0.1)
            yield
        finally:
            process.terminate()


def measured(port: int, width: int, concurrency: int, form: str, seconds: float) -> tuple[float, float]:
    """Run a client in a separate process; return requests per second and the 99th percentile in ms."""
    done = subprocess.run(
        [sys.executable, __file__, "--client", str(port), str(width), str(concurrency), form, str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=seconds * 20 + 60,
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith(RESULT))
    rate, p99_ms = json.loads(line.removeprefix(RESULT))
    return rate, p99_ms


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def command_of(
    name: str, python: str, folder: Path, path: Path, port: int, grpc: int | str = "no"
) -> list[str]:
    """Return the command of a server for the model `path`."""
    if name == "ours":
        return [python, "-m", "qaic", "serve", str(path), "--http", str(port), "--grpc", str(grpc)]
    if name == "kserve":
        return [python, str(HERE / "serving_kserve.py"), str(path), str(port)]
    settings = write_settings(folder / name, path, port, BATCH)
    return [python, "-m", "mlserver.cli.main", "start", str(settings)]


def compare(
    folder: Path, other: str, python: str, width: int, layers: int, turns: int, seconds: float
) -> None:
    """Print a table of both servers for one model."""
    # MLServer supports tensors only in JSON, so both servers receive JSON.
    form = "json" if other == "MLServer" else "binary"
    folder.mkdir()
    path = model(folder / "layers.onnx", "batch", width, layers)
    models = {"ours": with_batch_sizes(path), other: path}
    ports = {name: free_port() for name in models}
    rows = []
    with contextlib.ExitStack() as stack:
        for name, port in ports.items():
            command = command_of(
                name, sys.executable if name == "ours" else python, folder, models[name], port
            )
            stack.enter_context(serving(command, port))
        for concurrency in CONCURRENCY:
            found = [
                [measured(port, width, concurrency, form, seconds) for port in ports.values()]
                for _ in range(turns)
            ]
            ratios = [one[0] / two[0] for one, two in found]
            rows.append(
                [
                    str(concurrency),
                    *(f"{statistics.median(turn[side][0] for turn in found):.0f}" for side in (0, 1)),
                    f"{statistics.median(ratios):.2f} x [{min(ratios):.2f} - {max(ratios):.2f}]",
                    *(f"{statistics.median(turn[side][1] for turn in found):.1f} ms" for side in (0, 1)),
                ]
            )
    header = ("concurrency", "ours, 1/s", f"{other}, 1/s", "ratio", "p99, ours", f"p99, {other}")
    print(*table(list(header), rows), sep="\n")


def own_share(folder: Path, calls: int) -> None:
    """Print the cost of a request in addition to the inference, without the HTTP libraries."""
    import uvloop

    from qaic.serving.model_sources import find_sources
    from qaic.serving.repository import Repository
    from qaic.serving.request_body import read_request, write_answer

    path = model(folder / "small.onnx", 1, 16, 1)
    head = json.dumps(
        {
            "inputs": [
                {"name": "x", "datatype": "FP32", "shape": [1, 16], "parameters": {"binary_data_size": 64}}
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    body, length = head + np.ones((1, 16), np.float32).tobytes(), str(len(head))

    async def ask() -> list[tuple[float, float, float]]:
        loop = asyncio.get_running_loop()
        repository = Repository(lambda: find_sources([path]), drain_s=1, schedule=loop.call_soon)
        await asyncio.to_thread(repository.load_all)
        session = repository.find("small").session
        x = {"x": np.ones((1, 16), np.float32)}
        times = []
        for _ in range(calls):
            started = time.perf_counter()
            request = read_request(body, length)[1]()
            served, outputs = await repository.infer("small", "", request.inputs, None)
            write_answer(request, served.name, served.version, outputs)
            middle = time.perf_counter()
            await asyncio.wrap_future(session.submit(x))
            submitted = time.perf_counter()
            session.run(x)
            times.append((middle - started, submitted - middle, time.perf_counter() - submitted))
        await asyncio.to_thread(repository.close)
        return times

    # The server uses this event loop.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        times = runner.run(ask())
    whole, submitted, run = (statistics.median(column) * 1e6 for column in zip(*times, strict=True))
    print(
        f"one request, without HTTP: {whole:.0f} µs; the same inference by an awaited Session.submit "
        f"{submitted:.0f} µs, by Session.run {run:.0f} µs; own share {whole - run:.0f} µs above run, "
        f"{whole - submitted:.0f} µs above submit (budget 100 µs)"
    )


def main() -> None:
    """Parse the command line and measure."""
    if sys.argv[1:2] == ["--client"]:
        client(*map(int, sys.argv[2:5]), sys.argv[5], float(sys.argv[6]))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kserve", metavar="PYTHON")
    parser.add_argument("--mlserver", metavar="PYTHON")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    others = {"kserve": arguments.kserve, "MLServer": arguments.mlserver}
    turns, seconds = (2, 1.0) if arguments.quick else (5, 2.0)
    print(f"load average {os.getloadavg()[0]:.1f}, {len(os.sched_getaffinity(0))} CPUs")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        own_share(folder, 500 if arguments.quick else 5000)
        for title, width, layers in (("batchable", WIDTH, LAYERS), ("tiny", 16, 1)):
            for other, python in others.items():
                if python:
                    form = "JSON" if other == "MLServer" else "binary tensors"
                    print(f"\n{title}: {layers} layers of {width}, batches of up to {BATCH}, {form}")
                    compare(folder / f"{title}-{other}", other, python, width, layers, turns, seconds)


if __name__ == "__main__":
    main()
