"""Names of element types in the Open Inference Protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from qaic.errors import InputShapeError, InputTypeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DTYPES: Final = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
}
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}

#: types that JSON and typed fields of messages do not carry
BINARY_ONLY: Final = frozenset({"FP16"})


def dtype_of(name: str, datatype: str) -> np.dtype[Any]:
    """Return the dtype that a datatype of input ``name`` means.

    Raises
    ------
    qaic.errors.InputTypeError
        No program takes it.
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

    Raises
    ------
    qaic.errors.InputTypeError
        The bytes are not as many as datatype and shape say, or no program takes the datatype.
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
    """Give an array of as many elements the shape of input ``name``.

    Raises
    ------
    qaic.errors.InputShapeError
        No array can have it.
    """
    try:
        return array.reshape(shape)
    except (ValueError, OverflowError):
        raise InputShapeError(
            f"input {name!r} has the shape {str(list(shape))[:200]}, which no array can have",
            code="serving.shapes",
        ) from None
