"""The service of gRPC: the Open Inference Protocol with Triton's extensions."""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import grpc
import numpy as np
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from qaic._core import read_message_numbers, split_infer_message
from qaic.errors import InputError, InputTypeError
from qaic.runtime.shapes import coerce
from qaic.serving.repository import refuse_overrides
from qaic.serving.request_body import (
    MOST_DIMENSIONS,
    MOST_ENVELOPE_BYTES,
    checked_shape,
    chosen_outputs,
    datatype_of,
    dtype_of,
    from_bytes,
    shaped,
    timeout_s_of,
)
from qaic.serving.served_model import ServedModel
from qaic.serving.server_state import ServerState, failure_of
from qaic.support.text import counted

_logger = logging.getLogger("qaic.serving")

#: largest number of bytes of a message that is no inference request
_CONTROL_BYTES: Final = 64 << 10
#: seconds that a message has to arrive while others wait
_GRACE_S: Final = 1.0

#: datatype -> field of a message that carries its values
_FIELDS: Final = {
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}


class GrpcService(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The service. Its methods have the names of the protocol.

    A call is accepted before its message is read, so few messages arrive at a time. Message parts are
    counted before it is parsed, on another thread if it is large.
    """

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._repository = state.repository
        limits = state.limits
        self._inbox = _Inbox(max(4, limits.memory_bytes // limits.max_body_bytes), limits.body_timeout_s)
        methods = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
        self._handlers = {}
        for name, method in methods.items():
            answer, message = getattr(self, name, None), getattr(service_pb2, method.input_type.name)
            take = self._infer if name == "ModelInfer" else answer and partial(self._control, answer, message)
            if take:
                # The message of a call with one message is read as that of a stream.
                handler = grpc.stream_unary_rpc_method_handler(take)
                self._handlers[f"/{method.containing_service.full_name}/{name}"] = handler

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of a call; None for an unknown method."""
        return self._handlers.get(handler_call_details.method)

    async def _control(self, answer: Any, message: Any, requests: Any, context: Any) -> bytes:
        """Answer a call whose message is small."""

        async def control() -> bytes:
            raw = await self._inbox.read(requests, context)
            if len(raw) > _CONTROL_BYTES:
                raise InputError(
                    f"the message has {len(raw)} bytes; expected at most {_CONTROL_BYTES}",
                    code="serving.body_size",
                )
            try:
                request = message.FromString(raw)
            except DecodeError:
                what = f"the message is not of type {message.DESCRIPTOR.name}"
                raise InputError(what, code="serving.request") from None
            answered: bytes = (await answer(request)).SerializeToString()
            return answered

        return await _answer(context, control)

    async def _infer(self, requests: Any, context: Any) -> bytes:
        """Answer a request."""

        async def infer() -> bytes:
            with self._state.memory.lease() as lease:
                raw = await self._inbox.read(requests, context)
                lease.resize(len(raw))
                size, read = await self._state.off_loop(len(raw), read_message, raw)
                lease.resize(len(raw) + size)
                request, inputs = await self._state.off_loop(len(raw), self._converted, read)
                del read
                lease.resize(len(raw) + sum(array.nbytes for array in inputs.values()))
                del raw
                model, outputs = await self._repository.infer(
                    request.model_name, request.model_version, inputs, _timeout_s(request, context)
                )
                size = sum(array.nbytes for array in outputs.values())
                lease.resize(lease.held_bytes + size)
                return await self._state.off_loop(size, _write_answer, request, model, outputs)

        return await _answer(context, infer)

    def _converted(self, read: Callable[[], tuple[Any, Any]]) -> tuple[Any, dict[str, NDArray[Any]]]:
        request, inputs = read()
        return request, self._repository.converted(request.model_name, request.model_version, inputs)

    async def ServerLive(self, _request: Any) -> Any:  # noqa: N802
        """Report that the server runs."""
        return service_pb2.ServerLiveResponse(live=True)

    async def ServerReady(self, _request: Any) -> Any:  # noqa: N802
        """Return True if all models are ready."""
        return service_pb2.ServerReadyResponse(ready=self._state.is_ready)

    async def ServerMetadata(self, _request: Any) -> Any:  # noqa: N802
        """Describe the server."""
        return service_pb2.ServerMetadataResponse(**self._state.metadata())

    async def ModelReady(self, request: Any) -> Any:  # noqa: N802
        """Return True if a model is ready."""
        model = self._repository.find(request.name, request.version)
        return service_pb2.ModelReadyResponse(ready=model.is_ready)

    async def ModelMetadata(self, request: Any) -> Any:  # noqa: N802
        """Describe a model."""
        model = self._repository.find(request.name, request.version)
        described = model.metadata(self._repository.versions(model.name))
        return json_format.ParseDict(described, service_pb2.ModelMetadataResponse())

    async def ModelConfig(self, request: Any) -> Any:  # noqa: N802
        """Return the configuration of a model."""
        model = self._repository.find(request.name, request.version)
        return service_pb2.ModelConfigResponse(config=model.config())

    async def ModelStatistics(self, request: Any) -> Any:  # noqa: N802
        """Return statistics of one model or all."""
        found = self._repository.statistics(request.name, request.version)
        return json_format.ParseDict({"model_stats": found}, service_pb2.ModelStatisticsResponse())

    async def RepositoryIndex(self, request: Any) -> Any:  # noqa: N802
        """List the models."""
        rows = self._repository.index(only_ready=request.ready)
        return json_format.ParseDict({"models": rows}, service_pb2.RepositoryIndexResponse())

    async def RepositoryModelLoad(self, request: Any) -> Any:  # noqa: N802
        """Load a model."""
        self._state.check_model_control()
        refuse_overrides(request.parameters)
        await self._repository.load_async(request.model_name)
        return service_pb2.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, request: Any) -> Any:  # noqa: N802
        """Unload a model."""
        self._state.check_model_control()
        await self._repository.unload_async(request.model_name)
        return service_pb2.RepositoryModelUnloadResponse()


