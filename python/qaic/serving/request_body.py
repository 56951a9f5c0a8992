"""HTTP requests and responses: JSON, with tensors in it or as bytes after it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from qaic._core import BytesView, read_json_numbers, split_infer_json
from qaic.errors import InputError, InputShapeError, InputTypeError
from qaic.runtime.shapes import coerce
from qaic.support.text import counted

#: header with the length of the JSON before the bytes of tensors
HEADER_LENGTH: Final = "inference-header-content-length"
#: sizes of a shape, and tensors, that a request may name
MOST_DIMENSIONS: Final = 64
_MOST_TENSORS: Final = 4096
#: bytes of a request in addition to the numbers of its tensors
MOST_ENVELOPE_BYTES: Final = 2 << 20
#: elements that are written as JSON at a time, between which other threads run
_PIECE: Final = 1 << 16
#: bytes of a number while JSON is decoded
_NUMBER_BYTES: Final = 8
_MOST_DIGITS: Final = 20
_MICROSECONDS: Final = 1e6
_LONGEST_S: Final = 86400.0


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request."""

    #: Id of the request from the client.
    id: str
    #: Name -> array, over the bytes of the request where these are binary.
    inputs: dict[str, NDArray[Any]]
    #: Name -> true for an output as bytes, in the requested order; None for all outputs.
    outputs: dict[str, bool] | None
    #: True if outputs without a format are wanted as bytes.
    is_binary: bool
    #: Seconds that the request may wait; None for no limit.
    timeout_s: float | None


