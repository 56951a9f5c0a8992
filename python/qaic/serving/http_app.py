"""The routes of HTTP: the Open Inference Protocol, its extensions, and metrics."""

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import orjson
from google.protobuf import json_format
from numpy.typing import NDArray
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router

from qaic._core import join_bytes
from qaic.errors import InputError
from qaic.serving.limits import Lease
from qaic.serving.repository import refuse_overrides
from qaic.serving.request_body import HEADER_LENGTH, InferRequest, read_request, write_answer
from qaic.serving.server_state import ServerState, failure_of

T = TypeVar("T")

_logger = logging.getLogger("qaic.serving")

_CONTROL_BYTES: Final = 64 << 10
#: bytes of a response that are sent without waiting for the client to read them
_SMALL_ANSWER: Final = 64 << 10


class HttpApp:
    """The application of a server.

    `state` is the state of the server; `checks_host` is a parameter of `SiteCheck`.
    """

    def __init__(self, state: ServerState, *, checks_host: bool = False) -> None:
        self._state = state
        self._repository = state.repository
        self._limits = state.limits
        # A response that describes all models holds this for one turn of the event loop, because it takes
        # long.
        self._describing = asyncio.Lock()
        model = "/v2/models/{model}"
        version = model + "/versions/{version}"
        control = "/v2/repository/models/{model}"
        self.routes = [
            *(_Route(f"{path}/infer", self._infer, methods=["POST"]) for path in (model, version)),
            _Route("/v2", self._server_metadata),
            _Route("/v2/health/live", self._live),
            _Route("/v2/health/ready", self._ready),
            _Route("/v2/models/stats", self._statistics),
            *(_Route(path, self._metadata) for path in (model, version)),
            *(_Route(f"{path}/ready", self._model_ready) for path in (model, version)),
            *(_Route(f"{path}/config", self._config) for path in (model, version)),
            *(_Route(f"{path}/stats", self._statistics) for path in (model, version)),
            _Route("/v2/repository/index", self._index, methods=["POST"]),
            _Route(f"{control}/load", self._load, methods=["POST"]),
            _Route(f"{control}/unload", self._unload, methods=["POST"]),
            _Route("/metrics", self._metrics),
        ]
        router = Router(
            self.routes,
            default=_json({"error": "this path does not exist; /v2/models/NAME describes a model"}, 404),
        )
        self.app = SiteCheck(router, self._limits.allowed_hosts, checks_host=checks_host)

    async def _infer(self, request: Request) -> Response:
        name, version = request.path_params["model"], request.path_params.get("version", "")
        # This check comes before the body, which would be read for nothing.
        self._repository.find(name, version)
        lease = self._state.memory.lease()
        try:
            return await self._state.until_end(self._answer(request, name, version, lease))
        except BaseException:
            lease.resize(0)
            raise

    async def _answer(self, request: Request, name: str, version: str, lease: Lease) -> Response:
        """Answer a request; the answer ends the lease when it is sent."""
        infer_request, inputs = await self._read(request, name, version, lease)
        answer = self._repository.infer(name, version, inputs, infer_request.timeout_s)
        model, outputs = await _unless_gone(request, answer)
        size = _size(outputs)
        lease.resize(lease.held_bytes + size)
        body, head_length = await self._state.off_loop(
            size, write_answer, infer_request, model.name, model.version, outputs
        )
        lease.resize(sum(map(len, body)))
        return _Answer(body, head_length, lease, self._limits.body_timeout_s)

    async def _read(
        self, request: Request, name: str, version: str, lease: Lease
    ) -> tuple[InferRequest, dict[str, NDArray[Any]]]:
        """Read a request and its inputs, in the types of the model."""
        header = request.headers.get(HEADER_LENGTH)
        off_loop = self._state.off_loop
        parts = await self._body(request, self._limits.max_body_bytes, lease)

        def read() -> tuple[int, Callable[[], InferRequest]]:
            body = parts[0] if len(parts) == 1 else join_bytes(parts)
            parts.clear()
            return read_request(body, header, self._repository.find(name, version).most_tensors)

        def decode(decoded: Callable[[], InferRequest]) -> tuple[InferRequest, dict[str, NDArray[Any]]]:
            found = decoded()
            return found, self._repository.converted(name, version, found.inputs)

        length = lease.held_bytes
        size, decoded = await off_loop(length, read)
        lease.resize(length + size)
        infer_request, inputs = await off_loop(length, decode, decoded)
        del decoded
        if header is None:
            lease.resize(_size(inputs))
        return infer_request, inputs

    async def _body(self, request: Request, most: int, lease: Lease) -> list[bytes]:
        """Read the parts of a body that is not too long, from a sender that is not too slow."""
        headers = request.headers
        transfer = headers.get("transfer-encoding", "chunked")
        content = headers.get("content-encoding", "identity")
        if content != "identity" or transfer.lower() != "chunked":
            coding = transfer if content == "identity" else content
            raise InputError(
                f"the body has the coding {coding[:40]!r}, which is not supported; send it without "
                "Content-Encoding, and without a Transfer-Encoding other than chunked",
                code="serving.content_encoding",
            )
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length[:20]) > most:
            raise _too_long(length[:20], most)
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(self._limits.body_timeout_s):
                async for part in lease.collect(request.stream()):
                    if lease.held_bytes > most:
                        raise _too_long(f"more than {most}", most)
                    parts.append(part)
        except TimeoutError:
            raise InputError(
                f"the body did not arrive within {self._limits.body_timeout_s:g} s; only "
                f"{lease.held_bytes} bytes arrived",
                code="serving.slow_body",
            ) from None
        return parts

    def _found(self, request: Request) -> Any:
        return self._repository.find(request.path_params["model"], request.path_params.get("version", ""))

    async def _server_metadata(self, _request: Request) -> Response:
        return _json(self._state.metadata())

    async def _live(self, _request: Request) -> Response:
        return _json({"live": True})

    async def _ready(self, _request: Request) -> Response:
        is_ready = self._state.is_ready
        return _json({"ready": is_ready}, 200 if is_ready else 503)

    async def _metadata(self, request: Request) -> Response:
        model = self._found(request)
        return _json(model.metadata(self._repository.versions(model.name)))

    async def _model_ready(self, request: Request) -> Response:
        model = self._found(request)
        return _json({"name": model.name, "ready": model.is_ready}, 200 if model.is_ready else 503)

    async def _config(self, request: Request) -> Response:
        config = self._found(request).config()
        return _json(
            json_format.MessageToDict(
                config, preserving_proto_field_name=True, always_print_fields_with_no_presence=False
            )
        )

    async def _statistics(self, request: Request) -> Response:
        names = request.path_params
        model, version = names.get("model", ""), names.get("version", "")
        found = await self._described(lambda: self._repository.statistics(model, version))
        return _json({"model_stats": found})

    async def _index(self, request: Request) -> Response:
        only_ready = (await self._control(request)).get("ready") is True
        return _json(await self._described(lambda: self._repository.index(only_ready=only_ready)))

    async def _load(self, request: Request) -> Response:
        refuse_overrides((await self._control(request)).get("parameters"))
        self._state.check_model_control()
        await self._state.until_end(self._repository.load_async(request.path_params["model"]))
        return _json({})

    async def _unload(self, request: Request) -> Response:
        await self._control(request)
        self._state.check_model_control()
        await self._state.until_end(self._repository.unload_async(request.path_params["model"]))
        return _json({})

    async def _control(self, request: Request) -> dict[str, Any]:
        """Read the JSON of a request to the repository."""
        with self._state.memory.lease() as lease:
            body = b"".join(await self._body(request, _CONTROL_BYTES, lease))
        try:
            value = orjson.loads(body or b"{}")
        except orjson.JSONDecodeError:
            value = None
        if not isinstance(value, dict):
            raise InputError("the body is not a JSON object", code="serving.request")
        return value

    async def _metrics(self, _request: Request) -> Response:
        text = await self._described(lambda: generate_latest(self._repository.metrics.registry))
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    async def _described(self, describe: Callable[[], T]) -> T:
        """Call a function; one such call runs per turn of the event loop."""
        async with self._describing:
            await asyncio.sleep(0)
            return describe()


