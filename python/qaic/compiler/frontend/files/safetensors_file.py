"""Positions of tensors in a safetensors file.

Such a file consists of a little-endian size of 8 bytes, a JSON object of that size with the type, shape and
range of each tensor, and the tensors without gaps between them. Only the object is read here, and it is
checked completely before use.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

from qaic.compiler.diagnostics.messages import refuse
from qaic.compiler.ir.constants.weights import FileRange, InputFile, read_all
from qaic.compiler.ir.elem_types import CODES
from qaic.errors import CompileError
from qaic.support.json import parse_json

#: largest object in bytes, some hundred thousand tensors; parsing takes about twenty times as much memory
_LARGEST_HEADER: Final = 32 << 20
_SIZE_BYTES: Final = 8
_METADATA: Final = "__metadata__"
_MOST_DIMS: Final = 64
_LARGEST_DIM: Final = (1 << 63) - 1
#: most characters of a file's content in a message
_LONGEST_SHOWN: Final = 80

#: name of a type -> (bits per element, ONNX element type or None)
TYPES: Final[dict[str, tuple[int, int | None]]] = {
    "BOOL": (8, CODES["bool"]),
    "U8": (8, CODES["uint8"]),
    "I8": (8, CODES["int8"]),
    "U16": (16, CODES["uint16"]),
    "I16": (16, CODES["int16"]),
    "U32": (32, CODES["uint32"]),
    "I32": (32, CODES["int32"]),
    "U64": (64, CODES["uint64"]),
    "I64": (64, CODES["int64"]),
    "F16": (16, CODES["float16"]),
    "BF16": (16, CODES["bfloat16"]),
    "F32": (32, CODES["float32"]),
    "F64": (64, CODES["float64"]),
    "C64": (64, CODES["complex64"]),
    "F8_E4M3": (8, CODES["float8e4m3fn"]),
    "F8_E4M3FNUZ": (8, CODES["float8e4m3fnuz"]),
    "F8_E5M2": (8, CODES["float8e5m2"]),
    "F8_E5M2FNUZ": (8, CODES["float8e5m2fnuz"]),
    "F8_E8M0": (8, CODES["float8e8m0"]),
    # Several values are packed in a byte, in a special order.
    "F6_E2M3": (6, None),
    "F6_E3M2": (6, None),
    "F4": (4, None),
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a checkpoint: its type by the name in the file, its dims, and its byte range."""

    dtype: str
    dims: tuple[int, ...]
    source: FileRange


def read_tensors(file: InputFile) -> dict[str, StoredTensor]:
    """Read the entries of a file about its tensors, by their names.

    Reading does not move the position of the open file. Blocking. Raises CompileError if the file is not a
    valid safetensors file: sizes beyond its end, tensors that overlap or leave gaps, unknown types, or a
    shape that does not fit its range.
    """
    begin, entries = _header(file)
    data_bytes = file.size - begin
    found: dict[str, StoredTensor] = {}
    for name, entry in entries.items():
        if name == _METADATA:
            if not isinstance(entry, dict) or not all(isinstance(text, str) for text in entry.values()):
                raise _wrong(file, f"{_METADATA} that is not an object of strings", "one, or none")
            continue
        found[name] = _tensor(file, name, entry, begin, data_bytes)
    _check_cover(file, found, begin)
    return found


def _header(file: InputFile) -> tuple[int, dict[str, Any]]:
    """Read the object; return it and the position of the tensors."""
    if file.size < _SIZE_BYTES:
        raise _wrong(file, f"{file.size} bytes", f"at least {_SIZE_BYTES}")
    size = int.from_bytes(read_all(FileRange(file, 0, _SIZE_BYTES)), "little")
    if size > file.size - _SIZE_BYTES:
        raise _wrong(file, f"a header of {size} bytes", f"at most the {file.size - _SIZE_BYTES} that follow")
    if size > _LARGEST_HEADER:
        raise _wrong(file, f"a header of {size} bytes", f"at most {_LARGEST_HEADER}")
    text = read_all(FileRange(file, _SIZE_BYTES, size))
    if not text.startswith(b"{"):
        raise _wrong(file, f"a header that begins with {text[:8]!r}", "a JSON object")
    try:
        entries = parse_json(text)
    except ValueError as error:
        raise _wrong(file, f"a header that is not JSON ({error})", "a JSON object") from error
    if not isinstance(entries, dict):
        raise _wrong(file, f"a header that is a JSON {type(entries).__name__}", "an object")
    return _SIZE_BYTES + size, entries


def _tensor(file: InputFile, name: str, entry: object, begin: int, data_bytes: int) -> StoredTensor:
    what = f"tensor {shown(name)}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _wrong(file, f"{what} described by {shown(entry)}", "dtype, shape and data_offsets")
    dtype, dims, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in TYPES:
        raise _wrong(file, f"{what} of type {shown(dtype)}", f"one of {', '.join(TYPES)}")
    if not _are_sizes(dims) or len(dims) > _MOST_DIMS:
        raise _wrong(file, f"{what} of shape {shown(dims)}", f"a list of up to {_MOST_DIMS} sizes")
    if not _are_sizes(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= data_bytes:
        raise _wrong(file, f"{what} at {shown(offsets)}", f"a range inside {data_bytes} bytes")
    bits = math.prod(dims) * TYPES[dtype][0]
    if bits != 8 * (offsets[1] - offsets[0]):
        raise _wrong(
            file, f"{what} with {offsets[1] - offsets[0]} bytes", f"{bits} bits for {dtype} {shown(dims)}"
        )
    return StoredTensor(dtype, tuple(dims), FileRange(file, begin + offsets[0], offsets[1] - offsets[0]))


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= _LARGEST_DIM for size in value
    )


def _check_cover(file: InputFile, tensors: dict[str, StoredTensor], begin: int) -> None:
    """Check that the tensors cover the file from the header to its end, without gaps."""
    end = begin
    ordered = sorted(tensors.items(), key=lambda item: (item[1].source.offset, item[1].source.nbytes))
    for name, tensor in ordered:
        if tensor.source.offset != end:
            problem = "overlaps the one before" if tensor.source.offset < end else "leaves a gap before it"
            raise _wrong(
                file,
                f"tensor {shown(name)}, which {problem}, at byte {tensor.source.offset}",
                f"it at byte {end}",
            )
        end += tensor.source.nbytes
    if end != file.size:
        raise _wrong(file, f"{file.size - end} bytes after the last tensor", "none")


def shown(value: object) -> str:
    """Write a value for messages, cut if it is long."""
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _wrong(file: InputFile, found: str, expected: str) -> CompileError:
    return refuse(
        f"safetensors file {str(file.path)!r}",
        code="safetensors",
        found=found,
        expected=expected,
        fix="write or download the file again; it is damaged or of another format",
        context={"path": str(file.path)},
    )