def read_request(
    body: bytes | BytesView, header_length: str | None, most_tensors: int = _MOST_TENSORS
) -> tuple[int, Callable[[], InferRequest]]:
    """Read the body of a request. Declared sizes are compared with the body before memory is allocated.

    `header_length` is the value of the header `HEADER_LENGTH`; None: all of the body is JSON. `most_tensors`
    is the largest number of inputs, and of outputs that are named.

    Returns the bytes that the numbers in the JSON take once they are decoded, and the function that decodes
    them. Both raise InputError for a body that is not a valid request.
    """
    length = len(body)
    if header_length is not None:
        is_number = header_length.isascii() and header_length.isdigit() and len(header_length) <= _MOST_DIGITS
        if not (is_number and int(header_length) <= length):
            raise _malformed(
                f"the header declares {header_length[:40]} bytes of JSON, but the body has {length} bytes"
            )
        length = int(header_length)
    data = memoryview(body)
    try:
        envelope, places = split_infer_json(body, length, MOST_ENVELOPE_BYTES)
    except InputError as error:
        raise _malformed(error.message) from None
    try:
        request = orjson.loads(envelope)
    except orjson.JSONDecodeError as error:
        raise _malformed(f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(request, dict):
        raise _malformed("the body is not a JSON object")
    tensors = _tensors(request, "inputs", most_tensors)
    if request.get("outputs") is not None:
        _tensors(request, "outputs", most_tensors)
    numbers = sum(_count_numbers(tensor, places) for tensor in tensors)
    return _NUMBER_BYTES * numbers, partial(_decode, request, tensors, data[length:], body, places)


def _count_numbers(tensor: dict[str, Any], places: list[tuple[int, int]]) -> int:
    """Return the numbers of an input's JSON: those of its shape, if there is text for so many."""
    data, shape = tensor.get("data"), tensor.get("shape")
    if not isinstance(data, list) or not isinstance(shape, list):
        return 0
    begin, end = places[data[0]]
    return min(math.prod(checked_shape(_name(tensor), shape)), (end - begin) // 2)


def _decode(
    request: dict[str, Any],
    tensors: list[dict[str, Any]],
    binary: memoryview,
    body: bytes | BytesView,
    places: list[tuple[int, int]],
) -> InferRequest:
    parameters = _object(request, "parameters")
    inputs: dict[str, NDArray[Any]] = {}
    for tensor in tensors:
        name, array, used = _input(tensor, binary, body, places)
        if name in inputs:
            raise _malformed(f"input {name!r} is given twice")
        inputs[name] = array
        binary = binary[used:]
    if binary.nbytes:
        raise _malformed(f"{binary.nbytes} bytes follow the data of all inputs")
    is_binary = parameters.get("binary_data_output") is True
    outputs = None
    if request.get("outputs") is not None:
        outputs = {}
        for tensor in request["outputs"]:
            wanted = _object(tensor, "parameters")
            if "classification" in wanted or "shared_memory_region" in wanted:
                raise _malformed("outputs as classes or in shared memory are not supported")
            outputs[_name(tensor)] = wanted.get("binary_data", is_binary) is True
    text = request.get("id", "")
    if not isinstance(text, str):
        raise _malformed("'id' is not a string")
    return InferRequest(text, inputs, outputs or None, is_binary, timeout_s_of(parameters.get("timeout")))


def timeout_s_of(microseconds: object) -> float | None:
    """Convert the parameter ``timeout`` of a request to seconds; None for no limit.

    Raises InputError if the value is not an integer of 0 or more.
    """
    if microseconds is None:
        return None
    if isinstance(microseconds, bool) or not isinstance(microseconds, int) or microseconds < 0:
        raise _malformed(f"'timeout' is {str(microseconds)[:40]}; a whole number of microseconds is expected")
    return min(microseconds / _MICROSECONDS, _LONGEST_S) or None


def _input(
    tensor: dict[str, Any], binary: memoryview, body: bytes | BytesView, places: list[tuple[int, int]]
) -> tuple[str, NDArray[Any], int]:
    """Read an input; return its name, its array, and the number of its bytes after the JSON."""
    name, datatype = _name(tensor), tensor.get("datatype")
    if not isinstance(datatype, str):
        raise _malformed(f"input {name!r} has no 'datatype'")
    shape = checked_shape(name, tensor.get("shape"))
    parameters = _object(tensor, "parameters")
    if "shared_memory_region" in parameters:
        raise _malformed("inputs in shared memory are not supported")
    size = parameters.get("binary_data_size")
    if size is None:
        data = tensor.get("data")
        if isinstance(data, list):
            # The numbers were replaced by their position.
            return name, _from_json(name, datatype, shape, body, places[data[0]]), 0
        _check_json(name, datatype)
        raise _malformed(f"input {name!r} has no 'data' and no 'binary_data_size'")
    if "data" in tensor:
        raise _malformed(f"input {name!r} has 'data' and 'binary_data_size'")
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= binary.nbytes:
        raise _malformed(f"input {name!r} declares {str(size)[:40]} bytes; {binary.nbytes} follow the JSON")
    return name, from_bytes(name, datatype, shape, binary[:size]), size


def _check_json(name: str, datatype: str) -> np.dtype[Any]:
    dtype = dtype_of(name, datatype)
    if datatype in BINARY_ONLY:
        raise InputTypeError(
            f"input {name!r}: {datatype} cannot be sent as JSON; send it as binary data",
            code="serving.binary_only",
        )
    return dtype


def _from_json(
    name: str, datatype: str, shape: tuple[int, ...], body: bytes | BytesView, place: tuple[int, int]
) -> NDArray[Any]:
    dtype = _check_json(name, datatype)
    expected = math.prod(shape)
    try:
        # No body is longer.
        numbers, found = read_json_numbers(body, place, min(expected, len(body) + 1), datatype == "FP32")
    except InputError as error:
        count = error.context.get("found")
        has_names = dtype.kind == "f" and "not JSON" in error.message
        hint = " (NaN and Infinity can be sent as binary data)" if has_names else ""
        raise _malformed(
            f"'data' of input {name!r}: {error.message}{hint}"
            if count is None
            else f"input {name!r} has {counted(count, 'number')}; "
            f"shape {str(list(shape))[:200]} has {expected}"
        ) from None
    array = shaped(name, np.frombuffer(memoryview(numbers), found if expected else dtype), shape)
    if array.dtype == dtype:
        return array
    return coerce(name, array, dtype.name, shape, False)  # noqa: FBT003 (its form)


def checked_shape(name: str, shape: object) -> tuple[int, ...]:
    """Return the shape that a client gave. Raises InputError if it is invalid."""
    if not isinstance(shape, list) or len(shape) > MOST_DIMENSIONS:
        raise _malformed(f"input {name!r} has no 'shape', a list of sizes")
    if not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in shape):
        raise _malformed(f"a size in the shape of input {name!r} is not a whole number of at least 0")
    return tuple(shape)


def _tensors(request: dict[str, Any], key: str, most: int) -> list[dict[str, Any]]:
    tensors = request.get(key)
    if isinstance(tensors, list) and len(tensors) > most:
        raise _malformed(f"'{key}' has {counted(len(tensors), 'tensor')}; {most} is the limit of this model")
    if not isinstance(tensors, list) or not all(isinstance(tensor, dict) for tensor in tensors):
        raise _malformed(f"'{key}' is not a list of objects")
    return tensors


def _object(owner: dict[str, Any], key: str) -> dict[str, Any]:
    value = owner.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _malformed(f"'{key}' is not an object")
    return value


def _name(tensor: dict[str, Any]) -> str:
    name = tensor.get("name")
    if not isinstance(name, str):
        raise _malformed("a tensor has no 'name'")
    return name[:1000]


def _malformed(what: str) -> InputError:
    return InputError(f"this is not a request of the Open Inference Protocol: {what}", code="serving.request")


def chosen_outputs(outputs: Mapping[str, NDArray[Any]], names: list[str] | None) -> dict[str, NDArray[Any]]:
    """Return the outputs that a client requests, in its order.

    Raises InputError if the program does not have a requested output.
    """
    if names is None:
        return dict(outputs)
    for name in names:
        if name not in outputs:
            raise InputError(
                f"output {name!r} does not exist; the program has {list(outputs)}",
                code="serving.unknown_output",
            )
    return {name: outputs[name] for name in names}


def write_answer(
    request: InferRequest, model: str, version: int, outputs: Mapping[str, NDArray[Any]]
) -> tuple[list[bytes | memoryview], int | None]:
    """Write a response.

    Returns the parts of the body, and the length of its JSON if bytes follow it. Raises what `chosen_outputs`
    raises, and InputError for an output that JSON cannot represent.
    """
    wanted = request.outputs
    described: list[dict[str, Any]] = []
    parts: list[bytes | memoryview] = []
    for name, array in chosen_outputs(outputs, None if wanted is None else list(wanted)).items():
        datatype = datatype_of(array.dtype)
        tensor: dict[str, Any] = {"name": name, "datatype": datatype, "shape": array.shape}
        contiguous = np.ascontiguousarray(array)
        if request.is_binary if wanted is None else wanted[name]:
            tensor["parameters"] = {"binary_data_size": contiguous.nbytes}
            parts.append(contiguous.reshape(-1).view(np.uint8).data)
        elif datatype in BINARY_ONLY:
            raise InputTypeError(
                f"output {name!r} is {datatype}, which cannot be sent as JSON; request it as binary data",
                code="serving.binary_only",
            )
        else:
            tensor["data"] = _as_json(contiguous.reshape(-1))
        described.append(tensor)
    answer: dict[str, Any] = {"model_name": model, "model_version": str(version), "outputs": described}
    if request.id:
        answer["id"] = request.id
    head = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    return [head, *parts], len(head) if parts else None


def _as_json(array: NDArray[Any]) -> Any:
    """Return an array for the JSON encoder: itself, or its text made in parts if it is large."""
    if array.size <= _PIECE:
        return array
    pieces = (array[start : start + _PIECE] for start in range(0, array.size, _PIECE))
    text = b",".join(orjson.dumps(piece, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1] for piece in pieces)
    return orjson.Fragment(b"[" + text + b"]")


_DTYPES: Final = {
    name: np.dtype(name.replace("FP", "FLOAT").lower())
    for name in (
        *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
        *("FP16", "FP32", "FP64"),
    )
}
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}