class _Route(Route):  # type: ignore[misc]
    """A route that turns errors into responses; open requests hold few objects, for garbage collection."""

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] not in self.methods:
            allowed = ", ".join(sorted(self.methods))
            response = _json({"error": f"found the method {scope['method']}, expected {allowed}"}, 405)
            response.headers["allow"] = allowed
        else:
            request = Request(scope, receive)
            try:
                response = await self.endpoint(request)
            except ClientDisconnect:
                # The response is dropped; the log of requests has its status.
                response = _json({"error": "the client closed the connection"}, 400)
            except Exception as error:
                failure = failure_of(error)
                if failure.http == 500:
                    _logger.exception("%s %s failed", request.method, request.url.path)
                response = _json({"error": failure.message}, failure.http)
        await response(scope, receive, send)


class _Answer(Response):  # type: ignore[misc]
    """A response that holds its lease until the client has read it, within ``timeout_s``.

    ``head_length`` is the length of the JSON if bytes follow it.
    """

    def __init__(
        self, parts: Sequence[bytes | memoryview], head_length: int | None, lease: Lease, timeout_s: float
    ) -> None:
        self._parts = parts if lease.held_bytes > _SMALL_ANSWER else ()
        self._lease, self._timeout_s = lease, timeout_s
        headers = {"content-length": str(lease.held_bytes)}
        if head_length is not None:
            headers[HEADER_LENGTH] = str(head_length)
        super().__init__(
            b"" if self._parts else b"".join(parts),
            media_type="application/json" if head_length is None else "application/octet-stream",
            headers=headers,
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with self._lease:
            if not self._parts:
                await super().__call__(scope, receive, send)
                return
            try:
                async with asyncio.timeout(self._timeout_s):
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    # Each part waits until the client has read most of the previous ones.
                    for part in (*filter(len, self._parts), b""):
                        await send({"type": "http.response.body", "body": part, "more_body": bool(part)})
            except TimeoutError:
                # Ray Serve has connections of its own.
                if abort := scope.get("extensions", {}).get("qaic.abort"):
                    abort()


def _size(arrays: dict[str, Any]) -> int:
    return sum(array.nbytes for array in arrays.values())


async def _unless_gone(request: Request, answer: Awaitable[T]) -> T:
    """Await an answer; cancel it if the client disconnects."""
    task: Any = asyncio.current_task()
    watch = asyncio.ensure_future(_cancel_when_gone(request.receive, task))
    try:
        return await answer
    except asyncio.CancelledError:
        if watch.done() and not watch.cancelled() and task.uncancel() == 0:
            raise ClientDisconnect from None
        raise
    finally:
        watch.cancel()


async def _cancel_when_gone(receive: Callable[[], Awaitable[Any]], task: asyncio.Task[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    task.cancel()


def _too_long(found: str, most: int) -> InputError:
    return InputError(f"the body has {found} bytes, expected at most {most}", code="serving.body_size")


def _json(value: object, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")


_FIX = "; start the server with --allowed-host NAME if NAME is a name of this server"


@dataclass(frozen=True)
class SiteCheck:
    """Application in front of another that compares ``Host`` and ``Origin`` with the names of the server."""

    #: The other application.
    app: Callable[..., Awaitable[None]]
    #: Names of this server in addition to addresses, names without a dot, and ``localhost``.
    allowed_hosts: frozenset[str]
    #: Refuse all requests for other names. Otherwise only requests of browsers, which have an ``Origin``.
    checks_host: bool

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or refuse it with 400 or 403."""
        app = self.app
        if scope["type"] == "http":
            hosts = [value for name, value in scope["headers"] if name == b"host"]
            # HTTP/1.0 does not have the header, and no browser sends HTTP/1.0.
            if len(hosts) > 1 or (not any(hosts) and scope["http_version"] != "1.0"):
                reason = f"the request has {len(hosts)} Host headers, expected one with a name"
                app = _json({"error": reason}, 400)
            elif reason := self._why_refused(dict(scope["headers"])):
                app = _json({"error": reason}, 403)
        await app(scope, receive, send)

    def _why_refused(self, headers: dict[bytes, bytes]) -> str:
        host = headers.get(b"host", b"").decode("latin-1")
        if headers.get(b"sec-fetch-site", b"none") in (b"cross-site", b"same-site"):
            return "a page of another site sent this request, which is not allowed"
        origin = headers.get(b"origin")
        if origin is not None:
            site = origin.decode("latin-1").partition("://")[2]
            if site.lower() != host.lower() or not self._is_own(host):
                return f"the origin {origin.decode('latin-1')[:200]!r} is not this server{_FIX}"
        elif self.checks_host and host and not self._is_own(host):
            return f"the host {host[:200]!r} is not this server{_FIX}"
        return ""

    def _is_own(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        is_local = "." not in name.removesuffix(".") or name.endswith(".localhost")
        return is_local or name in self.allowed_hosts or _is_address(name)


@lru_cache(64)
def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
