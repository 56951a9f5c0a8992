"""Writes valid and contradictory safetensors files, without the reader and without the library."""

import json

import ml_dtypes
import numpy as np

#: Name of a type -> its name in numpy.
DTYPES = {
    "BOOL": np.dtype("bool"),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "C64": np.dtype("<c8"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def described(arrays):
    """Header entries and payload of arrays in sequence."""
    entries, payload = {}, b""
    for name, array in arrays.items():
        data = np.ascontiguousarray(array).tobytes()
        offsets = [len(payload), len(payload) + len(data)]
        entries[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape), "data_offsets": offsets}
        payload += data
    return entries, payload


def encoded(header, payload, size=None):
    """Bytes of a file; `header` is JSON text or a value for it, `size` is the stated length of the header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if size is None else size).to_bytes(8, "little") + text + payload


def write(path, arrays, metadata=None):
    """Write a valid file."""
    entries, payload = described(arrays)
    if metadata is not None:
        entries["__metadata__"] = metadata
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(entries, payload))
    return path
