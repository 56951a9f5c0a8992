"""Codes, names and widths of ONNX element types, readable without importing onnx."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing import Any

    import numpy as np
    import onnx

FLOAT: Final = 1
UINT8: Final = 2
INT8: Final = 3
UINT16: Final = 4
INT16: Final = 5
INT32: Final = 6
INT64: Final = 7
STRING: Final = 8
BOOL: Final = 9
FLOAT16: Final = 10
DOUBLE: Final = 11
UINT32: Final = 12
UINT64: Final = 13
BFLOAT16: Final = 16

#: code -> (name, bits per element); strings have no width
TABLE: Final[dict[int, tuple[str, int]]] = {
    FLOAT: ("float32", 32),
    UINT8: ("uint8", 8),
    INT8: ("int8", 8),
    UINT16: ("uint16", 16),
    INT16: ("int16", 16),
    INT32: ("int32", 32),
    INT64: ("int64", 64),
    STRING: ("string", 0),
    BOOL: ("bool", 8),
    FLOAT16: ("float16", 16),
    DOUBLE: ("float64", 64),
    UINT32: ("uint32", 32),
    UINT64: ("uint64", 64),
    14: ("complex64", 64),
    15: ("complex128", 128),
    BFLOAT16: ("bfloat16", 16),
    17: ("float8e4m3fn", 8),
    18: ("float8e4m3fnuz", 8),
    19: ("float8e5m2", 8),
    20: ("float8e5m2fnuz", 8),
    21: ("uint4", 4),
    22: ("int4", 4),
    23: ("float4e2m1", 4),
    24: ("float8e8m0", 8),
    25: ("uint2", 2),
    26: ("int2", 2),
}

#: float types with arithmetic
FLOATS: Final = frozenset({FLOAT, DOUBLE, FLOAT16, BFLOAT16})

#: types of numbers and booleans in numpy
OF_NUMPY: Final = frozenset(range(1, 14)) - {STRING}

#: byte-sized float types that numpy lacks -> their names in ml_dtypes
NARROW_FLOATS: Final = {
    BFLOAT16: "bfloat16",
    17: "float8_e4m3fn",
    18: "float8_e4m3fnuz",
    19: "float8_e5m2",
    20: "float8_e5m2fnuz",
    24: "float8_e8m0fnu",
}

CODES: Final[dict[str, int]] = {name: code for code, (name, _) in TABLE.items()}

#: types of buffers of the card; other types exist only inside the graph
INTERFACE_TYPES: Final = frozenset({FLOAT, FLOAT16, INT8, UINT8, INT16, INT32, INT64, BOOL})


def type_name(code: int) -> str:
    """Return the name of an element type, also if the table does not contain it."""
    return TABLE[code][0] if code in TABLE else f"element type {code}"


def tensor_bytes(code: int, dims: Sequence[int]) -> int:
    """Return the size of a dense tensor in bytes; sub-byte types are packed and rounded up."""
    return (math.prod(dims) * TABLE[code][1] + 7) // 8


def array_type(code: int) -> np.dtype[Any]:
    """Return the array type of elements of whole bytes, from ml_dtypes if numpy has none."""
    import numpy as np

    if code not in NARROW_FLOATS:
        return np.dtype(TABLE[code][0])
    import ml_dtypes

    scalar: type[Any] = getattr(ml_dtypes, NARROW_FLOATS[code])
    return np.dtype(scalar)


def narrow_float_bytes(tensor: onnx.TensorProto) -> bytes:
    """Read the dense array of a tensor of one of `NARROW_FLOATS`: its raw data, or a code per number."""
    if tensor.HasField("raw_data"):
        return tensor.raw_data
    import numpy as np

    return np.array(tensor.int32_data, np.int64).astype(f"<u{TABLE[tensor.data_type][1] // 8}").tobytes()
