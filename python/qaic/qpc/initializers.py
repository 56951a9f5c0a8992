"""The weights of a program compiled here, as arrays over ``constants.bin``.

The plan comes from the file, so the entry of a weight is checked before its bytes are used.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qaic import _core
from qaic.compiler.ir.elem_types import CODES, STRING, TABLE, array_type, tensor_bytes
from qaic.errors import QaicError, QpcFormatError
from qaic.support.text import counted

CONSTANTS: Final = "constants.bin"

#: encodings with scales after the rows, which are returned in stored form
_QUANTIZED: Final = frozenset({"int8", "uint4"})
#: stored rows are padded to a multiple of this many elements
_ROW_UNIT: Final = 32
#: layout -> number of rows whose units are stored together
_TOGETHER: Final = {"rows": 1, "tiles": 4}
#: element types smaller than a byte, which arrays cannot show
_PACKED: Final = frozenset(code for code, (_, bits) in TABLE.items() if 0 < bits < 8)


class Initializers(Mapping[str, "NDArray[Any]"]):
    """Name -> read-only array, created at each access.

    Elements smaller than a byte and quantized rows are returned as the stored packed bytes. Weights in MXFP6
    blocks are decoded, and weights in ``tiles`` are put in order; both are new arrays. Products sum along the
    rows of a weight with a layout; its shape is ``[columns of the product, length of the sum]``.
    """

    def __init__(self, records: Mapping[str, Mapping[str, Any]], constants: NDArray[np.uint8]) -> None:
        self._records = records
        self._constants = constants

    def __getitem__(self, name: str) -> NDArray[Any]:
        record = self._records.get(name)
        if record is None:
            message = f"{name!r} is not one of the {len(self)} initializers in constants.bin"
            raise KeyError(f"{message}; initializers below 1 KiB are in the graph (Qpc.graph)")
        try:
            return _array(name, record, self._constants)
        except QaicError:
            raise
        except (ValueError, OverflowError) as error:
            # numpy has arrays of fewer dims and elements than a plan can describe.
            raise bad_plan(f"initializer {name!r}: dims {record['dims']}: {error}") from error

    def __contains__(self, name: object) -> bool:
        # A damaged record is in the mapping; reading it raises the error.
        return name in self._records

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return f"<{counted(len(self), 'initializer')} over {self._constants.size} bytes>"


def bad_plan(message: str) -> QpcFormatError:
    """Return the error for an unusable plan."""
    return QpcFormatError(message, code="qpc.plan")


def check_records(records: object) -> dict[str, Mapping[str, Any]]:
    """Return the initializers of the plan by name."""
    if isinstance(records, list) and all(
        isinstance(record, dict) and isinstance(record.get("name"), str) for record in records
    ):
        return {record["name"]: record for record in records}
    raise bad_plan("the initializers of the plan are not a list of objects with a name")


def mapped_sizes(records: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[int, int]]:
    """Return the number of elements and bytes of each weight that kernels read in the container, by name."""
    found = {}
    for name, record in records.items():
        if record.get("layout") is not None:
            rows, length = _matrix(name, record)
            found[name] = rows * length, _whole(name, record, "size")
    return found


def _dims(name: str, record: Mapping[str, Any]) -> list[int]:
    dims = record.get("dims")
    if not (isinstance(dims, list) and all(_is_whole(dim) for dim in dims)):
        raise bad_plan(f"initializer {name!r}: dims is {dims!r}, a list of whole numbers is expected")
    return dims


def _matrix(name: str, record: Mapping[str, Any]) -> list[int]:
    """Return the dims of a weight with a layout."""
    dims, layout = _dims(name, record), record["layout"]
    if not isinstance(layout, str) or layout not in _TOGETHER or len(dims) != 2:
        raise bad_plan(f"initializer {name!r}: unknown layout {layout!r} of {dims}")
    return dims


def _array(name: str, record: Mapping[str, Any], constants: NDArray[np.uint8]) -> NDArray[Any]:
    kind, offset, size = record.get("dtype"), _whole(name, record, "offset"), _whole(name, record, "size")
    dims = _dims(name, record)
    if offset + size > constants.size:
        raise bad_plan(
            f"initializer {name!r}: the range of {size} bytes at {offset} is outside {CONSTANTS}, which has "
            f"{constants.size} bytes"
        )
    data = constants[offset : offset + size]
    code = CODES.get(kind) if isinstance(kind, str) else None
    if code is None or code == STRING:
        raise bad_plan(f"initializer {name!r}: unknown element type {kind!r}")
    if code in _PACKED:
        _check_size(name, record, tensor_bytes(code, dims))
        return data
    dtype = array_type(code)
    if record.get("encoding") in _QUANTIZED:
        return data
    if record.get("layout") is not None:
        data = _in_order(name, record, data)
    if record.get("layout") is not None and record.get("encoding") is None:
        return _rows(name, record, dims, data, dtype)
    if record.get("encoding") is not None:
        decoded = _decoded(name, record, dims, data).astype(dtype, order="C")
        decoded.flags.writeable = False
        return decoded
    _check_size(name, record, math.prod(dims) * dtype.itemsize)
    return data.view(dtype).reshape(dims)


def _in_order(name: str, record: Mapping[str, Any], data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the bytes of a weight with a layout, row by row."""
    rows, length = _matrix(name, record)
    together = _TOGETHER[record["layout"]]
    units = -(-length // _ROW_UNIT)
    held = -(-rows // together) * together
    if together == 1 or not held * units:
        return data
    if not data.size or data.size % (held * units):
        raise bad_plan(f"initializer {name!r}: {data.size} bytes are not {held} rows of {units} units")
    tiles = data.reshape(-1, units, together, data.size // (held * units))
    in_order = tiles.swapaxes(1, 2).reshape(held, -1)[:rows].reshape(-1)
    in_order.flags.writeable = False
    return in_order


def _rows(
    name: str, record: Mapping[str, Any], dims: list[int], data: NDArray[np.uint8], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """View a weight whose rows are padded for the kernels that read them."""
    rows, length = dims
    padded = -(-length // _ROW_UNIT) * _ROW_UNIT
    if data.size != rows * padded * dtype.itemsize:
        raise bad_plan(
            f"initializer {name!r}: {record['size']} bytes in {record['layout']}, {record['dtype']} {dims} "
            f"has {rows * padded * dtype.itemsize}"
        )
    return data.view(dtype).reshape(rows, padded)[:, :length]


def _decoded(
    name: str, record: Mapping[str, Any], dims: list[int], data: NDArray[np.uint8]
) -> NDArray[np.float32]:
    """Decode a weight that is stored in blocks along one of its dimensions."""
    axis = _whole(name, record, "axis")
    if axis >= len(dims):
        raise bad_plan(f"initializer {name!r}: axis is {axis}, expected less than {len(dims)}")
    stored = [*dims[:axis], *dims[axis + 1 :], dims[axis]]
    # Two elements of a block take more than a byte, so the size of the file limits the size of the result.
    if math.prod(stored) > 2 * data.size:
        raise bad_plan(f"initializer {name!r}: {data.size} bytes cannot hold {dims} in blocks")
    try:
        values = _core.mx_decode(data.data, stored, record["encoding"])
    except (QaicError, TypeError) as error:
        raise bad_plan(f"initializer {name!r}: {error}") from error
    return np.moveaxis(values, -1, axis)


def _whole(name: str, record: Mapping[str, Any], key: str) -> int:
    value = record.get(key)
    if isinstance(value, int) and _is_whole(value):
        return value
    raise bad_plan(f"initializer {name!r}: {key} is {value!r}, a whole number is expected")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _check_size(name: str, record: Mapping[str, Any], expected: int) -> None:
    if record["size"] != expected:
        raise bad_plan(
            f"initializer {name!r}: {record['size']} bytes, {record['dtype']} {record['dims']} has {expected}"
        )
