"""Server for HTTP and gRPC on one event loop, from its start to a clean end."""

import asyncio
import contextlib
import errno
import gc
import ipaddress
import json
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

import grpc
import uvicorn
import uvloop

from qaic.errors import OptionError, StateError
from qaic.serving.grpc_service import GrpcService
from qaic.serving.http_app import HttpApp
from qaic.serving.http_protocol import BoundedProtocol, HttpServer
from qaic.serving.limits import Limits, MemoryBudget, Turns
from qaic.serving.model_sources import find_sources
from qaic.serving.repository import Repository
from qaic.serving.server_state import ServerState
from qaic.support.text import escape_json

_logger = logging.getLogger("qaic.serving")

_BACKLOG: Final = 2048
_LARGEST_PORT: Final = 65535
#: largest number of log lines that wait to be written
_WAITING_LINES: Final = 1000
#: states of sockets in the kernel's table: established, listening
_OPEN_STATES: Final = ("01", "0A")
#: bytes of a gRPC message in addition to tensors
_ENVELOPE_BYTES: Final = 1 << 20


class Server:
    """Server of models. It does not listen before `run`.

    The parameters are those of :func:`qaic.serving.serve`. After the start, ``http_port`` and ``grpc_port``
    are the open ports, or None, and ``models`` are the names of the models that were loaded.
    """

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        *,
        host: str = "127.0.0.1",
        http_port: int | None = 8000,
        grpc_port: int | None = 8001,
        drain_s: float = 30.0,
        limits: Limits | None = None,
        access_log: bool = False,
    ) -> None:
        if http_port is None and grpc_port is None:
            raise OptionError(
                "neither HTTP nor gRPC has a port, so no request can arrive; expected at least one",
                code="serving.port",
            )
        for port in (http_port, grpc_port):
            if port is not None and not 0 <= port <= _LARGEST_PORT:
                raise OptionError(
                    f"found the port {port}, expected 0 to {_LARGEST_PORT}, or None", code="serving.port"
                )
        self._paths = [Path(path) for path in paths]
        self._host = host
        self.http_port = http_port
        self.grpc_port = grpc_port
        self.models: tuple[str, ...] = ()
        self._drain_s = drain_s
        self._limits = limits or Limits()
        self._access_log = access_log
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._lock = threading.Lock()

    def run(self, on_ready: "Callable[[Server], object] | None" = None) -> None:
        """Load the models, listen, and answer until SIGTERM, Ctrl-C or `stop`. Blocking.

        `on_ready` is called once the ports are open. Raises OSError if a path cannot be used, StateError if a
        port cannot be used, and the first model's error if no model can be loaded.
        """
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            loop = runner.get_loop()
            repository = Repository(
                lambda: find_sources(self._paths),
                drain_s=self._drain_s,
                max_loads=self._limits.max_loads,
                schedule=loop.call_soon,
            )
            try:
                repository.load_all()
                self.models = tuple(sorted({model.name for model in repository.loaded()}))
                # A garbage collection of all objects of the models and libraries would stop the event loop
                # for long.
                gc.collect()
                gc.freeze()
                runner.run(self._run(repository, on_ready))
            finally:
                gc.unfreeze()
                repository.close()

    def stop(self) -> None:
        """End `run` after the present requests have been answered. Any thread may call it."""
        with self._lock:
            loop, stopping = self._loop, self._stopping
        if loop is not None and stopping is not None:
            loop.call_soon_threadsafe(stopping.set)

    async def _run(self, repository: Repository, on_ready: "Callable[[Server], object] | None") -> None:
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._loop, self._stopping = loop, stopping
        state = ServerState(repository, self._limits)
        ends: list[Callable[[], Any]] = []
        with _signals(loop, stopping):
            try:
                if self.http_port is not None:
                    app = HttpApp(state, checks_host=_is_loopback(self._host))
                    ends.append(await self._listen_http(app, state.memory, stopping))
                if self.grpc_port is not None:
                    ends.append(await self._listen_grpc(GrpcService(state)))
                if on_ready is not None:
                    on_ready(self)
                await stopping.wait()
                _logger.info("shutting down: requests have %g s to finish", self._drain_s)
            finally:
                state.is_draining = True
                repository.begin_end()
                await asyncio.gather(*(end() for end in ends))
                state.close()
                with self._lock:
                    self._loop = self._stopping = None

    async def _listen_http(
        self, http_app: HttpApp, memory: MemoryBudget, stopping: asyncio.Event
    ) -> Callable[[], Any]:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        address = (self._host, self.http_port or 0)
        try:
            listener = socket.create_server(address, family=family, backlog=_BACKLOG)
        except OSError as error:
            # Python adds the address to the reason again.
            reason = str(error.strerror or error).partition(" (while ")[0]
            raise self._port_error("http", self.http_port, reason, error.errno) from error
        self.http_port = listener.getsockname()[1]
        config = uvicorn.Config(
            http_app.app,
            http=partial(
                BoundedProtocol,
                limits=self._limits,
                memory=memory,
                idle=OrderedDict(),
                turns=Turns(asyncio.get_running_loop().call_soon),
            ),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=self._access_log,
            server_header=False,
            # One more is accepted, because a new connection replaces an idle one.
            limit_concurrency=self._limits.max_connections + 2,
            timeout_keep_alive=self._limits.idle_timeout_s,
            timeout_graceful_shutdown=max(1, round(self._drain_s)),
            backlog=_BACKLOG,
        )
        server = HttpServer(config, listener)
        serving = asyncio.ensure_future(server.serve([listener]))
        serving.add_done_callback(lambda _: stopping.set())
        while not server.started and not serving.done():  # there is no event for it
            await asyncio.sleep(0.001)

        async def end() -> None:
            server.should_exit = True
            await serving

        return end

    async def _listen_grpc(self, service: GrpcService) -> Callable[[], Any]:
        most = self._limits.max_body_bytes + _ENVELOPE_BYTES
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", most),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                # Data that arrives before a call is read stays within the first window.
                ("grpc.http2.bdp_probe", 0),
                ("grpc.max_metadata_size", self._limits.max_head_bytes),
                ("grpc.absolute_max_metadata_size", self._limits.max_head_bytes),
            ],
            maximum_concurrent_rpcs=self._limits.max_connections,
        )
        server.add_generic_rpc_handlers((service,))
        host = f"[{self._host}]" if ":" in self._host else self._host
        try:
            self.grpc_port = server.add_insecure_port(f"{host}:{self.grpc_port}")
        except RuntimeError as error:
            # The library logs its reason, and raises its own advice.
            reason = "the address is in use, or not one of this host"
            raise self._port_error("grpc", self.grpc_port, reason, errno.EADDRINUSE) from error
        await server.start()

        async def end() -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._drain_s / 2):
                    await _take_last_calls(host, self.grpc_port or 0)
            await server.stop(self._drain_s)

        return end

    def _port_error(self, protocol: str, port: int | None, reason: str, number: int | None) -> StateError:
        fix = "--host takes an address of this host (host=... in Python)"
        if number in {errno.EADDRINUSE, errno.EACCES}:
            fix = f"--{protocol} 0 ({protocol}_port=0 in Python) selects a free port"
        return StateError(
            f"{self._host}:{port} cannot be opened: {reason}",
            code="serving.port",
            hints=(fix,),
        )


