"""Columns of Arrow as arrays, and arrays as columns."""

from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from ray.data.extensions import ArrowTensorArray

from qaic.errors import InputError, InputShapeError, InputTypeError


def array_of(name: str, column: pa.ChunkedArray) -> NDArray[Any]:
    """Return the values of a column, rows first.

    Numbers, lists of equal length, nested lists, and tensors become arrays, without a copy if Arrow stores
    them contiguously.

    Raises InputError for other values; ``context["row"]`` is the first row that differs, if known.
    """
    start = 0
    parts: list[NDArray[Any]] = []
    for chunk in column.chunks:
        try:
            part = _values(name, chunk)
        except InputError as error:
            if "row" in error.context:
                error.context["row"] += start
            raise
        if parts and part.shape[1:] != parts[0].shape[1:]:
            raise _other_shape(name, start, part.shape[1:], parts[0].shape[1:])
        parts.append(part)
        start += len(chunk)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _values(name: str, chunk: pa.Array) -> NDArray[Any]:
    if chunk.null_count:
        row = pc.index(chunk.is_null(), value=True).as_py()
        raise InputError(f"column {name!r} has no value", code="ray.null", context={"row": row})
    kind = chunk.type
    if isinstance(chunk, pa.FixedShapeTensorArray):
        return np.asarray(chunk.to_numpy_ndarray())
    if isinstance(chunk, pa.ExtensionArray):
        return _of_tensors(name, np.asarray(chunk.to_numpy(zero_copy_only=False)))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = pc.list_value_length(chunk).to_numpy(zero_copy_only=False)
        other = np.flatnonzero(lengths != lengths[:1])
        if other.size:
            raise _other_shape(name, int(other[0]), (int(lengths[other[0]]),), (int(lengths[0]),))
        values = _values(name, chunk.flatten())
        return values.reshape(len(chunk), lengths[0] if len(lengths) else 0, *values.shape[1:])
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise InputTypeError(
            f"column {name!r} is of type {kind}; numbers, tensors or lists of numbers are expected",
            code="ray.column_type",
        )
    return np.asarray(chunk.to_numpy(zero_copy_only=False))


def _of_tensors(name: str, tensors: NDArray[Any]) -> NDArray[Any]:
    """Check the tensors of a column of Ray, which is an array of objects if shapes differ."""
    if tensors.dtype != object:
        return tensors
    for row, tensor in enumerate(tensors):
        if np.shape(tensor) != np.shape(tensors[0]):
            raise _other_shape(name, row, np.shape(tensor), np.shape(tensors[0]))
    return np.stack(list(tensors))


def _other_shape(name: str, row: int, found: tuple[int, ...], expected: tuple[int, ...]) -> InputShapeError:
    return InputShapeError(
        f"column {name!r} has the shape {list(found)}; rows before it have {list(expected)}",
        code="ray.row_shape",
        context={"row": row},
    )


def column_of(array: NDArray[Any], output_format: Literal["numpy", "arrow"]) -> pa.Array:
    """Return a column of rows: a tensor column of Ray, or lists of fixed size."""
    if array.ndim == 1:
        return pa.array(array)
    if output_format == "numpy":
        return ArrowTensorArray.from_numpy(array)
    column = pa.array(np.ascontiguousarray(array).reshape(-1))
    for size in reversed(array.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column
