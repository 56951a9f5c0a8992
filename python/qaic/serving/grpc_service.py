"""The service of gRPC: the Open Inference Protocol with Triton's extensions."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

import grpc
import numpy as np
from google.protobuf import json_format
from tritonclient.grpc import service_pb2, service_pb2_grpc

from qaic.errors import InputError, InputTypeError
from qaic.runtime.shapes import coerce
from qaic.serving.datatypes import datatype_of, dtype_of, from_bytes
from qaic.serving.failures import failure_of
from qaic.serving.repository import refuse_overrides
from qaic.serving.request_body import checked_shape, chosen_outputs, timeout_s_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from numpy.typing import NDArray

    from qaic.serving.server_state import ServerState

_logger = logging.getLogger("qaic.serving")

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


class GrpcService(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """The service. Its methods have the names of the protocol.

    Parameters
    ----------
    state
        State of the server.
    """

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._repository = state.repository

    async def ServerLive(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Say that the server runs."""
        return service_pb2.ServerLiveResponse(live=True)

    async def ServerReady(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Say whether all models answer."""
        return service_pb2.ServerReadyResponse(ready=self._state.is_ready)

    async def ServerMetadata(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Describe the server."""
        return service_pb2.ServerMetadataResponse(**self._state.metadata())

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Say whether a model answers."""

        async def ready() -> Any:
            model = self._repository.find(request.name, request.version)
            return service_pb2.ModelReadyResponse(ready=model.is_ready)

        return await _answer(context, ready)

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Describe a model."""

        async def metadata() -> Any:
            model = self._repository.find(request.name, request.version)
            described = model.metadata(self._repository.versions(model.name))
            return json_format.ParseDict(described, service_pb2.ModelMetadataResponse())

        return await _answer(context, metadata)

    async def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Return the configuration of a model."""

        async def config() -> Any:
            model = self._repository.find(request.name, request.version)
            return service_pb2.ModelConfigResponse(config=model.config())

        return await _answer(context, config)

    async def ModelStatistics(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Return statistics of one model or all."""

        async def statistics() -> Any:
            found = self._repository.statistics(request.name, request.version)
            return json_format.ParseDict({"model_stats": found}, service_pb2.ModelStatisticsResponse())

        return await _answer(context, statistics)

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:  # noqa: N802
        """List the models."""

        async def index() -> Any:
            rows = self._repository.index(only_ready=request.ready)
            return json_format.ParseDict({"models": rows}, service_pb2.RepositoryIndexResponse())

        return await _answer(context, index)

    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Load a model."""

        async def load() -> Any:
            self._state.check_model_control()
            refuse_overrides(request.parameters)
            await self._repository.load_async(request.model_name)
            return service_pb2.RepositoryModelLoadResponse()

        return await _answer(context, load)

    async def RepositoryModelUnload(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Unload a model."""

        async def unload() -> Any:
            self._state.check_model_control()
            await self._repository.unload_async(request.model_name)
            return service_pb2.RepositoryModelUnloadResponse()

        return await _answer(context, unload)

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Answer one request."""

        async def infer() -> Any:
            model, outputs = await self._repository.infer(
                request.model_name, request.model_version, _inputs(request), _timeout_s(request, context)
            )
            names = [output.name for output in request.outputs] or None
            chosen = chosen_outputs(outputs, names)
            answer = service_pb2.ModelInferResponse(
                model_name=model.name, model_version=str(model.version), id=request.id
            )
            for name, array in chosen.items():
                answer.outputs.add(name=name, datatype=datatype_of(array.dtype), shape=array.shape)
                answer.raw_output_contents.append(array.tobytes())
            return answer

        return await _answer(context, infer)


async def _answer(context: Any, make: Callable[[], Awaitable[Any]]) -> Any:
    """Await an answer; an exception becomes a status."""
    try:
        return await make()
    except asyncio.CancelledError:
        raise
    except Exception as error:
        failure = failure_of(error)
        if failure.grpc == "INTERNAL":
            _logger.exception("a call failed")
        await context.abort(grpc.StatusCode[failure.grpc], failure.message)


def _timeout_s(request: Any, context: Any) -> float | None:
    timeout_s = None
    if "timeout" in request.parameters:
        timeout_s = timeout_s_of(request.parameters["timeout"].int64_param)
    rest_s = context.time_remaining()
    return min((limit for limit in (timeout_s, rest_s) if limit is not None), default=None)


def _inputs(request: Any) -> dict[str, NDArray[Any]]:
    """Make arrays over the bytes of a request, or of its typed fields."""
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise InputError(
            f"raw_input_contents has {len(raw)} entries; {len(request.inputs)}, one an input, are expected",
            code="serving.request",
        )
    inputs: dict[str, NDArray[Any]] = {}
    for index, tensor in enumerate(request.inputs):
        name, datatype = tensor.name, tensor.datatype
        shape = checked_shape(name, list(tensor.shape))
        if name in inputs:
            raise InputError(f"input {name!r} is there twice", code="serving.request")
        if raw:
            inputs[name] = from_bytes(name, datatype, shape, memoryview(raw[index]))
        else:
            inputs[name] = _from_contents(name, datatype, shape, tensor.contents)
    return inputs


def _from_contents(name: str, datatype: str, shape: tuple[int, ...], contents: Any) -> NDArray[Any]:
    dtype = dtype_of(name, datatype)
    field = _FIELDS.get(datatype)
    if field is None:
        raise InputTypeError(
            f"input {name!r}: {datatype} has no typed field; send it in raw_input_contents",
            code="serving.binary_only",
        )
    values = getattr(contents, field)
    expected = 1
    for size in shape:
        expected *= size
    if len(values) != expected:
        raise InputError(
            f"input {name!r} has {len(values)} numbers in {field}; shape {list(shape)} has {expected}",
            code="serving.request",
        )
    array = np.array(values, np.float32 if datatype == "FP32" else None).reshape(shape)
    return coerce(name, array, dtype.name, shape, False) if expected else array.astype(dtype)  # noqa: FBT003