async def _take_last_calls(host: str, port: int) -> None:
    """Wait until all calls that were sent to a gRPC port before this one have been accepted.

    The library accepts no call after the start of its shutdown. The kernel shows bytes that the library
    has not read. The call of this function itself ends after the library has accepted all earlier calls.
    """
    unread = await asyncio.to_thread(unread_connections, port)
    while unread:
        await asyncio.sleep(0.001)
        # The loop does not wait for data that clients send from now on.
        unread &= await asyncio.to_thread(unread_connections, port)
    options = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
    async with grpc.aio.insecure_channel(f"{host}:{port}", options) as channel:
        with contextlib.suppress(grpc.aio.AioRpcError):
            await channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"")


def unread_connections(port: int) -> set[str]:
    """Return the peers of a local port whose connection or bytes wait for the process.

    Connections that wait to be accepted count as one peer, the null address.
    """
    peers = set()
    for table in ("tcp", "tcp6"):
        try:
            rows = Path(f"/proc/self/net/{table}").read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            _, local, peer, state, queues, *_ = row.split()
            is_of_port = int(local.rpartition(":")[2], 16) == port
            if is_of_port and state in _OPEN_STATES and int(queues.partition(":")[2], 16):
                peers.add(peer)
    return peers


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> Iterator[None]:
    """Set the event on SIGTERM and Ctrl-C; the second signal ends the process as without a server.

    An ignored signal stays ignored, because the shell of a background job ignores it on purpose.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGINT)}
    names = [name for name, handler in before.items() if handler is not signal.SIG_IGN]

    def stop() -> None:
        stopping.set()
        for name in names:
            loop.remove_signal_handler(name)
            signal.signal(name, signal.SIG_DFL)

    for name in names:
        loop.add_signal_handler(name, stop)
    try:
        yield
    finally:
        for name in names:
            loop.remove_signal_handler(name)
            signal.signal(name, before[name])


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return escape_json(json.dumps(line, ensure_ascii=False))


class LogHandler(logging.Handler):
    """Write records as lines of JSON on a separate thread, so that a log without a reader delays no response.

    If too many lines wait, further lines are dropped and counted in the next line that is written.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(_WAITING_LINES)
        self._lost = 0
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line."""
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._lost += 1

    def _write(self) -> None:
        for line in iter(self._lines.get, None):
            lost, self._lost = self._lost, 0
            text = (
                f'{line}\n{{"level": "warning", "message": "dropped log lines: {lost}"}}\n'
                if lost
                else f"{line}\n"
            )
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(text)
                self._stream.flush()

    def close(self) -> None:
        """Write the waiting lines, within a second. Blocking; Python calls it at exit."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(1)
        super().close()


def log_to_stderr(*, access: bool) -> None:
    """Send the server's messages to standard error, with a line for each HTTP request if ``access``."""
    handler = LogHandler(sys.stderr)
    for name in ("qaic.serving", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(logging.INFO)
    logging.getLogger("uvicorn.access").setLevel(logging.INFO if access else logging.WARNING)
