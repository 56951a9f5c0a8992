"""Load a server before, during and after each attack: requests per second, 99th percentile, memory.

python benches/serving_attacks.py                                             four minutes on an idle machine
python benches/serving_attacks.py --seconds 0.5 --share 0.01 --requests 500   a short run

Run it in an environment with the extra ``serve`` and the dependency group ``scale``. All traffic uses the
loopback interface, and every attack has a limited number of bytes and connections. The last lines compare the
memory before and after many requests in JSON, as bytes, and over gRPC.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from python.harness.row import table

from serving import command_of, free_port, measured, model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WIDTH, BATCH, CONCURRENCY = 64, 16, 8
INFER = "/v2/models/layers/infer"
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
CHUNKED = b"POST %s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" % INFER.encode()
HEAD = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,64],"data":['


def post(port: int, body: bytes) -> None:
    """Send a body and read the response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
        connection.request("POST", INFER, body)
        connection.getresponse().read()


def hold(port: int, count: int, sent: bytes) -> Callable[[], None]:
    """Open connections, send the same data on each, and return a function that closes them."""
    connections = []
    for _ in range(count):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.settimeout(2)
        connections.append(connection)
        with contextlib.suppress(OSError):
            connection.sendall(sent)

    def close() -> None:
        for connection in connections:
            connection.close()

    return close


def answered(port: int, count: int, sent: bytes) -> None:
    """Open connections, send the same data on each, and wait for the responses."""
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=120))
            for _ in range(count)
        ]
        with contextlib.suppress(OSError):
            for connection in connections:
                connection.sendall(sent)
            for connection in connections:
                connection.recv(1)


def attacks(port: int, share: float) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield names of attacks, and functions that start one and can return a function that ends it.

    The names state the sizes of a complete attack; `share` scales all sizes.
    """

    def some(whole: int) -> int:
        return max(1, round(whole * share))

    yield "57 MiB of nested lists", lambda: post(port, HEAD + b"[1]," * some(15_000_000) + b"1]}]}")
    yield "57 MiB of numbers", lambda: post(port, HEAD + b"1.5," * some(15_000_000) + b"1]}]}")
    yield "2 MB of empty lists", lambda: post(port, b'{"inputs":[' + b"[]," * some(690_000) + b"1]}")
    yield "20 million empty lists", lambda: post(port, b'{"inputs":[' + b"[]," * some(20_000_000) + b"1]}")
    yield (
        "one long text among short ones",
        lambda: post(port, HEAD + b'"%s",' % (b"a" * some(150_000)) + b'"b",' * some(9000)),
    )
    chunks = CHUNKED + b"1\r\nx\r\n" * some(30_000) + b"0\r\n\r\n"
    yield "10 requests of 30,000 chunks of a byte", lambda: answered(port, 10, chunks)
    yield "200 times 1,500 requests ahead", lambda: hold(port, some(200), LIVE * 1500)
    yield "20 MB of empty lines", lambda: hold(port, 1, b"\r\n" * some(10_000_000))
    yield "4,200 idle connections", lambda: hold(port, some(4200), b"")
    yield "1,000 unfinished heads", lambda: hold(port, some(1000), b"GET /v2 HTTP/1.1\r\nHost: a\r\nX: ")
    half = b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: 62914560\r\n\r\n" % INFER.encode() + b"x" * some(
        60_000_000
    )
    yield "16 unfinished bodies of 60 MB", lambda: hold(port, 16, half)


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) * 1024 / 1e6


def watch(port: int) -> None:
    """Send health checks until standard input ends, and print the longest response time in ms."""
    ended, longest = threading.Event(), 0.0
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    while not ended.wait(0.01):
        started = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("GET", "/v2/health/live")
        connection.getresponse().read()
        connection.close()
        longest = max(longest, time.perf_counter() - started)
    print(longest * 1e3)


def loaded(port: int, seconds: float) -> tuple[float, float, float]:
    """Load the server; return rate, p99 in ms and the longest health check in ms, from another process."""
    command = [sys.executable, __file__, "--watch", str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watching:
        rate, p99_ms = measured(port, WIDTH, CONCURRENCY, "json", seconds)
        longest, _ = watching.communicate()
    return rate, p99_ms, float(longest)


def during(port: int, attack: Callable[[], object], seconds: float) -> tuple[float, float, float]:
    """Load the server while an attack is repeated; return the results of `loaded`."""
    stopped = threading.Event()

    def repeat() -> None:
        while not stopped.is_set():
            ended = attack()
            if callable(ended):
                stopped.wait()
                ended()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        return loaded(port, seconds)
    finally:
        stopped.set()
        thread.join()


def main() -> None:
    """Print a row for each attack."""
    if sys.argv[1:2] == ["--watch"]:
        watch(int(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds of each load")
    parser.add_argument("--share", type=float, default=1.0, help="share of the size of each attack")
    parser.add_argument("--requests", type=int, default=50_000, help="requests of each form at the end")
    arguments = parser.parse_args()
    seconds = arguments.seconds
    # Each connection uses a file descriptor of this process.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        port, grpc_port = free_port(), free_port()
        path = model(Path(folder) / "layers.onnx", BATCH, WIDTH, 1)
        command = command_of("ours", sys.executable, Path(folder), path, port, grpc_port)
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as server:
            try:
                print(server.stdout.readline() if server.stdout else "")
                rows = []
                for name, attack in attacks(port, arguments.share):
                    before = loaded(port, seconds)
                    attacked = during(port, attack, seconds)
                    memory = resident_mb(server.pid)
                    columns = zip(before, attacked, loaded(port, seconds), strict=True)
                    texts = [" / ".join(f"{value:,.0f}" for value in column) for column in columns]
                    rows.append([name, *texts, f"{memory:.0f}"])
                    print(json.dumps(rows[-1]), flush=True)
                heads = ["attack", "requests/s", "p99, ms", "longest health check, ms", "memory, MB"]
                print("before / during / after", *table(heads, rows), sep="\n")
                for form, asked in (("json", port), ("binary", port), ("grpc", grpc_port)):
                    memories, sent = [resident_mb(server.pid)], 0.0
                    while sent < arguments.requests:
                        rate, _ = measured(asked, WIDTH, CONCURRENCY, form, seconds)
                        # Requests without those of the warm-up.
                        sent += rate * seconds
                        memories.append(resident_mb(server.pid))
                    half = memories[len(memories) // 2 :]
                    growth = (half[-1] - half[0]) * 1e6 / (sent / 2)
                    print(
                        f"{form}: {memories[0]:.0f} MB before and {memories[-1]:.0f} MB after {sent:,.0f} "
                        f"requests; {growth:.0f} bytes a request in the second half"
                    )
            finally:
                server.terminate()


if __name__ == "__main__":
    main()