def _write_answer(request: Any, model: ServedModel, outputs: dict[str, NDArray[Any]]) -> bytes:
    names = [output.name for output in request.outputs] or None
    chosen = chosen_outputs(outputs, names)
    answer = service_pb2.ModelInferResponse(
        model_name=model.name, model_version=str(model.version), id=request.id
    )
    for name, array in chosen.items():
        answer.outputs.add(name=name, datatype=datatype_of(array.dtype), shape=array.shape)
        answer.raw_output_contents.append(array.tobytes())
    written: bytes = answer.SerializeToString()
    return written


class _Inbox:
    """Reads ``most`` messages at a time, each of which must arrive within ``limit_s`` seconds.

    If others wait, a slow message is cancelled.
    """

    def __init__(self, most: int, limit_s: float) -> None:
        self._most, self._limit_s = most, limit_s
        # Reading task -> its start time, the oldest first.
        self._reading: dict[asyncio.Task[Any], float] = {}
        self._evicted: set[asyncio.Task[Any]] = set()
        self._freed = asyncio.Event()
        self._entrance = asyncio.Lock()

    async def read(self, requests: Any, context: Any) -> bytes:
        """Return the bytes of the message of a call; abort the call if none arrives in time."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # noqa: S101 (handlers of calls are tasks)
        # One call waits for a place, and the others wait for that call, so each end wakes only one.
        async with self._entrance:
            while len(self._reading) >= self._most:
                oldest, begin = next(iter(self._reading.items()))
                rest_s = begin + _GRACE_S - loop.time()
                if rest_s <= 0:
                    del self._reading[oldest]
                    self._evicted.add(oldest)
                    oldest.cancel()
                    break
                self._freed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(rest_s):
                        await self._freed.wait()
            self._reading[task] = loop.time()
        try:
            async with asyncio.timeout(self._limit_s):
                message: bytes = await anext(aiter(requests), b"")
        except TimeoutError:
            await context.abort(
                grpc.StatusCode.DEADLINE_EXCEEDED, f"the message did not arrive within {self._limit_s:g} s"
            )
        except asyncio.CancelledError:
            if task not in self._evicted:
                raise
            task.uncancel()
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, "the message arrived too slowly while others waited"
            )
        finally:
            self._evicted.discard(task)
            self._reading.pop(task, None)
            self._freed.set()
        return message


async def _answer(context: Any, make: Callable[[], Awaitable[bytes]]) -> bytes:
    """Await an answer; an exception becomes a status."""
    try:
        return await make()
    except (asyncio.CancelledError, grpc.aio.AbortError):
        raise
    except Exception as error:
        failure = failure_of(error)
        if failure.grpc == "INTERNAL":
            _logger.exception("a call failed")
        await context.abort(grpc.StatusCode[failure.grpc], failure.message)
        raise


def _timeout_s(request: Any, context: Any) -> float | None:
    timeout_s = None
    if "timeout" in request.parameters:
        timeout_s = timeout_s_of(request.parameters["timeout"].int64_param)
    rest_s = context.time_remaining()
    return min((limit for limit in (timeout_s, rest_s) if limit is not None), default=None)


def read_message(raw: bytes) -> tuple[int, Callable[[], tuple[Any, dict[str, NDArray[Any]]]]]:
    """Read a `ModelInferRequest`.

    Returns the bytes that the numbers in typed fields take once they are decoded, and the function that
    decodes them. It returns the envelope as a message, and the inputs. Both raise InputError for a message
    that is not a valid request.
    """
    try:
        envelope, places, raw_places = split_infer_message(raw, MOST_ENVELOPE_BYTES)
        request = service_pb2.ModelInferRequest()
        request.ParseFromString(envelope)
    except InputError as error:
        what = f"the message is not a ModelInferRequest: {error.message}"
        raise InputError(what, code="serving.request") from None
    except DecodeError:
        raise InputError("the message is not a ModelInferRequest", code="serving.request") from None
    if raw_places and len(raw_places) != len(request.inputs):
        raise InputError(
            f"raw_input_contents has {counted(len(raw_places), 'entry')}; {len(request.inputs)} expected, "
            "one for each input",
            code="serving.request",
        )
    shapes = [checked_shape(one.name, list(one.shape[: MOST_DIMENSIONS + 1])) for one in request.inputs]
    # A number has at least one byte, and at most eight after decoding.
    numbers = (
        0
        if raw_places
        else sum(
            min(math.prod(shape), end - begin) for shape, (begin, end) in zip(shapes, places, strict=True)
        )
    )
    return 8 * numbers, partial(_decode, raw, request, shapes, places, raw_places)


def _decode(
    raw: bytes,
    request: Any,
    shapes: list[tuple[int, ...]],
    places: list[tuple[int, int]],
    raw_places: list[tuple[int, int]],
) -> tuple[Any, dict[str, NDArray[Any]]]:
    inputs: dict[str, NDArray[Any]] = {}
    data = memoryview(raw)
    for index, (tensor, shape) in enumerate(zip(request.inputs, shapes, strict=True)):
        name, datatype = tensor.name, tensor.datatype
        if name in inputs:
            raise InputError(f"input {name!r} is given twice", code="serving.request")
        if raw_places:
            begin, end = raw_places[index]
            inputs[name] = from_bytes(name, datatype, shape, data[begin:end])
        else:
            inputs[name] = _from_contents(name, datatype, shape, raw, places[index])
    return request, inputs


def _from_contents(
    name: str, datatype: str, shape: tuple[int, ...], raw: bytes, place: tuple[int, int]
) -> NDArray[Any]:
    dtype = dtype_of(name, datatype)
    field = _FIELDS.get(datatype)
    if field is None:
        raise InputTypeError(
            f"input {name!r}: {datatype} has no typed field; send it in raw_input_contents",
            code="serving.binary_only",
        )
    number = service_pb2.InferTensorContents.DESCRIPTOR.fields_by_name[field].number
    wide = dtype if dtype.kind in "bf" else np.dtype(np.uint64 if dtype.kind == "u" else np.int64)
    expected = math.prod(shape)
    try:
        # No message is longer.
        numbers = read_message_numbers(raw, place, number, wide.name, min(expected, len(raw) + 1))
    except InputError as error:
        found = error.context.get("found")
        what = (
            error.message
            if found is None
            else f"has {counted(found, 'number')} in {field}; shape {list(shape)} has {expected}"
        )
        raise InputError(f"input {name!r} {what}", code="serving.request") from None
    array = shaped(name, np.frombuffer(memoryview(numbers), wide), shape)
    return coerce(name, array, dtype.name, shape, False)  # noqa: FBT003 (its form)