#: types that JSON and typed fields of messages cannot represent
BINARY_ONLY: Final = frozenset({"FP16"})


def dtype_of(name: str, datatype: str) -> np.dtype[Any]:
    """Return the dtype of a datatype of input ``name``.

    Raises InputTypeError if no program accepts the type.
    """
    dtype = _DTYPES.get(datatype)
    if dtype is None:
        raise InputTypeError(
            f"input {name!r} has the datatype {datatype!r}; one of {', '.join(_DTYPES)} is expected",
            code="serving.datatype",
        )
    return dtype


def datatype_of(dtype: np.dtype[Any]) -> str:
    """Return the datatype of a dtype."""
    return _NAMES[np.dtype(dtype)]


def from_bytes(name: str, datatype: str, shape: tuple[int, ...], data: memoryview) -> NDArray[Any]:
    """Make an array over the bytes of input ``name``.

    Raises InputTypeError if the number of bytes is not that of datatype and shape, or no program accepts the
    datatype.
    """
    dtype = dtype_of(name, datatype)
    expected = dtype.itemsize
    for size in shape:
        expected *= size
    if data.nbytes != expected:
        raise InputTypeError(
            f"input {name!r} has {data.nbytes} bytes of data; {datatype} of shape {list(shape)} has "
            f"{expected}",
            code="serving.byte_count",
        )
    return shaped(name, np.frombuffer(data, dtype), shape)


def shaped(name: str, array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array in the shape of input ``name``.

    Raises InputShapeError if no array can have the shape.
    """
    try:
        return array.reshape(shape)
    except (ValueError, OverflowError):
        raise InputShapeError(
            f"input {name!r} has the shape {str(list(shape))[:200]}, which is not possible for an array",
            code="serving.shapes",
        ) from None
